"""Counted links: proxies between the servers of workers that count the bytes which they pass on."""

import socket
import threading
from collections import Counter
from typing import Tuple

from tests.harness.in_process_cluster import NUM_THREADS, find_ports
from towers.tensorflow_v1 import tf

_BYTES = 1 << 16


class CountedLinks:
  """The servers of a cluster in this process; each reaches every other one by a proxy.

  Attributes:
    passed: the bytes that went from one rank to another, by (from, to).
  """

  def __init__(self, num_workers: int):
    self.passed: Counter = Counter()
    self._ports = find_ports(num_workers)
    self._listeners = []
    self._servers = {}

  def target(self, rank, config):
    """Starts a worker's server; returns the target of its sessions."""
    addresses = []
    for other, port in enumerate(self._ports):
      addresses.append(f'127.0.0.1:{port if other == rank else self._listen(rank, other)}')
    config.inter_op_parallelism_threads = NUM_THREADS  # Of the process, as the first server says.
    self._servers[rank] = tf.train.Server({'worker': addresses}, job_name='worker',
                                          task_index=rank, config=config)
    return self._servers[rank].target

  def close(self):
    for listener in self._listeners:
      listener.close()

  def _listen(self, rank, other) -> int:
    listener = socket.socket()
    listener.bind(('127.0.0.1', 0))
    listener.listen(8)
    self._listeners.append(listener)
    self._run(self._accept, listener, rank, other)
    return listener.getsockname()[1]

  def _accept(self, listener, rank, other):
    while True:
      try:
        near, _ = listener.accept()
      except OSError:
        return
      try:
        far = socket.create_connection(('127.0.0.1', self._ports[other]))
      except OSError:  # The other server is not there yet: TensorFlow asks again.
        near.close()
        continue
      self._run(self._pass_on, near, far, (rank, other))
      self._run(self._pass_on, far, near, (other, rank))

  def _pass_on(self, source, sink, way: Tuple[int, int]):
    while True:
      try:
        chunk = source.recv(_BYTES)
        # Before they pass, so that bytes that have arrived are counted.
        self.passed[way] += len(chunk)
        if chunk:
          sink.sendall(chunk)
      except OSError:
        chunk = b''
      if not chunk:
        source.close()
        sink.close()
        return

  def _run(self, function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()
