"""Set-up: from a process's start to the end of its first step, beside MirroredStrategy.

  python -m benchmarks.setup      # NASNet-Large and ResNet-50; takes an hour
  python -m benchmarks.setup --models=resnet50 --towers=8 --builds=clone,sgd,mirrored --repeats=3

Each line runs in its own process, on two synthetic images per tower:

  clone      what main.py trains by default: momentum, a cosine schedule, validation by the switch
  reuse      the same, with --tower_build=reuse
  sgd        as clone with SGD, a constant rate and no validation, which is what the peers build
  mirrored   MirroredStrategy in a bare session with a constant batch, the easier task

Ours build the whole line, with input, staging and guard. MirroredStrategy gets the same model,
towers and batch sizes. It has no row with momentum, whose zero slots TensorFlow folds into the
graph: 24 GB were not enough for 8 towers of NASNet-Large on 1.14.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List, Tuple

from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.machine import read_peak_bytes, write_figures
from benchmarks.peers.mirrored import open_mirrored
from models import MODELS

IMAGES_PER_TOWER = 2
IMAGE_SHAPE = (32, 32, 3)
NUM_CLASSES = 10
LEARNING_RATE = 1e-12  # Two small images make gradients of 10^10 in a deep net.
BUILDS = ('clone', 'sgd', 'reuse', 'mirrored')
_LATER_STEPS = 3


def measure(model: str, num_towers: int, build: str, started: float) -> Dict[str, Any]:
  """Builds, starts and takes a few steps in this process, which was started at `started`."""
  from towers.tensorflow_v1 import tf
  imported = time.time()
  run = _Run()
  with contextlib.ExitStack() as opened:
    start = _start_mirrored if build == 'mirrored' else _start_towers
    step, session = start(opened, model, num_towers, build)
    run.begin(session.graph)
    for _ in range(1 + _LATER_STEPS):
      run.end_step(step())
  ends, used = zip(*run.ends)
  later = sorted(after - before for before, after in zip(ends[1:], ends[2:]))
  return dict(model=model, num_towers=num_towers, build=build, tensorflow_version=tf.__version__,
              setup_seconds=ends[1] - started, import_seconds=imported - started,
              build_and_start_seconds=ends[0] - imported, first_step_seconds=ends[1] - ends[0],
              setup_cpu_seconds=used[1], step_seconds=later[len(later) // 2],
              step_cpu_seconds=(used[-1] - used[1]) / _LATER_STEPS, num_ops=run.num_ops,
              peak_bytes=read_peak_bytes(), losses=run.losses)


class _Run:
  """When a program was ready for its first step, and when each step ended: clock, CPU seconds."""

  def __init__(self):
    self.ends: List[Tuple[float, float]] = []
    self.losses: List[float] = []
    self.num_ops = 0

  def begin(self, graph):
    self.num_ops = len(graph.get_operations())
    self.ends.append((time.time(), time.process_time()))

  def end_step(self, loss):
    self.losses.append(float(loss))
    self.ends.append((time.time(), time.process_time()))


def _start_towers(opened, model, num_towers, build):
  """Returns a function that takes a step of main.py's program, and the session."""
  from benchmarks.harness.program import open_program
  from towers import data
  from towers.settings.config import Config

  settings = {'sgd': dict(optimizer='sgd', schedule='constant', validation='none'),
              'reuse': dict(tower_build='reuse')}
  config = Config(model=model, batch_size=IMAGES_PER_TOWER * num_towers, num_towers=num_towers,
                  learning_rate=LEARNING_RATE, **settings.get(build, {}))
  data_set = data.load_synthetic(image_shape=IMAGE_SHAPE, num_classes=NUM_CLASSES)
  session = opened.enter_context(open_program(config, data_set, num_towers=num_towers))
  session.start()
  return session.train, session.tf_session


def _start_mirrored(opened, model, num_towers, build):
  """Returns the same for MirroredStrategy."""
  del build
  import models
  from towers.tensorflow_v1 import tf

  def make_batch():
    images = tf.zeros((IMAGES_PER_TOWER,) + IMAGE_SHAPE, tf.float32)
    return images, tf.zeros([IMAGES_PER_TOWER], tf.int32)

  return open_mirrored(opened, models.build_classifier(model, num_classes=NUM_CLASSES),
                       num_towers=num_towers, optimizer=_make_optimizer, make_batch=make_batch)


def _make_optimizer():
  from towers.tensorflow_v1 import tf
  return tf.train.GradientDescentOptimizer(LEARNING_RATE)


def run_line(model: str, num_towers: int, build: str) -> Dict[str, Any]:
  """Measures in a new process; returns its line, with 'error' if the process failed."""
  root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  line = f'{model},{num_towers},{build},{time.time()!r}'
  done = subprocess.run([sys.executable, '-m', 'benchmarks.setup', '--line=' + line], cwd=root,
                        capture_output=True, text=True)
  if done.returncode == 0:
    return json.loads(done.stdout.strip().splitlines()[-1])
  if done.returncode < 0:
    error = f'killed by signal {-done.returncode} (9: the machine has no memory left)'
  else:
    error = (done.stderr.strip().splitlines() or ['?'])[-1]
  return dict(model=model, num_towers=num_towers, build=build, error=error)


def format_line(line: Dict[str, Any]) -> str:
  """Returns a row of the table."""
  head = '{model:13} {num_towers:>2} {build:9}'.format(**line)
  if 'error' in line:
    return f"{head} {line['error']}"
  return head + (
      '{setup_seconds:8.1f} s to the first step (imports {import_seconds:.1f}, '
      'build and start {build_and_start_seconds:.1f}, step {first_step_seconds:.1f}; '
      'CPU {setup_cpu_seconds:.1f})  then {step_seconds:6.2f} s a step '
      '(CPU {step_cpu_seconds:.2f})  {num_ops:>7,} ops  {gigabytes:.2f} GB').format(
          gigabytes=line['peak_bytes'] / 1e9, **line)


def main() -> None:
  """Measures all lines and prints each; for each model and number of towers, builds take turns."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(MODELS)), default='nasnet_large,resnet50')
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2,4,8')
  parser.add_argument('--builds', type=several(one_of(BUILDS)), default=','.join(BUILDS),
                      help='of ' + ','.join(BUILDS))
  parser.add_argument('--repeats', type=at_least(1), default=1)
  parser.add_argument('--json', type=path_to_write, help='file to write all lines to')
  parser.add_argument('--line', help=argparse.SUPPRESS)
  flags = parser.parse_args()
  if flags.line:
    model, num_towers, build, started = flags.line.split(',')
    print(json.dumps(measure(model, int(num_towers), build, float(started))))
    return
  lines = []
  for _ in range(flags.repeats):
    for model in flags.models:
      for num_towers in flags.towers:
        for build in flags.builds:
          lines.append(run_line(model, num_towers, build))
          print(format_line(lines[-1]), flush=True)
  if flags.json:
    write_figures(flags.json, lines)


if __name__ == '__main__':
  main()
