"""Measure input: how fast the pipelines are by themselves, and what to do where towers wait for
them.

  input alone: 2 towers, global batch 64, 2 threads on 2 cores
    split       712 examples/s
    next        708 examples/s
    shard       731 examples/s
"""

import time
from typing import Any, Dict

import towers
from tensorflow_v1 import tf
from towers.base.cores import count_cores
from towers.data import DataSet
from towers.input.pipeline import INPUT_MODES
from towers.training.settings.config import Config

_WARM_UP_RUNS = 5
_SECONDS = 3.0
# Below this share of the time, faster input is hardly worth the trouble.
_ADVISE_FROM = 0.1


def measure_input(config: Config, data_set: DataSet, devices: Any, *,
                  seconds: float = _SECONDS) -> Dict[str, float]:
  """Takes batches of the training split in each mode, and does nothing with them.

  Args:
    config: of the run; its input_mode is not asked.
    data_set: its training split is read.
    devices: of the towers.
    seconds: to measure for, in each mode.

  Returns:
    Examples per second by mode.
  """
  speeds = {}
  for mode in INPUT_MODES:
    with tf.Graph().as_default():
      examples = data_set.train
      plan = towers.build_plan(num_examples=examples.num_examples, batch_size=config.batch_size,
                               num_towers=len(devices.names), name=examples.name,
                               drop_remainder=config.drop_remainder, accumulate=config.accumulate)
      inputs = towers.build_inputs(examples, plan=plan, mode=mode, shuffle=config.shuffle,
                                   seed=config.seed, parallel_calls=config.input_threads)
      batches = inputs.next_batches()
      # Fetching the tensors would copy them once more.
      there = tf.group(*[tensor for batch in batches for tensor in tf.nest.flatten(batch.tensors)])
      with tf.control_dependencies([there]):
        num_examples = tf.add_n([tf.convert_to_tensor(batch.num_examples) for batch in batches])
      with tf.Session(config=towers.build_session_config(devices)) as session:
        session.run(inputs.initializer, inputs.feed_dict(0))
        take = session.make_callable(num_examples)
        for _ in range(_WARM_UP_RUNS):
          take()
        started, taken = time.monotonic(), 0
        while time.monotonic() - started < seconds:
          taken += int(take())
        speeds[mode] = taken / (time.monotonic() - started)
  return speeds


def format_speeds(config: Config, num_towers: int, speeds: Dict[str, float]) -> str:
  """Returns the table at the top of this file."""
  lines = [f"input alone: {num_towers} tower{'' if num_towers == 1 else 's'}, global batch "
           f"{config.batch_size:,}, {config.input_threads or count_cores()} threads on "
           f"{count_cores()} cores"]
  return '\n'.join(lines +
                   [f'  {mode:5}  {speed:>12,.0f} examples/s' for mode, speed in speeds.items()])


def advise(config: Config, waited: float, needs_threads: bool = True) -> str:
  """Returns what may help towers that waited for input, or '' where they hardly did.

  Args:
    config: of the run.
    waited: the share of the training time, 0 to 1.
    needs_threads: whether the input does, see `towers.Inputs`.
  """
  if waited < _ADVISE_FROM:
    return ''
  cores = count_cores()
  threads = config.input_threads or cores
  ways = []
  if config.staging_depth == 0:
    ways.append('staging_depth=1 makes the next batch while the towers compute')
  if not needs_threads:
    ways.append('a larger batch_size, since steps are so short that taking rows out of arrays is '
                'not')
  elif threads < cores:
    ways.append(f'input_threads={cores} uses all cores, where it is {threads}')
  else:
    ways.append(f'all {cores} cores decode already: input_threads={2 * threads} helps only where '
                'disks are what is waited for, otherwise more cores or smaller images do')
  if config.data == 'images':
    ways.append('python -m towers.data.convert makes few large files of many small ones')
  ways.append('--input_only measures the input alone, in every mode')
  return f"the towers waited for input {waited:.0%} of the time. What may help: {'; '.join(ways)}."
