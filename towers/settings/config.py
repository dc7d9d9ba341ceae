"""Config: a run's settings as the command line gives them, checked together."""

import dataclasses
from typing import Any, Dict

from towers.base.usage_error import UsageError
from towers.input.plan import Plan
from towers.placement.cluster import Cluster
from towers.settings.checks import check_config
from towers.settings.table import SETTINGS

_DEFAULT_EPOCHS = 5.0
# Peak learning rates of optimizers with others than most.
_PEAKS = {'adam': 0.001, 'adamw': 0.001, 'lamb': 0.001, 'rmsprop': 0.01, 'lars': 1.0}
_Values: Any = dataclasses.make_dataclass('_Values', [
    (setting.name, Any, setting.default) for setting in SETTINGS.values()], frozen=True,
    namespace=dict(__post_init__=check_config))


class Config(_Values):
  """A value for each of `table.SETTINGS`, by its name; those not given have defaults.

  A value that is invalid, or contradicts another, is a UsageError.
  """

  def for_worker(self, cluster: Cluster) -> 'Config':
    """Returns the settings of one process of a cluster; only the chief writes and reports.

    A job for one worker is a UsageError where there are several.
    """
    for name in ('check', 'find_batch', 'input_only'):
      if cluster.trains_together and getattr(self, name):
        raise UsageError(f'{name} is a job for one worker, and TF_CONFIG names '
                         f'{len(cluster.addresses)}: unset TF_CONFIG for it.')
    if cluster.is_elastic and not cluster.is_evaluator and not self.checkpoint_dir:
      raise UsageError('min_workers starts all again as fewer or more workers, which without '
                       'checkpoints begin with the first step: give the command a checkpoint_dir.')
    if cluster.is_chief:
      return self
    changes: Dict[str, Any] = dict.fromkeys(
        name for name, setting in SETTINGS.items() if setting.whose == 'chief')
    if cluster.is_evaluator:
      changes.update(validation_tower=False, summary_dir=self.summary_dir, autotune=False)
    return dataclasses.replace(self, quiet=True, **changes)

  def session_settings(self) -> Dict[str, Any]:
    """Returns the keyword arguments of `towers.Session` that flags set."""
    return dict(graph_rewriter=self.graph_rewriter, inter_threads=self.inter_threads,
                intra_threads=self.intra_threads)

  def count_steps(self, plan: Plan) -> int:
    """Returns the weight updates of the whole run, at least 1."""
    if self.steps is not None:
      return self.steps
    return plan.steps_in(_DEFAULT_EPOCHS if self.epochs is None else self.epochs)

  @property
  def keeps_curves(self) -> bool:
    """Whether the run samples its metrics, for summaries or the report."""
    return self.summary_dir is not None or self.report is not None

  def peak_learning_rate(self) -> float:
    """Returns the rate after warm-up and before any decay."""
    if self.learning_rate is not None:
      return self.learning_rate
    return _PEAKS.get(self.optimizer, 0.05)
