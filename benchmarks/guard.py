"""The cost of the guard against NaN and Inf: steps with and without it, taken in turns.

  python -m benchmarks.guard                      # convnet, 2 towers of 32 images; about a minute
  python -m benchmarks.guard --model=resnet20 --rounds=20
"""

import argparse
import statistics
import time

from benchmarks.harness.flags import at_least, one_of
from models import MODELS

NUM_EXAMPLES = 4096


def build(model: str, batch_size: int, num_towers: int, guard: bool):
  """Builds a program in its own graph; returns a function that times a number of its steps."""
  import models
  import towers
  from tensorflow_v1 import tf
  from towers import data

  with tf.Graph().as_default():
    devices = towers.build_devices(num_towers, 'cpu')
    examples = data.load_synthetic(num_train=NUM_EXAMPLES, image_shape=(28, 28, 1)).train
    plan = towers.build_plan(num_examples=NUM_EXAMPLES, batch_size=batch_size,
                             num_towers=num_towers)
    feed = towers.build_feed(towers.build_inputs(examples, plan=plan, seed=0),
                             devices=devices.names)
    store = towers.build_variable_store(devices=devices.names)
    reduced = towers.average_gradients(
        towers.build_towers(models.build_classifier(model, num_classes=10),
                            towers.build_batches(feed), devices=devices.names, store=store))
    train_op = towers.build_train_op(reduced, optimizer=tf.train.MomentumOptimizer(0.01, 0.9),
                                     guard=guard)
    session = tf.Session(config=towers.build_session_config(devices))
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    feed.start(session)
    step = session.make_callable([reduced.loss, train_op])

  def take(num_steps: int):
    started, used = time.perf_counter(), time.process_time()
    for _ in range(num_steps):
      step()
    return (time.perf_counter() - started) / num_steps, (time.process_time() - used) / num_steps

  take(10)
  return take


def main() -> None:
  """Prints the medians and their ratio."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', type=one_of(MODELS), default='convnet')
  parser.add_argument('--batch_size', type=at_least(1), default=64)
  parser.add_argument('--num_towers', type=at_least(1), default=2)
  parser.add_argument('--rounds', type=at_least(1), default=40)
  parser.add_argument('--steps', type=at_least(1), default=15, help='of a round')
  flags = parser.parse_args()
  takes = [build(flags.model, flags.batch_size, flags.num_towers, guard) for guard in (False, True)]
  taken: list = [[], []]
  for round_index in range(flags.rounds):
    # They take turns at going first, so that neither always follows the other.
    for index in ((0, 1) if round_index % 2 else (1, 0)):
      taken[index].append(takes[index](flags.steps))
  print(f'{flags.model}, {flags.batch_size} examples on {flags.num_towers} towers, {flags.rounds} '
        f'rounds of {flags.steps} steps:')
  # Other processes slow the clock's seconds down, but hardly this process's CPU seconds.
  for kind, name in enumerate(('time', 'CPU time')):
    without, guarded = ([figures[kind] for figures in figure] for figure in taken)
    ratios = sorted(after / before for before, after in zip(without, guarded))
    print(f'  {name:9} {statistics.median(without) * 1e3:7.3f} ms a step without, '
          f'{statistics.median(guarded) * 1e3:7.3f} ms with the guard; ratio of rounds: '
          f'median {statistics.median(ratios):.4f}, quartiles {ratios[len(ratios) // 4]:.4f} and '
          f'{ratios[3 * len(ratios) // 4]:.4f}; of the fastest {min(guarded) / min(without):.4f}')


if __name__ == '__main__':
  main()
