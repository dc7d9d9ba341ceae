"""GPUs: what a step takes beside what others write, and what each part of it takes.

  python -m benchmarks.gpu --json=gpu.json               # beside others; ends within five minutes
  python -m benchmarks.gpu --ablate --json=ablate.json   # each part by itself; five minutes more
  python -m benchmarks.gpu --logical_gpus=8 --gpu_memory=9000 --cases=host,first,replicated
  python -m benchmarks.gpu --device=cpu --models=convnet --steps=5

Each case changes a few settings of the defaults, and trains in a process of its own, by main.py.
Then towers with their defaults take turns with a loop written by hand and with MirroredStrategy, as
in `benchmarks.step`, and PyTorch comes last, if it is there. Losses and weights are compared with
TF32 off, whose rounding would hide or feign a difference. With `--ablate` nothing is compared: each
case leaves out or exchanges one part of a step. One run fills one table and one JSON file; what
there was no time for is listed as such.
"""

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from benchmarks import step
from benchmarks.harness import step_table
from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.machine import describe_machine, write_figures
from benchmarks.harness.task import NETS, NUM_CLASSES, Task
from towers.base.usage_error import UsageError
from towers.settings.config import Config
from towers_tools.trials.timed_trial import run_trial

# As TensorFlow is shipped; ours sets 1.
_PLAIN_BATCH_NORM = {'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT': '0'}
# XLA first, which takes longest to start.
CASES: Dict[str, Dict[str, Any]] = {
    'mixed': dict(precision='mixed'),
    'defaults': {},
    'host': dict(variables='host'),
    'first': dict(variables='first'),
    'balanced': dict(variables='balanced'),
    'replicated': dict(variables='replicated'),
    'mixed without XLA': dict(precision='mixed', xla='off'),
    'mixed switch': dict(precision='mixed', validation='switch'),
    'NCHW': dict(data_format='NCHW'),
    'NCHW mixed': dict(data_format='NCHW', precision='mixed'),
    'no TF32': dict(tf32='off'),
    'XLA': dict(xla='on'),
    'next': dict(input_mode='next'),
    'shard': dict(input_mode='shard'),
}
_DEFAULT_CASES = ['mixed', 'defaults']
# Each changes settings, an environment, or a part of a step (see `ablated`).
ABLATED: Dict[str, Dict[str, Any]] = {
    'defaults': {},
    'validation too': dict(validation='switch'),
    'no guard': dict(part='no guard'),
    'gate on the host': dict(part='gate on the host'),
    'session.run': dict(part='session.run'),
    'staging 0': dict(staging_depth=0),
    'staging 2': dict(staging_depth=2),
    'variables host': dict(variables='host'),
    'variables first': dict(variables='first'),
    'no rewriter': dict(graph_rewriter='off'),
    'plain batch norm': dict(environment=_PLAIN_BATCH_NORM),
}
_MODELS = 'resnet50'
_PEERS = [step_table.OURS, 'by hand', 'mirrored']
_AS_SHIPPED = dict.fromkeys(_PEERS[1:], _PLAIN_BATCH_NORM)
# Whole float32 products by algorithms that no timing chooses: nothing differs by other rounding.
_EXACT = dict(_PLAIN_BATCH_NORM, NVIDIA_TF32_OVERRIDE='0', TF_CUDNN_DETERMINISTIC='1')
_COMMAND = [sys.executable, '-m', 'towers']
_PEER_ROUNDS, _PEER_SECONDS = 3, 1.0
_PHOTOS = 512
# A trial needs this long to start, so that none begins that cannot end.
_LEAST_SECONDS = 10
# Of a model's time; the rest is for peers.
_SHARE_OF_CASES = 0.35
_LEFT_OUT = 'left out: no time'


def load_photos() -> Any:
  """Returns synthetic images of ImageNet's size, for main.py."""
  from towers.data import load_synthetic
  return load_synthetic(image_shape=NETS['resnet50'].image_shape, num_classes=NUM_CLASSES,
                        num_train=_PHOTOS, num_validation=1)


def measure(model: str, cases: Dict[str, Dict[str, Any]], *, steps: int, deadline: float,
            **settings: Any) -> List[Dict[str, Any]]:
  """Returns a line for each case: 'case', 'settings', 'examples_per_second' and 'error'.

  Args:
    model: of the zoo.
    cases: those of CASES or ABLATED to measure.
    steps: that each case trains.
    deadline: by `time.monotonic`, when all must be done.
    **settings: of all cases.
  """
  lines = []
  for case, changed in cases.items():
    line: Dict[str, Any] = dict(case=case, settings=changed, examples_per_second=None, error='')
    changed = dict(changed)
    part, environment = changed.pop('part', None), changed.pop('environment', None)
    command = _COMMAND if part is None else [sys.executable, '-m', 'benchmarks.harness.ablated',
                                             part]
    # A trial does not validate unless it is told to.
    changes = {name: changed.pop(name) for name in ('validation',) if name in changed}
    left = deadline - time.monotonic()
    try:
      if left < _LEAST_SECONDS:
        raise UsageError(_LEFT_OUT)
      data = 'benchmarks.gpu:load_photos' if model == 'resnet50' else 'synthetic'
      config = Config(**dict(dict(model=model, data=data, **settings), **changed))
      trial = run_trial(config, changes, command=command, steps=steps, limit_seconds=left,
                        environment=environment)
      line['error'] = trial.error
      line['examples_per_second'] = trial.examples_per_second or None
    except UsageError as error:
      line['error'] = str(error)
    lines.append(line)
  return lines


