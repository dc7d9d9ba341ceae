"""Several workers in one process: each has a server, a graph and a session of its own, and a thread
to run it in.
"""

import concurrent.futures
import functools
import socket
from typing import Dict, List, Tuple

from tensorflow_v1 import tf
from tests.harness.small import Run

SECONDS_TO_ANSWER = 60


def find_ports(count):
  """Returns ports of loopback that nobody listens on."""
  sockets = [socket.socket() for _ in range(count)]
  for one in sockets:
    one.bind(('127.0.0.1', 0))
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


class _Servers:
  """Those of all workers of a cluster, each of which starts when it is asked for."""

  def __init__(self, num_workers):
    self._addresses = [f'127.0.0.1:{port}' for port in find_ports(num_workers)]
    self._servers = {}

  def target(self, worker, config):
    if worker not in self._servers:
      self._servers[worker] = tf.train.Server({'worker': self._addresses}, job_name='worker',
                                              task_index=worker, config=config)
    return self._servers[worker].target


class InProcessCluster:
  """`num_workers` times `Run`; what all of them do at once is done by `each`.

  Servers never end before their process does, each with its threads and 30 MB or more: teams take
  over what others, that ended well, have left.
  """

  _left: Dict[Tuple[int, str], List[_Servers]] = {}

  def __init__(self, *, num_workers, **settings):
    def serve(worker, config):
      if worker == 0:
        alike = tf.ConfigProto()
        alike.CopyFrom(config)
        alike.ClearField('device_filters')
        self._left_alike = self._left.setdefault((num_workers, str(alike)), [])
        self.servers = self._left_alike.pop() if self._left_alike else _Servers(num_workers)
      return self.servers.target(worker, config)

    self.runs = [
        Run(rank=worker, num_workers=num_workers, serve=functools.partial(serve, worker),
            **settings) for worker in range(num_workers)
    ]
    self._threads = concurrent.futures.ThreadPoolExecutor(num_workers)

  def __enter__(self):
    self.each(lambda run: (run.steps.broadcast(), run.steps.start(0)))
    return self

  def __exit__(self, error, *_):
    for run in self.runs:
      run.session.close()
    self._threads.shutdown(wait=False)
    if error is None:
      self._left_alike.append(self.servers)

  def each(self, act):
    """Returns `act(run)` of all workers, which run at once."""
    futures = [self._threads.submit(act, run) for run in self.runs]
    return [future.result(SECONDS_TO_ANSWER) for future in futures]

  def train(self):
    """Takes one step; returns the loss, which is the same to the bit in all workers."""
    losses = self.each(lambda run: run.steps.train())
    assert len({float(loss) for loss in losses}) == 1, losses
    return losses[0]
