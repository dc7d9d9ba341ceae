"""What a run, and a whole command line, is set to: frozen objects made from the table."""

import dataclasses
from typing import Any, Dict

from towers.base.usage_error import UsageError
from towers.input.plan import Plan
from towers.placement.cluster import Cluster
from towers.settings.checks import check_config, check_run
from towers.settings.setting import values_of
from towers.settings.table import SETTINGS, arguments_of

_DEFAULT_EPOCHS = 5.0
# Peak learning rates of optimizers with others than most.
_PEAKS = {'adam': 0.001, 'adamw': 0.001, 'lamb': 0.001, 'rmsprop': 0.01, 'lars': 1.0}
_OfRun: Any = values_of(arguments_of('run'), check_run)


class RunSettings(_OfRun):
  """The arguments of `towers.train` that are settings, by name; see there for what they are."""

  def for_worker(self, cluster: Cluster) -> 'RunSettings':
    """Returns those of one process of a cluster: only the chief writes and reports."""
    if cluster.is_elastic and not cluster.is_evaluator and not self.checkpoint_dir:
      raise UsageError('min_workers starts all again as fewer or more workers, which without '
                       'checkpoints begin with the first step: give the command a checkpoint_dir.')
    if cluster.is_chief:
      return self
    outputs: Dict[str, Any] = dict.fromkeys(
        field.name for field in dataclasses.fields(self)
        if SETTINGS[field.name].whose == 'chief')
    if cluster.is_evaluator:
      outputs.update(summary_dir=self.summary_dir)
    return dataclasses.replace(self, **outputs)

  def session_settings(self) -> Dict[str, Any]:
    """Returns the arguments of `towers.Program.session` among them."""
    return dict(graph_rewriter=self.graph_rewriter, inter_threads=self.inter_threads,
                intra_threads=self.intra_threads)

  def count_steps(self, plan: Plan) -> int:
    """Returns the weight updates of the whole run, at least 1."""
    if self.steps is not None:
      return self.steps
    return plan.steps_in(_DEFAULT_EPOCHS if self.epochs is None else self.epochs)

  @property
  def length(self) -> str:
    """Of the whole run, in words."""
    if self.steps is not None:
      return f'{self.steps:,} steps'
    return f'{_DEFAULT_EPOCHS if self.epochs is None else self.epochs:g} epochs'

  @property
  def keeps_curves(self) -> bool:
    """Whether the run samples its metrics, for summaries or the report."""
    return self.summary_dir is not None or self.report is not None


_OfAll: Any = values_of(SETTINGS, check_config)


class Config(_OfAll, RunSettings):
  """A value for each of `table.SETTINGS`, those of its run among them."""

  def for_worker(self, cluster: Cluster) -> 'Config':
    """Returns the settings of one process of a cluster; only the chief writes and reports.

    A job for one worker is a UsageError where there are several.
    """
    for name in ('check', 'find_batch', 'input_only'):
      if cluster.trains_together and getattr(self, name):
        raise UsageError(f'{name} is a job for one worker, and TF_CONFIG names '
                         f'{len(cluster.addresses)}: unset TF_CONFIG for it.')
    own: Any = super().for_worker(cluster)
    if cluster.is_evaluator:
      own = dataclasses.replace(own, validation='switch', validation_tower=False, autotune=False)
    return own

  def peak_learning_rate(self) -> float:
    """Returns the rate after warm-up and before any decay."""
    if self.learning_rate is not None:
      return self.learning_rate
    return _PEAKS.get(self.optimizer, 0.05)
