"""Measure input: how fast each input mode is without towers.

  input alone: 2 towers, global batch 64, 2 threads on 2 cores
    split       712 examples/s
    next        708 examples/s
    shard       731 examples/s
"""

import time
from typing import Dict, Optional

from towers.base.cores import count_cores
from towers.base.output import write_line
from towers.data import Examples
from towers.input.pipeline import INPUT_MODES, build_inputs
from towers.input.plan import build_plan
from towers.placement.devices import Devices, build_session_config
from towers.tensorflow_v1 import tf

_WARM_UP_BATCHES = 5
_SECONDS = 3.0


def measure_input(examples: Examples, devices: Devices, *, batch_size: int,
                  accumulate: int = 1, last_batch: str = 'keep', shuffle: bool = True,
                  seed: int = 0, input_threads: Optional[int] = None,
                  seconds: float = _SECONDS) -> Dict[str, float]:
  """Takes batches in each mode, and does nothing with them; writes the table above.

  Returns examples per second by mode.
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
  write_line(format_speeds(speeds, num_towers=len(devices.names), batch_size=batch_size,
                           input_threads=input_threads))
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
