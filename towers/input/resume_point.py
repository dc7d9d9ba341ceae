"""The resume point: with which example a run goes on, and in which order, as checkpoints record it.

A run that resumes in the middle of an epoch takes each example once if the rest of the epoch comes
in the order in which it began. Modes, towers, workers and micro-batches do not change that order;
the seed does, and so would another permutation in another version of towers.
"""

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.splitmix import as_int64

# The name of a tensor in checkpoints that belongs to no variable: the values of an `Order`.
ORDER_TENSOR = 'towers/order'
# The same: the batch size, and epoch, position and cuts of the `ResumePoint`, int64 `[3 + …]`.
POINT_TENSOR = 'towers/point'
# The same; it is there where the rest of an epoch is carried.
CARRY_TENSOR = 'towers/carry'
# Raise it with every change of `permutation`.
_ORDER_VERSION = 1


class ResumePoint(NamedTuple):
  """Where a run stands in its data between two steps.

  Attributes:
    step: how many steps are done.
    examples: how many examples they have seen.
    epoch, position: of the next example, in the order of the epoch, from 0. Behind its last
      position are the first ones of the next epoch.
    cuts: of the epoch before that position, see `Plan.cuts_of`, one behind another; none if its
      batches have all had the size that they have now.
  """
  step: int = 0
  examples: int = 0
  epoch: int = 0
  position: int = 0
  cuts: Sequence[int] = ()


class Order(NamedTuple):
  """The order of all epochs."""
  seed: Optional[int]  # Of the shuffling; None for the order of the examples.
  shuffle_buffer: int = 0  # Elements that shuffle in a buffer; 0 where positions are permuted.
  version: int = _ORDER_VERSION  # Of the way in which positions are permuted.
  window: int = 0  # Examples that are sorted by length, or dealt by parts, together; 0 for any.
  lengths: int = 0  # The checksum of their lengths, or of the mixture; 0 without either.
  first: int = 0  # Of the first element, where elements have no index; 0 where it is not known.

  def to_array(self) -> np.ndarray:
    """Returns what a checkpoint holds, int64 `[4]`, or `[7]` with more than a seed and a buffer."""
    is_shuffled = self.seed is not None
    values = [self.version, is_shuffled, as_int64(self.seed or 0), self.shuffle_buffer]
    more = [self.window, self.lengths, self.first]
    return np.array(values + (more if any(more) else []), np.int64)

  @staticmethod
  def from_array(values: Sequence[int]) -> 'Order':
    """Returns the order from the values of `to_array`."""
    version, is_shuffled, seed, shuffle_buffer, *buckets = (int(value) for value in values)
    return Order(seed if is_shuffled else None, shuffle_buffer, version, *buckets)

  def is_same(self, other: 'Order') -> bool:
    """Whether epochs come in the same order, whatever version permutes what is not shuffled."""
    if self.has_other_first(other):
      return False
    grouped = self.window or self.lengths or other.window or other.lengths
    if not grouped and None in (self.seed, other.seed):
      return self.seed is other.seed
    mine, others = [order._replace(first=0).to_array().tolist() for order in (self, other)]
    return mine == others

  def has_other_first(self, other: 'Order') -> bool:
    """Whether the elements come in another order before any shuffling, as their first one tells."""
    return self.first != other.first and 0 not in (self.first, other.first)

  def describe(self) -> str:
    """Returns the order in words."""
    sorted_in = (f', in windows of {self.window:,} examples by length or part'
                 if self.window else '')
    if self.lengths:
      sorted_in += f' (checksum {self.lengths})'
    if self.seed is None:
      return 'not shuffled' + sorted_in
    by = f' by a buffer of {self.shuffle_buffer:,}' if self.shuffle_buffer else ''
    return f'shuffled{by} with seed={self.seed}{sorted_in}'


def read_point(reader: Any, plan: Any, step: int, examples: int,
               is_new: bool = False) -> Tuple[ResumePoint, int]:
  """Returns where a checkpoint's data stood after so many steps and examples, and its batch size.

  One that does not record it, or has other data than a run whose `is_new`, is taken for one of the
  plan's batch size. `Plan.resumed_at` goes on from there.
  """
  if is_new or not reader.has_tensor(POINT_TENSOR):
    return plan.point_of(step, examples), plan.batch_size
  batch_size, epoch, position, *cuts = reader.get_tensor(POINT_TENSOR).tolist()
  return ResumePoint(step, examples, epoch, position, cuts), batch_size


def explain_batch_size(was: int, plan: Any) -> str:
  """Returns what it means that a plan resumes after steps `was` examples large; '' for no other."""
  if was == plan.batch_size:
    return ''
  step, examples, epoch, *_ = plan.since
  return (f'batch_size was {was} up to step {step} and is now {plan.batch_size}: epoch {epoch + 1} '
          f'goes on behind the {examples:,} examples seen, each once. What is given in steps, as a '
          f'schedule of global_step, gets {plan.batch_size / was:g} times the examples in each; '
          'what counts epochs or examples goes on with these.')


def explain_order(path: str, *, plan: Any, order: Order, saved: Optional[Order]) -> str:
  """Returns why a plan that has resumed would miss examples, or '' where it takes each once.

  `order` is of this run, `saved` of the checkpoint: None if it records none, as from versions that
  shuffled every shard on its own.
  """
  done = plan.since.position
  is_same = (saved or Order(None)).is_same(order)
  if done == 0 or is_same:
    return ''
  if saved is None:
    was = 'in an order that it does not record, as those of earlier versions of towers'
    fix = 'resume with the version that wrote it until the epoch ends'
  else:
    was, fix = saved.describe(), 'resume with the settings that it was written with'
    if saved.has_other_first(order):
      was += ', from a data set with another first element'
      fix = 'give the data set the order that it had, as of sorted files'
    if saved.version != order.version:
      was, fix = f'{was}, by another version of towers', 'resume with that version'
  return (f'{path} was written in the middle of an epoch, after {done:,} of its '
          f'{plan.num_examples:,} examples, {was}; this run is {order.describe()}. The rest of the '
          'epoch takes some examples twice and misses others; later epochs take each once. To lose '
          f'none, {fix}.')
