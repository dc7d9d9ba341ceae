"""Bad records: what happens when a record is damaged, and a log of those that were met.

  fail   the first one ends the run with an error that names its file, offset and number
  skip   it is left out and logged; the step that planned it takes one example less

The plan of a run counts every record of the index, damaged or not, so that positions, modes and
resumed runs stay exact under both. The log is written to from the threads of input pipelines.
"""

import sys
import threading
from typing import Any, Dict, Optional, Set, Tuple

from towers.base.usage_error import UsageError

POLICIES = ('fail', 'skip')
# More lines than this are no help; the summary has all counts.
_MAX_LINES = 20
_MAX_FILES_IN_SUMMARY = 10


class BadRecordError(ValueError):
  """A record that cannot become an example; its message is the reason, without the place."""


class BadRecords:
  """The policy for damaged records, and a log of them."""

  def __init__(self, policy: str = 'fail', stream: Any = None):
    """Nothing is bad yet.

    Args:
      policy: 'fail' or 'skip'.
      stream: to log to, `sys.stderr` if None.

    Raises:
      UsageError: an unknown policy.
    """
    if policy not in POLICIES:
      raise UsageError('on_bad_record is {!r}: choose one of {}.'.format(
          policy, ', '.join(POLICIES)))
    self.policy = policy
    self.failure: Optional[str] = None
    self._stream = stream
    self._lock = threading.Lock()
    self._places: Set[Tuple[str, int]] = set()

  def report(self, path: str, offset: int, reason: str, *, record: Optional[int] = None) -> None:
    """Takes note of damage; what is met again, in another epoch, is not logged again.

    Args:
      path: the file.
      offset: of the damaged record in it, in bytes.
      reason: what is wrong.
      record: its number in the file, from 0, where it has one.

    Raises:
      UsageError: the policy is 'fail'; names all of this, and the setting.
    """
    place = '%s: %s at byte %d: %s' % (
        path, 'the end' if record is None else f'record {record:,}', offset, reason)
    with self._lock:
      if self.policy == 'fail':
        message = place + ('. Repair or remove it, or leave such records out with '
                           'on_bad_record=skip.')
        self.failure = self.failure or message
        raise UsageError(message)
      is_known = (path, offset) in self._places
      self._places.add((path, offset))
      if not is_known and len(self._places) <= _MAX_LINES:
        print(
            'skipped: {}{}'.format(
                place, ' (further ones are counted only)' * (len(self._places) == _MAX_LINES)),
            file=self._stream or sys.stderr, flush=True)

  def summary(self) -> str:
    """Returns a sentence with the number of damaged places in each file, or '' if there was none.
    """
    with self._lock:
      by_file: Dict[str, int] = {}
      for path, _ in self._places:
        by_file[path] = by_file.get(path, 0) + 1
    if not by_file:
      return ''
    total = sum(by_file.values())
    files = ['%s (%d)' % item for item in sorted(by_file.items())]
    if len(files) > _MAX_FILES_IN_SUMMARY:
      files[_MAX_FILES_IN_SUMMARY:] = ['and %d files more' % (len(files) - _MAX_FILES_IN_SUMMARY)]
    return 'skipped {:,} damaged record{} in {:,} file{}: {}'.format(
        total, '' if total == 1 else 's', len(by_file), '' if len(by_file) == 1 else 's',
        ', '.join(files))
