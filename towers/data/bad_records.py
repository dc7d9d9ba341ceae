"""Bad records: what happens when a record is damaged, and a log of those that were met.

  fail   the first one ends the run with an error that names its file, offset and index
  skip   it is left out and logged; the step that planned it takes one example less

The plan of a run counts every record of the index, damaged or not, so that positions, modes and
resumed runs stay exact under both. Threads of input pipelines write the log.
"""

import collections
import sys
import threading
from typing import Any, Callable, Optional, Set, Tuple

from towers.base.output import write_line
from towers.base.usage_error import UsageError, check_choice

POLICIES = ('fail', 'skip')
# More lines do not help; the summary has all counts.
_MAX_LINES = 20
_MAX_FILES_IN_SUMMARY = 10


class BadRecordError(ValueError):
  """A record cannot become an example; the message is the reason, without the place."""


class BadRecords:
  """The policy for damaged records, and a log of them.

  Attributes:
    skips: whether damaged records are left out.
    failure: what `report` has raised first, or None.
    on_failure: called with that in its thread before it is raised.
  """

  def __init__(self, policy: str = 'fail', stream: Any = None, name: str = ''):
    """Starts an empty log, of the split `name`, to `sys.stderr` if there is no stream."""
    check_choice('on_bad_record', policy, POLICIES)
    self.skips = policy == 'skip'
    self.failure: Optional[str] = None
    self.on_failure: Callable[[str], Any] = lambda message: None
    self._stream, self._name = stream, name and f'{name}: '
    self._lock = threading.Lock()
    self._places: Set[Tuple[str, int]] = set()

  def report(self, path: str, offset: int, record: Optional[int], reason: str) -> None:
    """Logs damage at an offset of a file, in bytes, once however many epochs meet it.

    The record's index is None for what follows the last one.

    Raises:
      UsageError: the policy is 'fail'; names all of this, and the setting.
    """
    what = 'the end' if record is None else f'record {record:,}'
    place = f'{path}: {what} at byte {offset}: {reason}'
    with self._lock:
      if not self.skips:
        message = place + ('. Correct the file or what reads it, or leave such records out with '
                           'on_bad_record=skip.')
        if self.failure is None:
          self.failure = message
          self.on_failure(message)
        raise UsageError(message)
      is_known = (path, offset) in self._places
      self._places.add((path, offset))
      if not is_known and len(self._places) <= _MAX_LINES:
        is_last = len(self._places) == _MAX_LINES
        more = ' (further ones are only counted)' if is_last else ''
        write_line(f'skipped: {self._name}{place}{more}', self._stream or sys.stderr)

  def summary(self) -> str:
    """Returns a sentence with the number of damaged places in each file, or ''."""
    with self._lock:
      by_file = collections.Counter(path for path, _ in self._places)
    if not by_file:
      return ''
    total = sum(by_file.values())
    files = [f'{path} ({count})' for path, count in sorted(by_file.items())]
    if len(files) > _MAX_FILES_IN_SUMMARY:
      files[_MAX_FILES_IN_SUMMARY:] = [f'and {len(files) - _MAX_FILES_IN_SUMMARY} more files']
    records = '1 damaged record' if total == 1 else f'{total:,} damaged records'
    in_files = '1 file' if len(by_file) == 1 else f'{len(by_file):,} files'
    return f"{self._name}skipped {records} in {in_files}: {', '.join(files)}"
