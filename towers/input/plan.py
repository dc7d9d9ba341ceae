"""The plan: which examples each step and each tower takes, in plain Python, before anything runs.

The input pipeline, the staging areas, a resumed run and the progress bar must agree, so all of them
count by the plan. It cuts an epoch into global batches, and these over the towers:

  epoch          0 1 2 3 4 5 6 7 │ 8 9 10 11 12    13 examples, global batches of 8
  split, next    012 345 67      │ 89 1011 12      cut in parts of 3/3/2, then 2/2/1
  shard          036 147 25      │ 811 912 10      dealt out in turn: tower i reads only its shard

These are positions in an epoch. The example at a position is the one of this number, or, shuffled,
the one that the epoch's permutation has there. Position k goes to global batch k // 8 in any case,
and its place there, k % 8, decides to which tower.

The last batch of an epoch is smaller when the sizes do not divide; a tower may then even get
nothing. `last_batch` says whether it is taken as it is, filled up, left out, or carried: then all
batches are full, cut out of the epochs as if these were one.

A run may resume with another batch size, from any place of an epoch. Batches are then cut from that
place on, in the sizes that the graph is built for, so that an epoch may end within a batch:

  epoch          0 1 2 3 4 5 │ 6 7 8 9 10 11 12 0 │ 1 2 3 4 5 6 7 8 │ 9 10 11 12 0    6, then 8

Several workers, each with its towers, share every global batch as the towers of `shard` do: place i
of a batch goes to worker i modulo their number, and there to a tower by the input mode.

A *step* is one weight update, from one global batch. Where gradients accumulate, the global batch
is cut into several *micro-batches*, each over all towers and in a session.run of its own.
"""

import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from towers.base.usage_error import UsageError, check_choice
from towers.data.examples import BY_HAND, ENDLESS, Buckets, Mixture
from towers.input.epoch_order.buckets import order_by_length
from towers.input.epoch_order.mixing import order_by_parts
from towers.input.epoch_order.permutation import permute
from towers.input.resume_point import ResumePoint

# As it is; filled up with rows that do not count, so that shapes are static; left out; filled up
# with the next epoch's first examples.
LAST_BATCHES = ('keep', 'pad', 'drop', 'carry')


class Span(NamedTuple):
  """What is taken of an epoch."""
  epoch: int  # From 0.
  position: int  # Of the first example, in the epoch.
  end: int  # The position behind the last one.
  # The examples between the first and the beginning of a batch, maybe of an earlier epoch.
  place: int = 0


