"""Orphans: kills the process groups of a launcher that was killed itself.

A program of its own, which the launcher starts as a file. It reads from stdin:

  +4711      group 4711 has started
  -4711      group 4711 has ended

Only the launcher has the other end of that pipe. However the launcher ends, also by `kill -9`, the
kernel closes it, and then every remaining group gets SIGKILL, with all its processes.
`PR_SET_PDEATHSIG` would reach only the first process of each group.
"""

import contextlib
import os
import signal
import sys
from typing import Iterable, Set


def follow(lines: Iterable[str]) -> Set[int]:
  """Returns the groups that are left after all `lines`."""
  groups: Set[int] = set()
  for line in lines:
    number = int(line[1:])
    if line[0] == '+':
      groups.add(number)
    else:
      groups.discard(number)
  return groups


def main() -> None:
  """Waits for the end of stdin, and kills the remaining groups."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  for group in follow(sys.stdin):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(group, signal.SIGKILL)


if __name__ == '__main__':
  main()
