"""Processes of tests: how they start, an environment that says nothing of workers, and waiting."""

import contextlib
import os
import subprocess
import sys
import time

from tests import ROOT


def run_python(*arguments, timeout=120, **settings):
  """Runs Python in a new process to its end, in the repository; returns code, stdout and stderr."""
  settings = {**dict(cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE), **settings}
  return subprocess.run([sys.executable, *arguments], text=True, timeout=timeout, **settings)


def output_of(*arguments, **settings):
  """Returns the stdout of a Python that must end well."""
  done = run_python(*arguments, **settings)
  assert done.returncode == 0, done.stderr
  return done.stdout


@contextlib.contextmanager
def running(*command, **settings):
  """Yields a process in the repository, with a pipe for its stdout, that ends with the context."""
  with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, **settings) as process:
    try:
      yield process
    finally:
      process.kill()


def clean_environment(**more):
  kept = {name: value for name, value in os.environ.items()
          if name not in ('TF_CONFIG', 'CUDA_VISIBLE_DEVICES')}
  return dict(kept, **more)


def wait_until(holds, seconds=30):
  deadline = time.monotonic() + seconds
  while not holds():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def is_alive(number):
  try:
    with open(f'/proc/{number}/stat') as file:
      return file.read().rsplit(')', 1)[1].split()[0] != 'Z'
  except (FileNotFoundError, ProcessLookupError):  # The latter if it ends between open and read.
    return False
