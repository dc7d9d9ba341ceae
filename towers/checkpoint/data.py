"""Data: which examples a run trains on, and how many; a resumed run compares its checkpoint.

On other examples, the rest of the epoch would miss some and take others twice, and a validation
would measure on what another fold has learned from. So they are refused, unless the user says that
they are new: then all but the place in the data goes on.
"""

from typing import Any, NamedTuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.digest import DATA_TENSOR, Digest
from towers.input.plan import Plan
from towers.placement.counters import get_examples_seen
from towers.tensorflow_v1 import Session
from towers.warm_start.warm_start import load_values

# Of the planned examples. If more are missing, the batch was probably another.
_MOST_SKIPPED = 0.1


class Data(NamedTuple):
  """The training examples of a run.

  Attributes:
    digest: of the examples.
    plan: which of them each step takes.
    may_be_new: whether a checkpoint of others is taken.
    may_skip: whether steps leave out damaged ones.
  """
  digest: Digest
  plan: Plan
  may_be_new: bool = False
  may_skip: bool = False

  def check(self, reader: Any, path: str) -> None:
    """Refuses a checkpoint of other examples by a UsageError."""
    difference = self.compare(reader)
    if difference and not self.may_be_new:
      raise UsageError(
          f'The checkpoint {path} was written on other training data: {difference}. '
          'Resume with the data that it was written with, or give another checkpoint_dir; or, to '
          'go on with its weights, slots and step on the new data, give new_data=True.')

  def take_up(self, session: Session, reader: Any, path: str, step: int) -> str:
    """Lets a checkpoint of other examples begin an epoch of these; returns a notice or ''."""
    difference = self.compare(reader)
    if not difference:
      return '' if reader.has_tensor(DATA_TENSOR) else (
          f'{path} does not record its training data, as those of earlier versions: it is not '
          'compared')
    epoch, done = self.plan.position(step)
    epoch += done > 0
    load_values(session, {get_examples_seen(): np.int64(epoch * self.plan.examples_per_epoch)})
    return (f'new_data: {path} was written on other training data: {difference}. Weights, slots '
            f'and step stay, and an epoch of the new data begins, number {epoch + 1}')

  def compare(self, reader: Any) -> str:
    """Returns what differs in the examples of a checkpoint; '' also if it does not record them."""
    saved = None
    if reader.has_tensor(DATA_TENSOR):
      saved = Digest.from_array(reader.get_tensor(DATA_TENSOR))
    return saved.explain_other(self.digest) if saved else ''

  def check_steps(self, path: str, *, step: int, examples_seen: int, was_carried: bool) -> None:
    """Refuses by a UsageError a checkpoint whose steps had another size, if it does not say so.

    It is asked of those alone that do not record where the data stands, as earlier versions wrote.
    A step that skips damaged records sees fewer examples than planned. `may_skip` therefore accepts
    up to a tenth fewer, which also accepts a batch that is larger by so little, and never a smaller
    one. Where its run `was_carried`, by last_batch=carry or new data, its steps do not tell the
    examples: a run with last_batch=carry goes on with any batch size, and any other where a batch
    of an epoch begins. With last_batch=carry it also goes on where last_batch=keep had come, which
    has taken the examples in the same order.
    """
    plan = self.plan
    was = plan._replace(last_batch='keep') if plan.carries else plan
    planned = by_steps = was.examples_before(step)
    if was_carried:
      _, examples, epoch, position = plan.point_of(step, examples_seen)
      planned = examples if plan.carries else epoch * plan.examples_per_epoch + position
    least = (1 - _MOST_SKIPPED) * planned if self.may_skip else planned
    if least <= examples_seen <= planned:
      return
    message = (f'The checkpoint {path} has seen {examples_seen} examples in {step} steps, but with '
               f'this data and batch_size={plan.batch_size} they would be {by_steps}. It does '
               'not record where the data stands, as those of earlier versions: resume once with '
               'the data, batch_size and last_batch that it was written with, after which any '
               'batch_size goes on; or give another checkpoint_dir.')
    if was_carried:
      message += ' It was written with last_batch=carry, or after new_data.'
    elif examples_seen < planned and not self.may_skip:
      message += ' If it skipped damaged records, resume with on_bad_record=skip.'
    raise UsageError(message)
