"""Outputs: what a run is to write, tried and locked before anything expensive begins."""

import os
from typing import ContextManager, Optional

from towers.base.files import file_aside, name_other_kind, sweep
from towers.base.paths import describe_no_folder
from towers.base.reason import is_about_room
from towers.base.usage_error import UsageError
from towers.checkpoint.lock import lock_folder
from towers.extras import load_extra
from towers.placement.cluster import Cluster, listen
from towers.process.run_error import RunError
from towers.settings.config import RunSettings

_PROBE_BYTES = 4096
_OF_EXTRAS = dict(report='report', trace_file='trace_steps', export_dir='--export_dir')


def lock_outputs(settings: RunSettings, cluster: Cluster, *, listens: bool = True,
                 export_dir: Optional[str] = None) -> ContextManager[None]:
  """Makes sure that outputs can be written; returns a context that has the folder of checkpoints.

  If it `listens`, this worker's port must be free too. Whatever is not so is a UsageError.
  """
  folder = settings.checkpoint_dir if cluster.is_chief else None
  check_outputs(result_file=settings.result_file, report=settings.report,
                trace_file=settings.trace_file if settings.trace_steps else None,
                summary_dir=settings.summary_dir, export_dir=export_dir, checkpoint_dir=folder)
  if listens and cluster.trains_together:
    listen(cluster, on_all=True).close()
  return lock_folder(folder)


def check_outputs(**paths: Optional[str]) -> None:
  """Makes the folders that a run writes to, writes to each, and sweeps what a killed run left.

  A path that cannot be written is a UsageError, and a full disk of the checkpoints a RunError.
  """
  for name, path in paths.items():
    if path is not None and name in _OF_EXTRAS:
      load_extra(_OF_EXTRAS[name])  # Refused at once, rather than after the graph is built.
    if path is not None:
      (_check_folder if name.endswith('_dir') else _check_file)(name, path)


def _check_file(name, path):
  kind = name_other_kind(path)
  if kind:
    raise UsageError(f'{name}={path} cannot be written: it is {kind}, and a file would replace it. '
                     f'Choose the path of a file, or leave {name} out to write none.')
  folder = os.path.dirname(os.path.abspath(path))
  reason = _try_folder(folder)
  if reason:
    raise UsageError(f'{name}={path} cannot be written to the folder {folder}: {reason}. '
                     f'{_choose(reason)} a file in a folder that can be written.')


def _check_folder(name, path):
  reason = _try_folder(path)
  if reason:
    # A disk that fills up later is no mistake either: `--on_full_disk` says what happens.
    kind = RunError if name == 'checkpoint_dir' and is_about_room(reason) else UsageError
    raise kind(describe_no_folder(name, path, reason, choose=_choose(reason)))


def _try_folder(folder):
  """Makes and sweeps a folder, writes a file to it and removes that; returns why not, or ''."""
  try:
    os.makedirs(folder, exist_ok=True)
    sweep(folder)
    with file_aside(folder) as (_, file):
      file.write(bytes(_PROBE_BYTES))
      file.flush()
      os.fsync(file.fileno())
  except OSError as error:
    return error.strerror or str(error)
  return ''


def _choose(reason):
  return 'Make room, or choose' if is_about_room(reason) else 'Choose'
