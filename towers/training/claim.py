"""Claim: what a run must have to itself before anything expensive begins."""

from typing import ContextManager

from towers.checkpoint.lock import lock_folder
from towers.placement.cluster import Cluster, listen
from towers.settings.config import Config
from towers.settings.outputs import check_outputs


def claim(config: Config, cluster: Cluster, *, listens: bool = True) -> ContextManager[None]:
  """Makes sure that outputs can be written; returns a context that has the folder of checkpoints.

  Args:
    config: of this worker.
    cluster: the workers.
    listens: whether this worker's port must be free.

  Raises:
    UsageError: an output cannot be written, the port is in use, or another run has the folder.
  """
  folder = config.checkpoint_dir if cluster.is_chief else None
  check_outputs(result_file=config.result_file, report=config.report,
                trace_file=config.trace_file if config.trace_steps else None,
                summary_dir=config.summary_dir, export_dir=config.export_dir, checkpoint_dir=folder)
  if listens and cluster.trains_together:
    listen(cluster, on_all=True).close()
  return lock_folder(folder)