class Plan(NamedTuple):
  """How the examples of one split are dealt out to steps and towers.

  Attributes:
    num_examples: examples in an epoch.
    batch_size: the global batch, over all towers of all workers.
    num_towers: towers of this worker.
    last_batch: of an epoch, if it is smaller, one of `LAST_BATCHES`.
    accumulate: micro-batches of a full global batch.
    num_workers: workers that share each global batch, each with as many towers.
    rank: of this worker, from 0.
    since: where steps of this size begin; a run that has resumed begins there.
  """
  num_examples: int
  batch_size: int
  num_towers: int
  last_batch: str = 'keep'
  accumulate: int = 1
  num_workers: int = 1
  rank: int = 0
  since: ResumePoint = ResumePoint()

  @property
  def is_endless(self) -> bool:
    """Whether the examples are a stream, without epochs."""
    return self.num_examples >= ENDLESS

  @property
  def is_by_hand(self) -> bool:
    """Whether each batch is given to a call, and may have any size unless all are full."""
    return self.num_examples == BY_HAND

  @property
  def carries(self) -> bool:
    """Whether the rest of an epoch goes into the next one's first batch."""
    return self.last_batch == 'carry'

  @property
  def micro_batch_size(self) -> int:
    """Examples of a micro-batch, over all towers; the last one of an epoch may have fewer."""
    return self.batch_size // self.accumulate

  @property
  def steps_per_epoch(self) -> int:
    """Steps that cover an epoch once; where the rest is carried, often one fewer does."""
    full, remainder = divmod(self.num_examples, self.batch_size)
    return full + (remainder > 0 and self.last_batch != 'drop')

  @property
  def examples_per_epoch(self) -> int:
    """Examples that the steps of an epoch take: all, unless the last batch is dropped."""
    return min(self.num_examples, self.steps_per_epoch * self.batch_size)

  @property
  def is_even(self) -> bool:
    """Whether every micro-batch has `micro_batch_size` examples, so that shapes are static."""
    return self.carries or (not self.is_by_hand and
                            self.examples_per_epoch % self.micro_batch_size == 0)

  @property
  def is_static(self) -> bool:
    """Whether every batch of a tower has one size, and the graphs of all workers are alike."""
    return self.is_even and self.micro_batch_size % self.num_workers == 0

  @property
  def num_rows(self) -> int:
    """Rows of a tower's batch that is filled up: the largest share of a micro-batch."""
    return -(-self.micro_batch_size // (self.num_workers * self.num_towers))

  @property
  def may_leave_a_tower_empty(self) -> bool:
    """Whether the last micro-batch of an epoch has fewer examples than there are towers."""
    return not self.is_even and (
        self.examples_per_epoch % self.micro_batch_size < self.num_workers * self.num_towers)

  @property
  def shift(self) -> int:
    """How far into the next epoch the last batch of an epoch goes, unless the rest is carried.

    A graph takes batches of two sizes, and so the rest of the epoch in which the run has resumed
    may have to end in the next one; all later ones do so too.
    """
    size, position = self.micro_batch_size, self.since.position
    is_left_out = self.carries or self.last_batch == 'drop'
    fits = (self.num_examples - position) % size in (0, self.num_examples % size)
    return 0 if is_left_out or fits else position % size

  @property
  def end(self) -> int:
    """The position behind the last one that is taken in the epoch in which the run has resumed."""
    left = self.num_examples + self.shift - self.since.position
    return self.since.position + (
        left // self.batch_size * self.batch_size if self.last_batch == 'drop' else left)

  def cuts_of(self, epoch: int) -> Tuple[Tuple[int, int, int], ...]:
    """Returns begin and end, in positions, and batch size of what is grouped by itself of an epoch.

    These are the rest that comes in batches of another size, and what the last batches of the
    epoch before take; each goes on behind the one before it.
    """
    size, since, end = self.batch_size, self.since, min(self.end, self.num_examples)
    if epoch == since.epoch:
      cuts = [*zip(since.cuts[::3], since.cuts[1::3], since.cuts[2::3])] or [(0, end, size)]
      return (*cuts,) if cuts[-1][1:] == (end, size) else (*cuts, (since.position, end, size))
    begin = since.position if epoch == since.epoch + 1 else self.shift
    first = min((begin - self.num_examples) % size, self.shift)
    later = [(0, first, first), (first, self.shift, self.shift - first),
             (self.shift, self.examples_per_epoch, size)]
    return tuple(cut for cut in later if cut[2])

  @property
  def start(self) -> List[int]:
    """The numbers that say where steps of this size begin: epoch, position and cuts."""
    return [self.since.epoch, self.since.position, *self.since.cuts]

  def started_at(self, start: Sequence[int]) -> 'Plan':
    """Returns the plan of steps that begin where the `start` of another one says."""
    epoch, position, *cuts = map(int, start)
    return self._replace(since=ResumePoint(0, 0, epoch, position, cuts))

  @property
  def offset(self) -> int:
    """What step 0 would have taken already, maybe negative, had all steps been of `batch_size`."""
    step, _, epoch, position, _ = self.since
    if self.carries:
      return epoch * self.num_examples + position - step * self.batch_size
    left = -(-(self.end - position) // self.batch_size)
    return ((epoch + 1) * self.steps_per_epoch - left - step) * self.batch_size

  def epoch_and_index(self, step: int) -> Tuple[int, int]:
    """Returns the epoch of a step's first example, and the step's index in it, all from 0."""
    if self.carries:
      epoch, position = divmod(self.offset + step * self.batch_size, self.num_examples)
      return epoch, -(-position // self.batch_size)
    return divmod(step + self.offset // self.batch_size, self.steps_per_epoch)

  def point_at(self, step: int) -> ResumePoint:
    """Returns where a run stands before a step."""
    if self.carries:
      epoch, position = divmod(self.offset + step * self.batch_size, self.num_examples)
    else:
      epoch, index = self.epoch_and_index(step)
      position = self.shift + index * self.batch_size
      if epoch == self.since.epoch:
        position = self.since.position + (step - self.since.step) * self.batch_size
    cuts = [cut for cut in self.cuts_of(epoch) if cut[0] < position]
    return ResumePoint(step, self.examples_before(step), epoch, position, sum(cuts, ()))

  def resumed_at(self, point: ResumePoint) -> 'Plan':
    """Returns the plan of a run that resumes where one of any batch size has stood."""
    plan = self._replace(since=point)
    while plan.since.position >= self.num_examples + plan.shift:
      position = plan.since.position - self.num_examples
      plan = self._replace(since=plan.since._replace(
          epoch=plan.since.epoch + 1, position=position, cuts=(0, position, position)))
    return plan

  def point_of(self, step: int, examples: int) -> ResumePoint:
    """Returns where a run of this batch size stands after so many steps and examples."""
    epoch, position = divmod(examples, self.examples_per_epoch)
    if self.carries:
      return ResumePoint(step, examples, epoch, position)
    done = epoch * self.steps_per_epoch + -(-position // self.batch_size)
    # Fewer are done where damaged records were left out.
    epoch, index = divmod(max(done, step), self.steps_per_epoch)
    return ResumePoint(step, examples, epoch, index * self.batch_size)

  def spans(self, later: int) -> List[Span]:
    """Returns what the batches of an epoch take, of this epoch and maybe of the next one.

    It is the epoch that is `later` by so many than the one in which steps of this size begin.
    """
    since, size = self.since, self.num_examples
    epoch = since.epoch + later
    if self.carries:
      position = 0 if later else since.position
      return [Span(epoch, position, size, max(later * size - since.position, 0))]
    position, end = since.position, self.end
    if later:
      position, end = self.shift, self.shift + self.examples_per_epoch
    spans = [Span(epoch, position, min(end, size)),
             Span(epoch + 1, max(position - size, 0), end - size, max(size - position, 0))]
    return [span for span in spans if span.position < span.end]

  def size_at(self, step: int) -> int:
    """Returns the number of examples in the global batch of a step."""
    return self.examples_before(step + 1) - self.examples_before(step)

  def num_micro_batches(self, step: int) -> int:
    """Returns the number of micro-batches of a step."""
    return -(-self.size_at(step) // self.micro_batch_size)

  def examples_before(self, step: int) -> int:
    """Returns the number of examples of all steps before this one, all epochs together."""
    since = self.since
    if self.carries:
      return since.examples + (step - since.step) * self.batch_size
    epoch, index = self.epoch_and_index(step)
    # Whole epochs behind the one in which the run has resumed.
    later = (epoch - since.epoch - 1) * self.examples_per_epoch + index * self.batch_size
    is_later = epoch > since.epoch
    return since.examples + is_later * (self.end - since.position + later) + (
        1 - is_later) * (step - since.step) * self.batch_size

  def steps_in(self, epochs: float) -> int:
    """Returns the steps of so many epochs from the first step on, rounded; at least 1.

    Where the rest is carried, the last step is the one that ends the last epoch.
    """
    if self.is_endless:
      raise UsageError(f'{epochs:g} epochs of a stream, which has none: count in steps, as '
                       'steps=1000.')
    if self.carries:
      return max(1, math.ceil((epochs * self.num_examples - self.offset) / self.batch_size))
    return max(1, round(epochs * self.steps_per_epoch) - self.offset // self.batch_size)

  def order(self, *, seed: Optional[int] = None, buckets: Union[Buckets, Mixture, None] = None
            ) -> Callable[..., np.ndarray]:
    """Returns a function from positions, int64 `[n]`, and an epoch to the examples there, int64.

    It also takes the `start` of a plan that has resumed.
    `seed` is that of the shuffling, None for the order of the examples.
    """
    if buckets is None:
      return lambda positions, epoch, start=None: positions if seed is None else permute(
          positions, size=self.num_examples, seed=seed, epoch=epoch)
    take = order_by_parts(buckets, seed=seed) if isinstance(buckets, Mixture) else order_by_length(
        buckets, num_examples=self.num_examples, seed=seed)

    def order(positions, epoch, start=None):
      plan = self if start is None else self.started_at(start)
      return take(positions, int(epoch), plan.cuts_of(int(epoch)))

    return order

  def indices_at(self, step: int, *, seed: Optional[int] = None,
                 buckets: Union[Buckets, Mixture, None] = None) -> np.ndarray:
    """Returns the examples of a step's global batch, in the order of positions, int64 `[size]`.

    It is the same for any input mode and number of towers, workers and micro-batches.

    Steps count from 0, all epochs together; for the rest see `order`.
    """
    point = self.point_at(step)
    positions = point.position + np.arange(self.size_at(step), dtype=np.int64)
    epochs, positions = np.divmod(positions, self.num_examples)
    order = self.order(seed=seed, buckets=buckets)
    return np.concatenate([order(positions[epochs == epoch], point.epoch + epoch)
                           for epoch in range(epochs[0], epochs[-1] + 1)])

  def shares(self, size: int) -> List[int]:
    """Returns the share of each tower of this worker in a micro-batch of `size` examples.

    8 over 3 towers of one worker is [3, 3, 2].
    """
    size = dealt(size, self.rank, self.num_workers)
    return [dealt(size, tower, self.num_towers) for tower in range(self.num_towers)]


def dealt(count: Any, shard: Any, num_shards: int) -> Any:
  """Returns how many of the first `count` examples are dealt to `shard`, or to each of an array."""
  return (num_shards - 1 - shard + count) // num_shards


class Shard(NamedTuple):
  """What one iterator reads: every `num_shards`-th place of a micro-batch, from `position` on.

  Functions take and return ints or tensors.
  """
  position: int  # Of the shard, from 0.
  num_shards: int  # Of all workers together.
  batch_size: int  # Of a micro-batch.
  takes_turns: bool = False  # Whether the towers of a worker take their batches from it in turn.

  @property
  def size(self) -> int:
    """How many examples of a full micro-batch are in the shard."""
    return dealt(self.batch_size, self.position, self.num_shards)

  def number_of(self, place: Any) -> Any:
    """Returns the number of the shard that a place in one batch after another is dealt to."""
    return place % self.batch_size % self.num_shards

  def find(self, index: Any) -> Any:
    """Returns where the shard's example of this index is in one batch after another."""
    place = self.position + index % self.size * self.num_shards
    return index // self.size * self.batch_size + place


def build_plan(*, num_examples: int, batch_size: int, num_towers: int, last_batch: str = 'keep',
               accumulate: int = 1, num_workers: int = 1, rank: int = 0,
               name: str = 'examples') -> Plan:
  """Returns the plan of a split."""
  check_choice('last_batch', last_batch, LAST_BATCHES)
  if num_towers < 1:
    raise UsageError(f'num_towers is {num_towers}: at least 1 tower is needed.')
  if not 0 <= rank < num_workers:
    raise UsageError(f'rank is {rank}: the ranks of {num_workers} workers are 0 to '
                     f'{num_workers - 1}.')
  all_towers = num_workers * num_towers
  towers = f'{all_towers} towers' + (f' of {num_workers} workers' if num_workers > 1 else '')
  if batch_size < all_towers:
    raise UsageError(f'The global batch of {batch_size} examples is smaller than the {towers} that '
                     f'share it: use a batch_size of at least {all_towers}, or at most '
                     f'{max(batch_size, 1)} towers.')
  if accumulate < 1 or batch_size % accumulate:
    raise UsageError(f'The global batch of {batch_size} examples cannot be taken in '
                     f'accumulate={accumulate} micro-batches of equal size: use a batch_size that '
                     f'{max(accumulate, 1)} divides.')
  if batch_size // accumulate < all_towers:
    raise UsageError(f'The global batch of {batch_size} examples in accumulate={accumulate} '
                     f'micro-batches leaves {int(batch_size // accumulate)} examples in each for '
                     f'{towers}: use a batch_size of at least {accumulate * all_towers}, or a '
                     'smaller accumulate.')
  if num_examples < 1:
    raise UsageError(f'{name} has {num_examples} examples: give at least 1.')
  plan = Plan(num_examples, batch_size, num_towers, last_batch, accumulate, num_workers, rank)
  if plan.steps_per_epoch == 0:
    raise UsageError(f'{name} has {num_examples} examples, fewer than one global batch of '
                     f'{batch_size}, and last_batch=drop leaves out the rest: use a batch_size of '
                     f'at most {num_examples}, or last_batch=keep.')
  return plan
