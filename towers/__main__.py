"""Trains a model: `python -m towers --help`. A command of extras/: `python -m towers launch`."""

import sys

try:
  from towers.extras import FUNCTIONS, run
  command = ' '.join(['python -m towers', *sys.argv[1:2]])
  if __name__ == '__main__' and command in FUNCTIONS:  # And not where a child imports it again.
    sys.exit(run(command, sys.argv[2:]))
  from towers.cli.command_line import main
except KeyboardInterrupt:  # While it loads.
  sys.exit(130)

if __name__ == '__main__':
  sys.exit(main(sys.argv))
