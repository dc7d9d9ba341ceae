"""Cores: how many this process may use. Everything counts them here, with and without TensorFlow."""

import os


def count_cores() -> int:
  """Returns the cores that this process may use: fewer than the machine has, in a container's cpuset or by taskset."""
  return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
