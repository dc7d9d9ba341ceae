"""Find batch: the largest batch per tower that the memory of its device holds.

  the program, built once ──► estimate for 1, 2, 4 … examples ──► the largest that fits
                                                                        │
  two steps of it in a process of its own, with no more memory than that ◄──┐
                       │                                                    │
                       └── fits: a little more; does not fit: a little less ┘

The estimate knows no workspace of GPU kernels, and pools of memory have gaps. So nothing is said to
fit that has not run, and nothing not to fit that has not failed.
"""

import dataclasses
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from tensorflow_v1 import tf
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.input.micro_batches import read_accumulate
from towers.placement.devices import Devices
from towers.training.settings.config import Config
from towers.training.stepping.memory import Memory, MemoryModel
from towers.training_graph import TrainingGraph
from towers_tools.room import Room, find_room
from towers_tools.timed_trial import TimedTrial, run_trial

_TRIAL_STEPS = 2
# The result is no smaller than what fits by more than this part of it.
_PRECISION = 16
# How a trial ends that finds no room. By signal 9 Linux ends what takes the last of its memory, and
# some kernels do not ask whether they got any.
_NO_ROOM = ('Out of memory', 'ended by signal 6', 'ended by signal 9', 'ended by signal 11')


class FoundBatch(NamedTuple):
  """The largest batch.

  Attributes:
    rows: examples per tower, of a micro-batch.
    num_towers: that take as many.
    accumulate: micro-batches in a step.
    memory: estimated for it.
    room: that towers have.
    beyond: examples per tower that did not fit; None if the data has no more.
  """
  rows: int
  num_towers: int
  accumulate: int
  memory: Memory
  room: Room
  beyond: Optional[int]

  @property
  def batch_size(self) -> int:
    """The global batch."""
    return self.rows * self.num_towers * self.accumulate

  def describe(self) -> str:
    """Returns the result in words."""
    micro = f' x {self.accumulate} micro-batches' if self.accumulate > 1 else ''
    towers = f"{self.num_towers} tower{'' if self.num_towers == 1 else 's'}"
    why = ('the data has no more examples' if self.beyond is None else
           f'{self.beyond:,} per tower did not fit')
    return (f'largest batch: {self.rows:,} per tower x {towers}{micro} = {self.batch_size:,} '
            f'global: --batch_size={self.batch_size}\n  {_TRIAL_STEPS} steps of it have run; {why}'
            f'\n  {self.room.describe()}; estimated for tower 0: {self.memory.describe()}')

  def as_result(self) -> Dict[str, Any]:
    """Returns the result as `--result_file` holds it."""
    return dict(batch_size=self.batch_size, examples_per_tower=self.rows,
                too_many_per_tower=self.beyond, num_towers=self.num_towers,
                accumulate=self.accumulate, estimated_bytes=self.room.count_taken(self.memory),
                memory_bytes=self.room.num_bytes)


def find_batch(config: Config, build: Callable[[Config], TrainingGraph], devices: Devices, *,
               num_examples: int, command: Sequence[str]) -> FoundBatch:
  """Returns the largest batch whose steps have run.

  Args:
    config: of the run.
    build: makes a config's program in the default graph.
    devices: of the towers.
    num_examples: of the training split.
    command: starts the program again.

  Raises:
    UsageError: the memory is unknown, a tensor's size is, not even one example fits, or the program
      does not run for another reason.
  """
  room = find_room(config, devices)
  # With only one device for both, the program says what is wrong.
  num_towers = max(len(devices.names) - (config.validation == 'tower'), 1)
  accumulate = read_accumulate(config.accumulate)
  parts = num_towers * accumulate
  most = num_examples // parts
  if not most:
    raise UsageError(f'find_batch: {parts} towers and micro-batches take at least one example each,'
                     f' and there are {num_examples}: use fewer.')

  with tf.Graph().as_default():
    sized = dataclasses.replace(config, accumulate=accumulate, last_batch='keep',
                                batch_size=_open_size(num_examples, parts))
    estimate = _estimator(MemoryModel(build(sized)), num_towers)
  rows = search(lambda rows: room.holds(estimate(rows)), most)
  if not rows:
    raise UsageError(
        f'find_batch: one example per tower is estimated to take {estimate(1).describe()} on tower '
        f'0, and {room.describe()}. Try --recompute=auto, --precision=mixed, or towers with more '
        'memory.')
  write_line(f'find_batch: {room.describe()}; {rows:,} examples per tower are estimated to fit. '
             'Processes of their own take steps of that many, and of a little more or less')

  changes, environment = room.enforce(estimate(rows), num_towers)
  changes.update(accumulate=accumulate, num_gpus=num_towers, on_nan='skip')

  def run(rows):
    return run_trial(config, dict(changes, batch_size=rows * parts), command=command,
                     steps=_TRIAL_STEPS, environment=environment)

  rows, beyond = settle(rows, most, run)
  return FoundBatch(rows, num_towers, accumulate, estimate(rows), room, beyond)


def _open_size(num_examples, parts):
  """Returns a batch size that leaves the number of rows open in the graph: one that does not divide
  the examples of an epoch."""
  for factor in range(1, num_examples // parts + 1):
    if num_examples % (factor * parts):
      return factor * parts
  raise UsageError(f'find_batch: {num_examples} examples are too few, since {parts} towers and '
                   'micro-batches take all of them in any number of steps: use more examples.')


def _estimator(model, num_towers) -> Callable[[int], Memory]:
  def estimate(rows):
    memory = model.estimate(rows * num_towers)
    if memory.unknown:
      raise UsageError('find_batch: the sizes of some tensors depend on their values, so the '
                       f'memory is not known before a run; the first is {memory.unknown[0]}. Give '
                       'tensors static shapes but for the batch, or try batch sizes by hand.')
    return memory
  return estimate


def search(fits: Callable[[int], bool], most: int) -> int:
  """Returns the largest number up to `most` that fits, 0 if not even 1 does."""
  least, beyond = 0, 1
  while beyond <= most and fits(beyond):
    least, beyond = beyond, 2 * beyond
  beyond = min(beyond, most + 1)
  while beyond - least > 1:
    middle = (least + beyond) // 2
    least, beyond = (middle, beyond) if fits(middle) else (least, middle)
  return least


def settle(rows: int, most: int, run: Callable[[int], TimedTrial]) -> Tuple[int, Optional[int]]:
  """Returns the most rows that have run, and the fewest that have not; None if `most` rows have.

  It goes on from `rows` in growing steps, the first of an eighth, and then halves the gap.

  Raises:
    UsageError: the program does not run, for a reason other than memory or with any rows.
  """
  best, beyond = 0, most + 1
  step = max(rows // 8, 1)
  while True:
    trial = run(rows)
    if not trial.error:
      best = rows
    else:
      reason = trial.error.partition('. ')[0]
      if not best and not any(words in trial.error for words in _NO_ROOM):
        raise UsageError(f'find_batch: the settings as they are do not run: {trial.error}')
      if rows == 1:
        raise UsageError(f'find_batch: not even 1 example per tower fits: {reason}')
      write_line(f'find_batch: {rows:,} examples per tower do not fit: {reason}')
      beyond = rows

    if beyond - best <= max(best // _PRECISION, 1):
      return best, beyond if beyond <= most else None
    if best and beyond <= most:
      rows = (best + beyond) // 2
    elif best:
      rows = min(best + step, most)
    else:
      rows = max(beyond - step, beyond // 2, 1)
    step *= 2
