"""Report: a metric writer that keeps one run as a page of HTML.

  python main.py --report=run.html
  python -m towers report a.html b.html --output=both.html  # any number, side by side

The page holds what it was drawn from, as JSON: a comparison and a resumed run read it back. Report
writes the page after each validation and at the end, so a run can be watched.
"""

import math
import os
import platform
import shlex
import sys
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from towers.base.cores import count_cores
from towers.base.files import write_whole
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.training.reporting.metric_samples import MetricWriter
from towers_tools.page import format_page, read_runs

# A chart has no more columns than this; beyond, every second sample is dropped.
_MOST_SAMPLES = 2000


class Report(MetricWriter):
  """Keeps a run for its page."""

  def __init__(self, path: str, *, settings: Mapping[str, Any], first_step: int, description: str,
               versions: Optional[Mapping[str, str]] = None, warnings: Sequence[str] = (),
               read_seconds: Callable[[], Dict[str, float]] = dict,
               warn: Callable[[str], None] = write_line):
    """Starts a page, or continues that of an earlier run."""
    self._path = path
    self._warn = warn
    self._has_warned = False
    self._read_seconds = read_seconds
    self._run: Dict[str, Any] = dict(
        config=dict(settings), description=description, versions=dict(versions or find_versions()),
        warnings=list(warnings), seconds={}, samples=[], validations=[], result=None)
    if first_step and os.path.exists(path):
      try:
        [before] = read_runs(path)
        self._run.update(samples=before['samples'], validations=before['validations'])
      except (UsageError, ValueError) as error:
        warn(f'WARNING: {error}, so its curves start at step {first_step}.')
    self._drop_after(first_step)

  def sample(self, step: int, values: Dict[str, Optional[float]], metrics: Dict[str, float],
             summaries: Sequence[bytes]) -> None:
    """Adds a measured step."""
    samples = self._run['samples']
    samples.append(_finite_or_none(dict(values, step=step)))
    if len(samples) > _MOST_SAMPLES:
      del samples[::2]

  def validated(self, *, step: int, metrics: Dict[str, float]) -> None:
    """Adds a validation, and writes the page."""
    self._run['validations'].append(_finite_or_none(dict(metrics, step=step)))
    self._write()

  def on_warning(self, run: Any, text: str) -> None:
    """Adds a warning."""
    self._run['warnings'].append(text)

  def on_rewind(self, run: Any) -> None:
    """Drops what came after the run's step."""
    self._drop_after(run.step)

  def on_end(self, run: Any) -> None:
    """Adds the result of the run."""
    self._run['result'] = run.result

  def on_close(self, run: Any) -> None:
    """Writes the page of the run so far."""
    self._write()

  def _drop_after(self, step):
    for name in ('samples', 'validations'):
      self._run[name] = [point for point in self._run[name] if point['step'] <= step]

  def _write(self):
    self._run['seconds'] = self._read_seconds()
    try:
      write_whole(self._path, format_page([os.path.basename(self._path)], [self._run]).encode())
    except OSError as error:
      if not self._has_warned:
        self._warn(f'WARNING: the report {self._path} cannot be written: {error.strerror}')
      self._has_warned = True


def find_versions() -> Dict[str, str]:
  """Returns the versions of TensorFlow, Python and numpy, and where, when and how it began."""
  import numpy

  from towers.tensorflow_v1 import tf
  return dict(TensorFlow=tf.__version__, Python=platform.python_version(), numpy=numpy.__version__,
              system=f'{platform.platform()}, {count_cores()} cores', host=platform.node(),
              date=time.strftime('%Y-%m-%d %H:%M'), command=' '.join(map(shlex.quote, sys.argv)))


def _finite_or_none(values):
  """Returns the values with None for NaN and Inf, which JSON lacks."""
  return {name: value if value is None or math.isfinite(value) else None
          for name, value in values.items()}
