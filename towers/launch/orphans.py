"""Orphans: kills the process groups that a launcher leaves behind when it is itself killed.

A program of its own, started as a file. It reads from stdin which groups there are, and which have
ended:

  +4711      group 4711 has started
  -4711      group 4711 has ended

The launcher alone keeps the other end of that pipe. The kernel closes it however the launcher ends,
also by `kill -9`, and then every group that is left gets SIGKILL, with all the processes in it.
`PR_SET_PDEATHSIG` would reach each group's first process alone, and not what that has started.
"""

import contextlib
import os
import signal
import sys
from typing import Iterable, Set


def follow(lines: Iterable[str]) -> Set[int]:
  """Returns the groups that have not ended after all `lines`."""
  groups: Set[int] = set()
  for line in lines:
    number = int(line[1:])
    if line[0] == '+':
      groups.add(number)
    else:
      groups.discard(number)
  return groups


def main() -> None:
  """Waits for the end of stdin, and kills what is left."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  for group in follow(sys.stdin):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(group, signal.SIGKILL)


if __name__ == '__main__':
  main()
