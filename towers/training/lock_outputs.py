"""Locks: what a run must have to itself before anything expensive begins."""

from typing import ContextManager, Optional

from towers.checkpoint.lock import lock_folder
from towers.placement.cluster import Cluster, listen
from towers.settings.outputs import check_outputs
from towers.settings.run_settings import RunSettings


def lock_outputs(settings: RunSettings, cluster: Cluster, *, listens: bool = True,
                 export_dir: Optional[str] = None) -> ContextManager[None]:
  """Makes sure that outputs can be written; returns a context that has the folder of checkpoints.

  If it `listens`, this worker's port must be free too.

  Raises:
    UsageError: an output cannot be written, the port is in use, or another run has the folder.
  """
  folder = settings.checkpoint_dir if cluster.is_chief else None
  check_outputs(result_file=settings.result_file, report=settings.report,
                trace_file=settings.trace_file if settings.trace_steps else None,
                summary_dir=settings.summary_dir, export_dir=export_dir, checkpoint_dir=folder)
  if listens and cluster.trains_together:
    listen(cluster, on_all=True).close()
  return lock_folder(folder)