def format_lines(model: str, lines: Sequence[Dict[str, Any]]) -> str:
  """Returns the table of one model: examples per second, and as a part of the defaults'."""
  first = next((line['examples_per_second'] for line in lines if line['case'] == 'defaults'), None)
  rows = [f'{model:19} {"examples/s":>12} {"of defaults":>11}']
  for line in lines:
    speed = line['examples_per_second']
    ratio = f'{speed / first:11.2f}' if speed and first else f'{"":11}'
    rows.append(f"  {line['case']:17} {speed:12,.1f} {ratio}" if speed else
                f"  {line['case']:17} {line['error']}")
  return '\n'.join(rows)


def measure_peers(task: Task, deadline: float) -> Dict[str, Any]:
  """Returns a line of `benchmarks.step`, timed as shipped and, in time, compared without TF32."""
  left = deadline - time.monotonic()
  line = step.measure(task, _PEERS, rounds=_PEER_ROUNDS, seconds=_PEER_SECONDS,
                      limit_seconds=left / len(_PEERS), environments=_AS_SHIPPED)
  line['disagreements'] = None
  left = deadline - time.monotonic()
  if left > _LEAST_SECONDS:
    line['disagreements'] = step.measure(
        task, _PEERS, rounds=0, seconds=0, limit_seconds=left / len(_PEERS),
        environments=dict.fromkeys(_PEERS, _EXACT))['disagreements']
  return line


def measure_pytorch(batch_size: int, steps: int, limit_seconds: float) -> List[Dict[str, Any]]:
  """Returns a line for each case that PyTorch has ended in time; none where it is not there."""
  command = [sys.executable, '-m', 'benchmarks.peers.pytorch', str(batch_size), str(steps)]
  try:
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           timeout=limit_seconds).stdout
  except subprocess.TimeoutExpired as late:
    found = late.stdout or b''
  return [dict(json.loads(line), error='') for line in found.splitlines()]


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Measures, prints and writes; returns 1 if nothing could be measured."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(NETS)), default=_MODELS)
  parser.add_argument('--cases', type=several(one_of(CASES)), default=_DEFAULT_CASES,
                      help=f"of {','.join(CASES)}")
  parser.add_argument('--ablate', action='store_true',
                      help='measure one part of a step after the other instead')
  parser.add_argument('--device', choices=('gpu', 'cpu'), default='gpu')
  parser.add_argument('--num_gpus', type=at_least(1), help='default: all')
  parser.add_argument('--logical_gpus', type=at_least(1), help='see main.py')
  parser.add_argument('--gpu_memory', help='see main.py')
  parser.add_argument('--batch_size', type=at_least(1), default=256, help='global')
  parser.add_argument('--steps', type=at_least(2), default=40, help='of each case')
  parser.add_argument('--seconds', type=at_least(1, float), default=290, help='for all of it')
  parser.add_argument('--no_peers', action='store_true', help='leave out what others write')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args(arguments)
  deadline = time.monotonic() + flags.seconds
  settings = dict(device=flags.device, num_towers=flags.num_gpus, logical_gpus=flags.logical_gpus,
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
    has_peers = not flags.no_peers and not flags.logical_gpus and not flags.ablate
    has_pytorch = has_peers and flags.device == 'gpu' and model == 'resnet50'
    cases = ABLATED if flags.ablate else {case: CASES[case] for case in flags.cases}
    lines = measure(model, cases, steps=flags.steps,
                    deadline=now + share * (_SHARE_OF_CASES if has_peers else 1), **settings)
    content['models'][model] = lines
    until = now + share * (0.75 if has_pytorch else 1)
    if has_peers and until - time.monotonic() > _LEAST_SECONDS:
      task = Task(model, num_towers, max(1, flags.batch_size // num_towers),
                  kind=flags.device.upper())
      content['peers'][model] = line = measure_peers(task, until)
      print('\n' + step_table.format_line(line), flush=True)
    left = now + share - time.monotonic()
    if has_pytorch and left > _LEAST_SECONDS:
      lines += measure_pytorch(flags.batch_size, flags.steps, left)
    print('\n' + format_lines(model, lines), flush=True)
    if flags.json:
      write_figures(flags.json, content)
  return 0 if any(line['examples_per_second'] for lines in content['models'].values()
                  for line in lines) else 1


def _count_towers(settings):
  """Returns the number of towers that main.py trains on; refuses devices that it does not have."""
  from towers.placement.devices import build_devices
  return len(build_devices(settings['num_towers'], settings['device'],
                           logical_gpus=settings['logical_gpus'],
                           gpu_memory=settings['gpu_memory']).names)


if __name__ == '__main__':
  sys.exit(main())
