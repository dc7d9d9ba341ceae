"""A step: ours beside a loop written by hand and MirroredStrategy, in one process, in turns.

  python -m benchmarks.step                                        # linear and convnet on 2 towers; two minutes
  python -m benchmarks.step --models=convnet --towers=1,2,4,8 --batch_size=32

  towers     the program of main.py: input, staging, guard, input wait, and its progress, as the loop tells it
  by hand    towers as the cifar10 tutorial writes them, with a StagingArea each and `Session.make_callable`; no guard
  mirrored   MirroredStrategy in graph mode, a constant batch instead of an input, `Session.make_callable`

All have the same model function, optimizer and batch sizes. Ratios are of the medians of rounds that take turns.
"""

import argparse
import contextlib
import io
import json
import statistics
import time
from typing import Any, Callable, Dict, List

from benchmarks.mirrored import open_mirrored

NUM_EXAMPLES = 4096
IMAGE_SHAPE = (28, 28, 1)
NUM_CLASSES = 10
LEARNING_RATE = 0.001


def build_ours(opened: contextlib.ExitStack, model: str, batch_size: int, num_towers: int) -> Callable[[], Any]:
  """Returns what takes a step, of the program of main.py."""
  import data
  from benchmarks.program import open_program
  from training.config import Config
  from training.progress import Progress

  config = Config(model=model, batch_size=batch_size * num_towers, learning_rate=LEARNING_RATE, schedule='constant',
                  validation='none', shuffle=False)
  data_set = data.load_synthetic(image_shape=IMAGE_SHAPE, num_classes=NUM_CLASSES, num_train=NUM_EXAMPLES)
  steps = opened.enter_context(open_program(config, data_set, num_towers=num_towers))
  steps.start(0)
  progress = Progress(total_steps=10 ** 9, first_step=0, plan=steps.program.train.inputs.plan,
                      learning_rate=steps.learning_rate, input_wait_seconds=lambda: steps.input_wait_seconds,
                      stream=io.StringIO())

  def step():
    loss = steps.train()
    progress.step(step=steps.step, loss=loss)

  return step


def build_by_hand(opened: contextlib.ExitStack, model: str, batch_size: int, num_towers: int) -> Callable[[], Any]:
  """Returns what takes a step, of towers that are written by hand."""
  import numpy as np

  import models
  from tensorflow_v1 import StagingArea, tf

  model_function = models.build_classifier(model, num_classes=NUM_CLASSES)
  opened.enter_context(tf.Graph().as_default())
  with tf.device('/cpu:0'):
    random = np.random.RandomState(0)
    arrays = (random.randint(256, size=(NUM_EXAMPLES,) + IMAGE_SHAPE).astype(np.uint8),
              random.randint(NUM_CLASSES, size=NUM_EXAMPLES).astype(np.int32))
    dataset = tf.data.Dataset.from_tensor_slices(arrays).repeat().batch(batch_size * num_towers, drop_remainder=True)
    parts = zip(*[tf.split(tensor, num_towers)
                  for tensor in tf.data.make_one_shot_iterator(dataset.prefetch(2)).get_next()])
  puts, gradients, losses = [], [], []
  for tower, part in enumerate(parts):
    with tf.device('/cpu:%d' % tower), tf.variable_scope(tf.get_variable_scope(), reuse=tower > 0):
      area = StagingArea([tensor.dtype for tensor in part], [tensor.shape for tensor in part])
      puts.append(area.put(part))
      loss = tf.reduce_mean(model_function(tuple(area.get()), True)[0])
      losses.append(loss)
      gradients.append(tf.gradients(loss, tf.trainable_variables()))
  averaged = [tf.add_n(list(shares)) / num_towers for shares in zip(*gradients)]
  update = tf.train.MomentumOptimizer(LEARNING_RATE, 0.9).apply_gradients(zip(averaged, tf.trainable_variables()))
  loss = tf.add_n(losses) / num_towers
  session = opened.enter_context(tf.Session(config=tf.ConfigProto(
      device_count={'CPU': num_towers}, use_per_session_threads=True)))
  session.run(tf.global_variables_initializer())
  session.run(puts)
  return session.make_callable([loss, update] + puts)


