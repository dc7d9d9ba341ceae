"""Several workers as processes on loopback, with the output and exit code of each."""

import os
import signal
import subprocess
import threading
import time

from tests.harness.in_process_cluster import find_ports
from tests.harness.loaded_process import LoadedProcess
from towers_launch.tf_config import format_tf_config

SECONDS = 60


class ProcessCluster:
  """Runs `python -m tests.harness.faulty_run FAULT [flags]` as every worker.

  `faults` and `flags_of` hold what differs, by rank.
  """

  def __init__(self, *, num_workers=2, fault='none', faults=None, flags=(), flags_of=None,
               absent=(), addresses=None):
    self.addresses = addresses or [f'127.0.0.1:{port}' for port in find_ports(num_workers)]
    self._lines = [[] for _ in range(num_workers)]
    self._commands = [
        ['-m', 'tests.harness.faulty_run', (faults or {}).get(rank, fault), *flags,
         *(flags_of or {}).get(rank, ())] for rank in range(num_workers)]
    self._readers = {}
    self.processes = [None] * num_workers
    for rank in range(num_workers):
      if rank not in absent:
        self.start(rank)

  def start(self, rank):
    """Starts a worker, or restarts it."""
    environ = dict(os.environ, TF_CONFIG=format_tf_config(self.addresses, 'worker', rank))
    process = LoadedProcess(self._commands[rank], stderr=subprocess.STDOUT, env=environ)
    self.processes[rank] = process

    def read():
      for line in process.stdout:
        self._lines[rank].append(line)

    self._readers[rank] = threading.Thread(target=read, daemon=True)
    self._readers[rank].start()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      if process is not None:
        process.kill()
        process.wait()
    for reader in self._readers.values():
      reader.join()
    for process in self.processes:
      if process is not None:
        process.stdout.close()

  def output(self, rank):
    return ''.join(self._lines[rank])

  def wait_for(self, rank, text, times=1):
    """Waits until a worker has printed a text so many times."""
    until = time.monotonic() + SECONDS
    while self.output(rank).count(text) < times:
      assert self.processes[rank].poll() is None and time.monotonic() < until, self.all_output()
      time.sleep(0.02)

  def kill(self, rank, signal_number=signal.SIGKILL):
    self.processes[rank].send_signal(signal_number)

  def wait(self, *ranks, seconds=SECONDS):
    """Waits until workers end, by default all of them; returns their exit codes."""
    until = time.monotonic() + seconds
    codes = []
    for rank in ranks or range(len(self.processes)):
      try:
        codes.append(self.processes[rank].wait(max(0.1, until - time.monotonic())))
      except subprocess.TimeoutExpired:
        raise AssertionError(f'worker {rank} does not end:\n{self.all_output()}') from None
      self._readers[rank].join()
      assert 'Traceback' not in self.output(rank), self.output(rank)
    return codes

  def all_output(self):
    return '\n'.join(
        f'---- worker {rank}\n{self.output(rank)}' for rank in range(len(self.processes)))
