"""Cores: which ones this process may use. Everything asks here, with and without TensorFlow."""

import os
from typing import List


def list_cores() -> List[int]:
  """Returns the numbers of the cores that this process may use; where the system does not tell,
  those of all.
  """
  if hasattr(os, 'sched_getaffinity'):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def count_cores() -> int:
  """Returns how many these are: fewer than the machine has, in a container's cpuset or by taskset.
  """
  return len(list_cores())


def count_cores_of_each(num_towers: int) -> int:
  """Returns a tower's part of them where towers compute side by side: one at least."""
  return max(count_cores() // num_towers, 1)