def build_mirrored(opened: contextlib.ExitStack, model: str, batch_size: int, num_towers: int) -> Callable[[], Any]:
  """Returns what takes a step, of MirroredStrategy."""
  import models
  from tensorflow_v1 import tf

  opened.enter_context(tf.Graph().as_default())
  step, _ = open_mirrored(
      opened, models.build_classifier(model, num_classes=NUM_CLASSES), image_shape=IMAGE_SHAPE, dtype='uint8',
      batch_size=batch_size, num_towers=num_towers, optimizer=lambda: tf.train.MomentumOptimizer(LEARNING_RATE, 0.9))
  return step


BUILDERS = {'towers': build_ours, 'by hand': build_by_hand, 'mirrored': build_mirrored}


def measure(model: str, batch_size: int, num_towers: int, *, rounds: int, seconds: float) -> Dict[str, Any]:
  """Returns the median milliseconds of a step, and CPU milliseconds, of each kind."""
  times: Dict[str, List[float]] = {kind: [] for kind in BUILDERS}
  cpu_times: Dict[str, List[float]] = {kind: [] for kind in BUILDERS}
  with contextlib.ExitStack() as opened:
    steps = {}
    for kind, build in BUILDERS.items():
      # Each with a graph of its own as the default one while it is built.
      steps[kind] = build(opened, model, batch_size, num_towers)
    counts = {kind: _count_steps(step, seconds) for kind, step in steps.items()}
    for number in range(rounds):
      for kind in in_turn(list(BUILDERS), number):
        started, used = time.perf_counter(), time.process_time()
        for _ in range(counts[kind]):
          steps[kind]()
        times[kind].append((time.perf_counter() - started) / counts[kind] * 1e3)
        cpu_times[kind].append((time.process_time() - used) / counts[kind] * 1e3)
  from tensorflow_v1 import tf
  return dict(model=model, batch_size=batch_size, num_towers=num_towers, tensorflow_version=tf.__version__,
              milliseconds={kind: statistics.median(found) for kind, found in times.items()},
              cpu_milliseconds={kind: statistics.median(found) for kind, found in cpu_times.items()},
              quartiles={kind: statistics.quantiles(found)[::2] if hasattr(statistics, 'quantiles') else None
                         for kind, found in times.items()})


def _count_steps(step, seconds):
  """Returns how many steps take about so many seconds, after some to warm up."""
  for _ in range(20):
    step()
  started, count = time.perf_counter(), 0
  while time.perf_counter() - started < seconds:
    step()
    count += 1
  return max(count, 3)


def in_turn(kinds: List[str], number: int) -> List[str]:
  """Returns the order of a round, so that each comes first, second and last as often as the others."""
  number %= len(kinds)
  return kinds[number:] + kinds[:number]


def format_line(line: Dict[str, Any]) -> str:
  """Returns a row of the table: milliseconds, and the ratio of the others' to ours."""
  ours = line['milliseconds']['towers']
  cells = ['%s %8.3f ms (%.2f)' % (kind, found, found / ours) for kind, found in line['milliseconds'].items()]
  return '{model:9} {num_towers:>2} x {batch_size:<3} '.format(**line) + '   '.join(cells)


def main() -> None:
  """Prints a row for each model and number of towers."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', default='linear,convnet')
  parser.add_argument('--towers', default='2')
  parser.add_argument('--batch_size', type=int, help='of each tower; by default 1 for linear, else 32')
  parser.add_argument('--rounds', type=int, default=15)
  parser.add_argument('--seconds', type=float, default=0.5, help='of a round')
  parser.add_argument('--json', help='file to write all rows to')
  flags = parser.parse_args()
  lines = []
  for model in flags.models.split(','):
    for num_towers in map(int, flags.towers.split(',')):
      batch_size = flags.batch_size or (1 if model == 'linear' else 32)
      lines.append(measure(model, batch_size, num_towers, rounds=flags.rounds, seconds=flags.seconds))
      print(format_line(lines[-1]), flush=True)
  if flags.json:
    with open(flags.json, 'w', encoding='utf-8') as file:
      json.dump(lines, file, indent=1)
      file.write('\n')


if __name__ == '__main__':
  main()
