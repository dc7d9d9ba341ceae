"""The reason inside an error of TensorFlow, which hides it among lists of ops and stack traces."""

import errno
import os
import re

_LONGEST = 300
_FULL = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]


def find_message(error: Exception) -> str:
  """Returns all that an error says; of one that could not be decoded, with `\\xe9` for a byte."""
  if isinstance(error, UnicodeDecodeError):
    return error.object.decode(errors='backslashreplace')
  return getattr(error, 'message', None) or getattr(error, 'strerror', None) or str(error)


def find_reason(error: Exception) -> str:
  """Returns what happened in one line: `SomeFile: No space left on device`."""
  text = find_message(error)
  # TensorFlow 2.x puts the place where the op was created first.
  text = re.split(r"\nNode: '[^\n]*\n", text)[-1]
  for line in text.splitlines():
    line = re.sub(r'^\s*\(\d+\) ?(?:[A-Z_]+: |[A-Z][a-z A-Z]+: )?', '', line)
    line = re.sub(r'^From /job:\S+:', '', line.strip())
    line = re.sub(r'^Error in user-defined function passed to .*? with iterator: \S+: ', '',
                  line.strip())
    line = re.split(r'\[\[|\{\{node', line)[0].strip()
    if line and 'root error(s) found' not in line and line != 'Graph execution error:':
      shown = line if len(line) <= _LONGEST else line[:_LONGEST].rsplit(' ', 1)[0] + ' …'
      return shown.rstrip('.;: ')
  return type(error).__name__


def is_about_room(reason: str) -> bool:
  """Whether a reason, of Python or TensorFlow, says that a disk, quota or file is full."""
  return any(known in reason for known in _FULL)
