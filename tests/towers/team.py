"""Several workers in one process: each has a server, a graph and a session of its own, and a thread to run it in."""

import concurrent.futures
import resource
import socket

from tensorflow_v1 import tf
from tests.towers.small import Run

SECONDS_TO_ANSWER = 60
# TensorFlow 1.14 cannot stop a server: what each has open stays so until the process ends.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(_soft, min(16384, _hard)) if _hard > 0 else _soft, _hard))


def find_ports(count):
  """Returns ports of loopback that nobody listens on."""
  sockets = [socket.socket() for _ in range(count)]
  for one in sockets:
    one.bind(('127.0.0.1', 0))
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


class Team:
  """`num_workers` times `Run`; what all of them do at once is done by `each`."""

  def __init__(self, *, num_workers, **settings):
    addresses = ['127.0.0.1:%d' % port for port in find_ports(num_workers)]
    self._servers = []

    def serve_as(worker):
      def serve(config):
        self._servers.append(tf.train.Server({'worker': addresses}, job_name='worker', task_index=worker,
                                             config=config))
        return self._servers[-1].target
      return serve

    self.runs = [Run(worker=worker, num_workers=num_workers, serve=serve_as(worker), **settings)
                 for worker in range(num_workers)]
    self._threads = concurrent.futures.ThreadPoolExecutor(num_workers)

  def __enter__(self):
    self.each(lambda run: (run.steps.spread(), run.steps.start(0)))
    return self

  def __exit__(self, *_):
    for run in self.runs:
      run.session.close()
    self._threads.shutdown(wait=False)

  def each(self, act):
    """Returns `act(run)` of all workers, which run at once."""
    futures = [self._threads.submit(act, run) for run in self.runs]
    return [future.result(SECONDS_TO_ANSWER) for future in futures]

  def train(self):
    """Takes one step; returns the loss, which is the same to the bit in all workers."""
    losses = self.each(lambda run: run.steps.train())
    assert len({float(loss) for loss in losses}) == 1, losses
    return losses[0]
