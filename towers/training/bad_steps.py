"""Bad steps: what a run does with a step that is not finite, as `on_nan` says."""

from typing import Any, List

from towers.checkpoint.history import MOST_ROLLBACKS
from towers.process.run_error import RunError
from towers.session.not_finite import Retried
from towers.tensorflow_v1 import uses_persistent_batch_norm
from towers.training.keeper import Keeper

# Stop after this many consecutive non-finite steps.
MOST_SKIPPED_IN_A_ROW = 10


class BadSteps:
  """Skips, goes back or ends the run."""

  def __init__(self, run: Any, keeper: Keeper, on_nan: str):
    """Prepares for a `Run`; see `towers.train` for `on_nan`."""
    self._run, self._session, self._keeper = run, run.session, keeper
    self._on_nan = on_nan
    self._skipped: List[int] = []

  def handle(self, retried: Retried) -> bool:
    """Handles a step that was not finite; returns whether the run has gone back.

    Raises:
      RunError: the run is to end.
    """
    session, step = self._session, self._session.step
    if retried.is_done:
      self._run.warn(f'WARNING: step {step} was not finite, but a retry with the same weights and '
                     'examples was: a device or an op of the model fails now and then')
      return False

    epoch, index = session.steps.plan.position(step)
    what = (f'step {step + 1} (batch {index + 1} of epoch {epoch + 1}) is not finite: '
            f'{retried.describe()}')
    if session.program.devices.kind == 'GPU' and uses_persistent_batch_norm():
      what += (" (cuDNN's persistent batch normalisation may overflow: see whether it happens with "
               'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT=0)')
    advice = 'skip'
    if self._on_nan == 'skip':
      recent = [other for other in self._skipped if step - other < MOST_SKIPPED_IN_A_ROW]
      self._skipped = recent + [step]
      if len(self._skipped) < MOST_SKIPPED_IN_A_ROW:
        self._run.warn(f'WARNING: {what}; it is skipped')
        session.steps.skip()
        return False
      what += f'; so were the {MOST_SKIPPED_IN_A_ROW - 1} before it, which were skipped'
      advice = 'rollback'
    elif self._on_nan == 'rollback':
      history = self._keeper.history
      if history.num_rollbacks < MOST_ROLLBACKS:
        path = self._keeper.roll_back()
        self._run.warn(f'WARNING: {what}; back to {path}, with {history.rate_factor:g} of the '
                       'learning rate')
        self._run.has_gone_back()
        return True
      what += f'; going back {MOST_ROLLBACKS} times has not helped'

    if not self._keeper.has_saved:
      self._keeper.save()
    self._keeper.wait()
    raise RunError(f'{what[0].upper()}{what[1:]}. Weights and checkpoints are still finite. Lower '
                   'the learning rate or set clip_norm; look at these examples; or choose '
                   f'on_nan={advice}.')
