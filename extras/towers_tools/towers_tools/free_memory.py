"""Free memory: of this machine, or of the container that the process is in."""

import os
import re
from typing import List, Optional

_MEMINFO, _CGROUP = '/proc/meminfo', '/sys/fs/cgroup'
# Of version 2 and 1: the container's limit, what it takes, and how much of this is of files, which
# gives way.
_LIMITS = (('memory.max', 'memory.current', 'memory.stat', 'inactive_file'),
           ('memory/memory.limit_in_bytes', 'memory/memory.usage_in_bytes', 'memory/memory.stat',
            'total_inactive_file'))


def find_free_memory(meminfo: str = _MEMINFO, cgroup: str = _CGROUP) -> Optional[int]:
  """Returns the bytes that programs can still take; None where the system does not tell."""
  free: List[int] = []
  available = re.search(r'MemAvailable: +(\d+) kB', _read(meminfo))
  if available:
    free.append(1024 * int(available.group(1)))
  for names in _LIMITS:
    limit, taken, stat = [_read(os.path.join(cgroup, name)).strip() for name in names[:3]]
    if limit.isdigit() and taken.isdigit():  # 'max' is no limit.
      of_files = re.search(rf'^{names[3]} (\d+)$', stat, re.MULTILINE)
      free.append(max(int(limit) - int(taken) + int(of_files.group(1) if of_files else 0), 0))
  return min(free, default=None)


def _read(path):
  try:
    with open(path) as file:
      return file.read()
  except OSError:
    return ''
