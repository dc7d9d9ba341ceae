"""Several workers as processes of their own on loopback: what each says, and how it ends."""

import os
import signal
import subprocess
import sys
import threading
import time

from tests import ROOT
from tests.harness.in_process_cluster import find_ports
from towers.launch.tf_config import format_tf_config

SECONDS = 60


class ProcessCluster:
  """Runs `python -m tests.harness.faulty_run FAULT [flags]` as every worker; what differs is given
  by worker.
  """

  def __init__(self, *, num_workers=2, fault='none', faults=None, flags=(), flags_of=None,
               absent=(), addresses=None, prefixes=None):
    self.addresses = addresses or [f'127.0.0.1:{port}' for port in find_ports(num_workers)]
    self._lines = [[] for _ in range(num_workers)]
    self._commands = [
        (prefixes or {}).get(worker, []) +
        [sys.executable, '-m', 'tests.harness.faulty_run',
         (faults or {}).get(worker, fault)] + list(flags) + list((flags_of or {}).get(worker, ()))
        for worker in range(num_workers)
    ]
    self._readers = {}
    self.processes = [None] * num_workers
    for worker in range(num_workers):
      if worker not in absent:
        self.start(worker)

  def start(self, worker):
    """Starts a worker, perhaps again."""
    environ = dict(os.environ, TF_CONFIG=format_tf_config(self.addresses, 'worker', worker))
    self.processes[worker] = process = subprocess.Popen(self._commands[worker], cwd=ROOT,
                                                        env=environ, stdout=subprocess.PIPE,
                                                        stderr=subprocess.STDOUT, text=True)

    def read():
      for line in process.stdout:
        self._lines[worker].append(line)

    self._readers[worker] = threading.Thread(target=read, daemon=True)
    self._readers[worker].start()

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

  def said(self, worker):
    return ''.join(self._lines[worker])

  def wait_for(self, worker, text, times=1):
    """Waits until a worker has said something so often."""
    until = time.monotonic() + SECONDS
    while self.said(worker).count(text) < times:
      assert self.processes[worker].poll() is None and time.monotonic() < until, self.all_said()
      time.sleep(0.02)

  def kill(self, worker, number=signal.SIGKILL):
    self.processes[worker].send_signal(number)

  def end(self, *workers, seconds=SECONDS):
    """Returns the exit codes of workers, all of them unless some are named, once they have ended
    within the time.
    """
    until = time.monotonic() + seconds
    codes = []
    for worker in workers or range(len(self.processes)):
      try:
        codes.append(self.processes[worker].wait(max(0.1, until - time.monotonic())))
      except subprocess.TimeoutExpired:
        raise AssertionError(f'worker {worker} does not end:\n{self.all_said()}') from None
      self._readers[worker].join()
      assert 'Traceback' not in self.said(worker), self.said(worker)
    return codes

  def all_said(self):
    return '\n'.join(
        f'---- worker {worker}\n{self.said(worker)}' for worker in range(len(self.processes)))
