"""Measure input: how fast each input mode is without towers, and advice for towers that wait.

  input alone: 2 towers, global batch 64, 2 threads on 2 cores
    split       712 examples/s
    next        708 examples/s
    shard       731 examples/s
"""

import time
from typing import Dict, Optional

from tensorflow_v1 import tf
from towers.base.cores import count_cores
from towers.data import Examples
from towers.input.pipeline import INPUT_MODES, build_inputs
from towers.input.plan import build_plan
from towers.placement.devices import Devices, build_session_config

_WARM_UP_BATCHES = 5
_SECONDS = 3.0
# Below this share of the time, faster input gains little.
_ADVISE_FROM = 0.1


def measure_input(examples: Examples, devices: Devices, *, batch_size: int,
                  accumulate: int = 1, last_batch: str = 'keep', shuffle: bool = True,
                  seed: int = 0, input_threads: Optional[int] = None,
                  seconds: float = _SECONDS) -> Dict[str, float]:
  """Takes batches in each mode, and does nothing with them.

  Args:
    examples: of the training split.
    devices: of the towers.
    batch_size: of the global batch.
    accumulate: micro-batches in a global batch.
    last_batch: of an epoch, as for `build_plan`.
    shuffle: whether to shuffle each epoch.
    seed: of the shuffling.
    input_threads: examples parsed at a time; None for one on each core.
    seconds: to measure each mode.

  Returns:
    Examples per second by mode.
  """
  plan = build_plan(
      num_examples=examples.num_examples, batch_size=batch_size, num_towers=len(devices.names),
      name=examples.name, last_batch=last_batch, accumulate=accumulate)
  speeds = {}
  for mode in INPUT_MODES:
    with tf.Graph().as_default():
      inputs = build_inputs(examples, plan=plan, mode=mode, shuffle=shuffle, seed=seed,
                            parallel_calls=input_threads)
      with tf.Session(config=build_session_config(devices)) as session:
        speeds[mode] = _measure_speed(session, inputs, seconds)
  return speeds


def _measure_speed(session, inputs, seconds):
  batches = inputs.next_batches()
  # Fetching the tensors themselves would copy them once more.
  taken = tf.group(*[tensor for batch in batches for tensor in tf.nest.flatten(batch.tensors)])
  with tf.control_dependencies([taken]):
    num_taken = tf.add_n([tf.convert_to_tensor(batch.num_examples) for batch in batches])
  session.run(inputs.initializer, inputs.feed_dict(0))
  take = session.make_callable(num_taken)
  for _ in range(_WARM_UP_BATCHES):
    take()

  num_examples, started = 0, time.monotonic()
  while time.monotonic() - started < seconds:
    num_examples += int(take())
  return num_examples / (time.monotonic() - started)


def format_speeds(speeds: Dict[str, float], *, num_towers: int, batch_size: int,
                  input_threads: Optional[int] = None) -> str:
  """Returns the table at the top of this file."""
  cores = count_cores()
  plural = '' if num_towers == 1 else 's'
  lines = [f'input alone: {num_towers} tower{plural}, global batch {batch_size:,}, '
           f'{input_threads or cores} threads on {cores} cores']
  lines += [f'  {mode:5}  {speed:>12,.0f} examples/s' for mode, speed in speeds.items()]
  return '\n'.join(lines)


def advise(waited: float, *, input_threads: Optional[int] = None, staging_depth: int = 1,
           is_image_folder: bool = False, needs_threads: bool = True) -> str:
  """Returns what may help towers that waited for input, or '' if they hardly did.

  Args:
    waited: the share of the training time, 0 to 1.
    input_threads: examples parsed at a time; None for one on each core.
    staging_depth: batches that wait in each staging area.
    is_image_folder: whether each example is a file.
    needs_threads: whether the input does, see `towers.Inputs`.
  """
  if waited < _ADVISE_FROM:
    return ''
  cores = count_cores()
  threads = input_threads or cores
  ways = []
  if staging_depth == 0:
    ways.append('staging_depth=1 makes the next batch while the towers compute')
  if not needs_threads:
    ways.append('a larger batch_size, since taking rows out of arrays is slow beside such short '
                'steps')
  elif threads < cores:
    ways.append(f'input_threads={cores} uses all cores, where it is {threads}')
  else:
    ways.append(f'all {cores} cores decode already: input_threads={2 * threads} helps only if '
                'disks are slow, otherwise more cores or smaller images do')
  if is_image_folder:
    ways.append('python -m towers.data.convert makes few large files of many small ones')
  ways.append('--input_only measures the input alone, in every mode')
  return f"the towers waited for input {waited:.0%} of the time. What may help: {'; '.join(ways)}."
