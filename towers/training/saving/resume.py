"""Resume: whether a run counts its steps as the run that wrote its checkpoint has counted them."""

from towers.base.usage_error import UsageError
from towers.input.plan import Plan

# Of the planned examples. If more are missing, the batch was probably another.
_MOST_SKIPPED = 0.1


def check_resume(path: str, *, step: int, examples_seen: int, plan: Plan,
                 may_skip: bool = False, was_carried: bool = False) -> None:
  """Raises if a checkpoint was written with steps of another size.

  A step that skips damaged records sees fewer examples than planned. `may_skip` therefore accepts
  up to a tenth fewer, which also accepts a batch that is larger by so little, and never a smaller
  one. A run with last_batch=carry goes on with any batch size where one `was_carried`; and where
  last_batch=keep had come, which has taken the examples in the same order.

  Raises:
    UsageError: names the counts and the fix.
  """
  if plan.carries and was_carried:
    return
  was = plan._replace(last_batch='keep') if plan.carries else plan
  planned = was.examples_before(step)
  if examples_seen == planned:
    return
  if may_skip and (1 - _MOST_SKIPPED) * planned <= examples_seen < planned:
    return
  message = (f'The checkpoint {path} has seen {examples_seen} examples in {step} steps, but with '
             f'this data and batch_size={plan.batch_size} they would be {planned}: resume with the '
             'data, batch_size and last_batch that it was written with, or give another '
             'checkpoint_dir.')
  if was_carried and not plan.carries:
    message += ' It was written with last_batch=carry.'
  if examples_seen < planned and not may_skip:
    message += ' If it skipped damaged records, resume with on_bad_record=skip.'
  raise UsageError(message)
