"""The resume point: with which example a run goes on, as its checkpoint records it."""

from typing import Any, NamedTuple, Optional, Sequence, Tuple

from towers.input.epoch_order.order_record import Order

# The name of a tensor in checkpoints that belongs to no variable: the batch size, and epoch,
# position and cuts of the `ResumePoint`, int64 `[3 + …]`.
POINT_TENSOR = 'towers/point'
# The same; it is there where the rest of an epoch is carried.
CARRY_TENSOR = 'towers/carry'


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


def read_point(reader: Any, plan: Any, step: int, examples: int,
               is_new: bool = False) -> Tuple[ResumePoint, int]:
  """Returns where a checkpoint's data stood after so many steps and examples, and its batch size.

  One that does not record it, or has other data than a run whose `is_new`, is taken for one of the
  plan's batch size. `Plan.resumed_at` goes on from there.
  """
  if is_new or not reader.has_tensor(POINT_TENSOR):
    return plan.point_of(step, examples), plan.batch_size
  batch_size, epoch, position, *cuts = reader.get_tensor(POINT_TENSOR).tolist()
  if position and not cuts:  # As before cuts were recorded.
    was = plan._replace(batch_size=batch_size, accumulate=1)
    cuts = [0, was.examples_per_epoch, batch_size]
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
    if saved.version != order.version:
      was, fix = f'{was}, by another version of towers', 'resume with that version'
  return (f'{path} was written in the middle of an epoch, after {done:,} of its '
          f'{plan.num_examples:,} examples, {was}; this run is {order.describe()}. The rest of the '
          'epoch takes some examples twice and misses others; later epochs take each once. To lose '
          f'none, {fix}.')
