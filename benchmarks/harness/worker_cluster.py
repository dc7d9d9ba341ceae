"""The processes of one kind of `benchmarks.workers`, which take steps together on request."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Sequence

from towers_launch.ports import find_free_ports
from towers_launch.tf_config import format_tf_config

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_WORKER = 'benchmarks.harness.worker_steps'
_SECONDS_TO_LEAVE = 20
_SECONDS_TO_SPEAK = 2
_LAST_CHARACTERS = 2000


class Failed(Exception):
  """A worker has ended too early."""


class BenchmarkCluster:
  """The workers of one kind: processes that take steps together on request."""

  def __init__(self, arguments: Sequence[str], *, num_workers: int, limit_seconds: float):
    """Starts the workers.

    Args:
      arguments: of `worker_steps`, without start time and `limit_seconds`.
      num_workers: on free ports of loopback.
      limit_seconds: after which each ends itself.
    """
    addresses = [f'127.0.0.1:{port}' for port in find_free_ports(num_workers)]
    errors, self._path = tempfile.mkstemp()

    def start(rank):
      command = [sys.executable, '-m', _WORKER, *arguments, repr(time.time()), str(limit_seconds)]
      environment = dict(os.environ, TF_CONFIG=format_tf_config(addresses, 'worker', rank))
      return subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=errors, universal_newlines=True)

    self._processes = [start(rank) for rank in range(num_workers)]
    os.close(errors)

  def __enter__(self) -> 'BenchmarkCluster':
    return self

  def __exit__(self, *_: Any) -> None:
    for process in self._processes:
      process.kill()
      process.communicate()
    os.remove(self._path)

  def take(self, num_steps: int) -> List[Dict[str, Any]]:
    """Lets all workers take `num_steps` steps; returns their reports."""
    self._request(num_steps)
    return self.wait()

  def _request(self, num_steps):
    for process in self._processes:
      with contextlib.suppress(BrokenPipeError):  # `wait` sees that it has ended.
        process.stdin.write(f'{num_steps}\n')
        process.stdin.flush()

  def wait(self) -> List[Dict[str, Any]]:
    """Returns the next report of each worker.

    Raises:
      Failed: a worker has ended.
    """
    reports = {}
    with selectors.DefaultSelector() as selector:
      for process in self._processes:
        selector.register(process.stdout, selectors.EVENT_READ)
      while len(reports) < len(self._processes):
        for key, _ in selector.select():
          line = key.fileobj.readline()  # Each writes one whole line and waits.
          if not line:
            raise Failed(self._last_words())
          selector.unregister(key.fileobj)
          reports[key.fd] = json.loads(line)
    return list(reports.values())

  def _last_words(self):
    """Returns the end of the workers' stderr, a moment after one has ended."""
    time.sleep(_SECONDS_TO_SPEAK)
    with open(self._path, encoding='utf-8', errors='replace') as file:
      return file.read()[-_LAST_CHARACTERS:]

  def leave(self) -> None:
    """Asks all workers to leave, and waits a while; `__exit__` kills those that hang."""
    self._request(0)
    until = time.monotonic() + _SECONDS_TO_LEAVE
    for process in self._processes:
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, until - time.monotonic()))
