"""Cores: which ones this process may use. All of the code asks here."""

import os
from typing import List


def list_cores() -> List[int]:
  """Returns the system's numbers of this process's cores, all cores where it has no affinity."""
  if hasattr(os, 'sched_getaffinity'):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def count_cores() -> int:
  """Returns how many cores these are; a cpuset or taskset leaves fewer than the machine has."""
  return len(list_cores())


def count_cores_of_each(num_towers: int) -> int:
  """Returns each tower's share of the cores, at least 1, where towers compute side by side."""
  return max(count_cores() // num_towers, 1)
