"""GPUs: what each setting does to a step's time, and what others write for the same.

  python -m benchmarks.gpu --json=gpu.json                    # all GPUs; ends within ten minutes
  python -m benchmarks.gpu --logical_gpus=8 --gpu_memory=9000 # 8 towers on one GPU
  python -m benchmarks.gpu --device=cpu --models=convnet --steps=5

Each case changes a few settings of the first, `host`, and trains in a process of its own, by
main.py. Then towers with their defaults take turns with a loop written by hand and with
MirroredStrategy, as in `benchmarks.step`. One run fills one table and one JSON file. What there was
no time for is listed as such.
"""

import argparse
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from benchmarks import step
from benchmarks.harness import step_table
from benchmarks.harness.figures import write_figures
from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.task import NETS, NUM_CLASSES, Task
from towers.base.usage_error import UsageError
from towers.training.settings.config import Config
from towers_tools.timed_trial import run_trial

CASES: Dict[str, Dict[str, Any]] = {
    'host': {},
    'first': dict(variables='first'),
    'balanced': dict(variables='balanced'),
    'replicated': dict(variables='replicated'),
    'mixed': dict(precision='mixed'),
    'NCHW': dict(data_format='NCHW'),
    'NCHW mixed': dict(data_format='NCHW', precision='mixed'),
    'no TF32': dict(tf32='off'),
    'XLA': dict(xla='on'),
    'next': dict(input_mode='next'),
    'shard': dict(input_mode='shard'),
    'no staging': dict(staging_depth=0),
    'staging 2': dict(staging_depth=2),
}
_MODELS = 'resnet50,resnet20'
_PEERS = [step_table.OURS, 'by hand', 'mirrored']
_COMMAND = [sys.executable, '-m', 'towers']
_PEER_ROUNDS, _PEER_SECONDS = 3, 1.0
_PHOTOS = 512
# A trial needs this long to start, so that none begins that cannot end.
_LEAST_SECONDS = 10
# Of a model's time; the rest is for peers.
_SHARE_OF_CASES = 0.6
_LEFT_OUT = 'left out: no time'


def load_photos() -> Any:
  """Returns synthetic images of ImageNet's size, for main.py."""
  from towers.data import load_synthetic
  return load_synthetic(image_shape=NETS['resnet50'].image_shape, num_classes=NUM_CLASSES,
                        num_train=_PHOTOS, num_validation=1)


def measure(model: str, cases: Sequence[str], *, steps: int, deadline: float,
            command: Sequence[str], **settings: Any) -> List[Dict[str, Any]]:
  """Returns a line for each case: 'case', 'settings', 'examples_per_second' and 'error'.

  Args:
    model: of the zoo.
    cases: of CASES.
    steps: that each case trains.
    deadline: by `time.monotonic`, when all must be done.
    command: that runs main.py.
    **settings: of all cases.
  """
  lines = []
  for case in cases:
    line: Dict[str, Any] = dict(case=case, settings=CASES[case], examples_per_second=None, error='')
    left = deadline - time.monotonic()
    try:
      if left < _LEAST_SECONDS:
        raise UsageError(_LEFT_OUT)
      data = 'benchmarks.gpu:load_photos' if model == 'resnet50' else 'synthetic'
      config = Config(**dict(dict(model=model, data=data, **settings), **CASES[case]))
      trial = run_trial(config, {}, command=command, steps=steps, limit_seconds=left)
      line['error'] = trial.error
      line['examples_per_second'] = trial.examples_per_second or None
    except UsageError as error:
      line['error'] = str(error)
    lines.append(line)
  return lines


def format_lines(model: str, lines: Sequence[Dict[str, Any]]) -> str:
  """Returns the table of one model: examples per second, and how many times those of the first."""
  first = lines[0]['examples_per_second'] if lines else None
  rows = [f'{model:14} {"examples/s":>12} {"times first":>11}']
  for line in lines:
    speed = line['examples_per_second']
    ratio = f'{speed / first:11.2f}' if speed and first else f'{"":11}'
    rows.append(f"  {line['case']:12} {speed:12,.1f} {ratio}" if speed else
                f"  {line['case']:12} {line['error']}")
  return '\n'.join(rows)


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Measures, prints and writes; returns 1 if nothing could be measured."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(NETS)), default=_MODELS)
  parser.add_argument('--cases', type=several(one_of(CASES)), default=list(CASES),
                      help=f"of {','.join(CASES)}")
  parser.add_argument('--device', choices=('gpu', 'cpu'), default='gpu')
  parser.add_argument('--num_gpus', type=at_least(1), help='default: all')
  parser.add_argument('--logical_gpus', type=at_least(1), help='see main.py')
  parser.add_argument('--gpu_memory', help='see main.py')
  parser.add_argument('--batch_size', type=at_least(1), default=64, help='global')
  parser.add_argument('--steps', type=at_least(2), default=60, help='of each case')
  parser.add_argument('--seconds', type=at_least(1, float), default=570, help='for all of it')
  parser.add_argument('--no_peers', action='store_true', help='leave out what others write')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args(arguments)
  deadline = time.monotonic() + flags.seconds
  settings = dict(device=flags.device, num_gpus=flags.num_gpus, logical_gpus=flags.logical_gpus,
                  gpu_memory=flags.gpu_memory, batch_size=flags.batch_size)
  try:
    num_towers = _count_towers(settings)
  except UsageError as error:
    print(f'benchmarks.gpu: {error}', file=sys.stderr)
    return 2
  content: Dict[str, Any] = dict(machine=describe_machine(), settings=settings,
                                 num_towers=num_towers, models={}, peers={})
  print(step_table.format_machine(content['machine']), flush=True)
  for model in flags.models:
    # Each model gets its part of the time.
    now = time.monotonic()
    share = (deadline - now) / (len(flags.models) - len(content['models']))
    # A peer knows no logical GPUs.
    has_peers = not flags.no_peers and not flags.logical_gpus
    lines = measure(model, flags.cases, steps=flags.steps, command=_COMMAND,
                    deadline=now + share * (_SHARE_OF_CASES if has_peers else 1), **settings)
    content['models'][model] = lines
    print('\n' + format_lines(model, lines), flush=True)
    left = now + share - time.monotonic()
    if has_peers and left > _LEAST_SECONDS:
      task = Task(model, num_towers, max(1, flags.batch_size // num_towers),
                  kind=flags.device.upper())
      line = step.measure(task, _PEERS, rounds=_PEER_ROUNDS, seconds=_PEER_SECONDS,
                          limit_seconds=left / len(_PEERS))
      content['peers'][model] = line
      print('\n' + step_table.format_line(line), flush=True)
    if flags.json:
      write_figures(flags.json, content)
  return 0 if any(line['examples_per_second'] for lines in content['models'].values()
                  for line in lines) else 1


def _count_towers(settings):
  """Returns the number of towers that main.py trains on; refuses devices that it does not have."""
  from towers.placement.devices import build_devices
  return len(build_devices(settings['num_gpus'], settings['device'],
                           logical_gpus=settings['logical_gpus'],
                           gpu_memory=settings['gpu_memory']).names)


if __name__ == '__main__':
  sys.exit(main())
