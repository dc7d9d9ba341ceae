"""Trains a model on N towers.

  python main.py --input_mode=split --num_gpus=8
  python main.py --help

The same as `python -m towers`: `towers/cli/command_line.py` reads the flags and chooses the job,
`towers/cli/jobs.py` has the jobs, and `towers/training_graph.py` is the straight line.
"""

import sys

try:
  from towers.cli.command_line import main
except ModuleNotFoundError as missing:
  if __name__ != '__main__' or missing.name not in ('absl', 'numpy'):
    raise
  print(f'towers: error: {missing.name} is not installed in {sys.prefix}: install what towers '
        'needs with `pip install .`, or start ./run, which makes an environment.', file=sys.stderr)
  sys.exit(2)
except KeyboardInterrupt:  # Ctrl-C while it loads.
  sys.exit(130)

if __name__ == '__main__':
  sys.exit(main(sys.argv))
