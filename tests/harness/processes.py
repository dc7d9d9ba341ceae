"""Processes of tests: an environment that says nothing of workers, and waiting for what they do."""

import os
import time


def clean_environment(**more):
  kept = {name: value for name, value in os.environ.items()
          if name not in ('TF_CONFIG', 'CUDA_VISIBLE_DEVICES')}
  return dict(kept, **more)


def wait_until(holds):
  deadline = time.monotonic() + 30
  while not holds():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def is_alive(number):
  try:
    with open(f'/proc/{number}/stat') as file:
      return file.read().rsplit(')', 1)[1].split()[0] != 'Z'
  except (FileNotFoundError, ProcessLookupError):  # The latter if it ends between open and read.
    return False
