"""Config: the settings of a command line, checked together."""

import dataclasses
from typing import Any, Dict

from towers.base.usage_error import UsageError
from towers.placement.cluster import Cluster
from towers.settings.checks import check_config
from towers.settings.run_settings import RunSettings
from towers.settings.setting import values_of
from towers.settings.table import SETTINGS

# Peak learning rates of optimizers with others than most.
_PEAKS = {'adam': 0.001, 'adamw': 0.001, 'lamb': 0.001, 'rmsprop': 0.01, 'lars': 1.0}


def _check(config):
  object.__setattr__(config, 'run', RunSettings.of(vars(config)))
  check_config(config)


_Values: Any = values_of(SETTINGS, _check)


class Config(_Values):
  """A value for each of `table.SETTINGS`.

  Attributes:
    run: those of its run.
  """

  run: RunSettings

  def for_worker(self, cluster: Cluster) -> 'Config':
    """Returns the settings of one process of a cluster; only the chief writes and reports.

    A job for one worker is a UsageError where there are several.
    """
    for name in ('check', 'find_batch', 'input_only'):
      if cluster.trains_together and getattr(self, name):
        raise UsageError(f'{name} is a job for one worker, and TF_CONFIG names '
                         f'{len(cluster.addresses)}: unset TF_CONFIG for it.')
    run = self.run.for_worker(cluster)
    if run is self.run:
      return self
    changes: Dict[str, Any] = dict(dataclasses.asdict(run), export_dir=None)
    if cluster.is_evaluator:
      changes.update(validation='switch', validation_tower=False, autotune=False)
    return dataclasses.replace(self, **changes)

  def peak_learning_rate(self) -> float:
    """Returns the rate after warm-up and before any decay."""
    if self.learning_rate is not None:
      return self.learning_rate
    return _PEAKS.get(self.optimizer, 0.05)
