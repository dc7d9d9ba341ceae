"""Several workers in one process, each with its own server, graph, session and thread."""

import concurrent.futures
import contextlib
import functools
import json
import socket
import threading
from typing import Dict, List, Tuple

from tests.harness.small import Run
from towers.tensorflow_v1 import tf

SECONDS_TO_ANSWER = 60
NUM_THREADS = 16


def find_ports(count):
  """Returns free ports of loopback."""
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for one in sockets:
      one.bind(('127.0.0.1', 0))
    return [one.getsockname()[1] for one in sockets]


class _Servers:
  """The servers of a cluster; each starts when its target is first needed."""

  def __init__(self, num_workers):
    self._addresses = [f'127.0.0.1:{port}' for port in find_ports(num_workers)]
    self._servers = {}

  def target(self, rank, config):
    if rank not in self._servers:
      self._servers[rank] = tf.train.Server({'worker': self._addresses}, job_name='worker',
                                            task_index=rank, config=config)
    return self._servers[rank].target


class InProcessCluster:
  """A `Run` for each of `num_workers` workers; `each` calls a function on all of them at once.

  A server lives as long as its process, with threads and at least 30 MB, so a cluster reuses the
  servers of one that ended well.
  """

  _idle: Dict[Tuple[int, str], List[_Servers]] = {}

  def __init__(self, *, num_workers, **settings):
    def serve(rank, config):
      # All servers of a process share its threads, and an iterator that starts anew blocks one.
      config.inter_op_parallelism_threads = NUM_THREADS
      if rank == 0:
        common = tf.ConfigProto()
        common.CopyFrom(config)
        common.ClearField('device_filters')
        self._reusable = self._idle.setdefault((num_workers, str(common)), [])
        self.servers = self._reusable.pop() if self._reusable else _Servers(num_workers)
      return self.servers.target(rank, config)

    values, all_are_here = [None] * num_workers, threading.Barrier(num_workers)

    def share(rank, value, decide=list):
      values[rank] = json.loads(json.dumps(value))
      all_are_here.wait(SECONDS_TO_ANSWER)
      shared = list(values)
      all_are_here.wait(SECONDS_TO_ANSWER)
      return decide(shared)

    self.runs = [Run(rank=rank, num_workers=num_workers, serve=functools.partial(serve, rank),
                     share=functools.partial(share, rank), **settings)
                 for rank in range(num_workers)]
    self._threads = concurrent.futures.ThreadPoolExecutor(num_workers)

  def __enter__(self):
    self.each(lambda run: (run.opened.resume(), run.opened.start()))
    return self

  def __exit__(self, error, *_):
    for run in self.runs:
      run.session.close()
    self._threads.shutdown(wait=False)
    if error is None:
      self._reusable.append(self.servers)

  def each(self, act):
    """Returns `act(run)` for all workers, which run at once."""
    futures = [self._threads.submit(act, run) for run in self.runs]
    return [future.result(SECONDS_TO_ANSWER) for future in futures]

  def train(self, steps=1):
    """Takes steps; returns the loss of the last, which has the same bits in all workers."""
    for _ in range(steps):
      losses = self.each(lambda run: run.train())
      assert len({float(loss) for loss in losses}) == 1, losses
    return losses[0]
