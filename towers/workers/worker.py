"""Worker: this process in its cluster, until all workers start training together.

  meet ─► compare ─► serve ─► (build the graph) ─► compare ─► the chief's state ─► train
          versions,                                graphs
          flags, data

TensorFlow itself waits for a worker in silence.
"""

import atexit
import contextlib
import resource
import socket
from typing import Any, Iterator, List, Mapping, Optional

from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.data.digest import digest_examples
from towers.data.examples import Examples
from towers.extras import load_extra
from towers.placement.cluster import TOKEN, Cluster, is_loopback
from towers.placement.devices import build_session_config
from towers.placement.workers import Workers
from towers.process.run_error import WorkerGone
from towers.process.startup import Startup
from towers.tensorflow_v1 import Graph, ServerSession, Session, tf
from towers.workers.agreement import check_alike, find_facts
from towers.workers.meeting import Peers

# TensorFlow 1.14, which takes the most, held 78 among 8 workers, and 176 among 32; the rest is for
# data and checkpoints.
_OPEN_FILES, _OPEN_FILES_OF_A_WORKER = 48, 8
_SECONDS_TO_CONNECT = 10.0


class Worker:
  """One of several workers, with a server of its own.

  Attributes:
    cluster: the workers, this one included.
    session_config: for the server and its sessions.
    peers: the others, which it has met.
  """

  def __init__(self, cluster: Cluster, session_config: Any, peers: Optional[Peers] = None):
    """Starts the server; raises a UsageError if it cannot, as when its port is in use."""
    self.cluster = cluster
    self.session_config = session_config
    self.peers = peers or Peers(cluster)
    try:
      self._server = tf.train.Server({'worker': cluster.addresses}, job_name='worker',
                                     task_index=cluster.rank, config=session_config)
    except tf.errors.OpError as error:
      raise UsageError(f'The server of {cluster.describe(cluster.rank)} cannot start: '
                       f'{find_reason(error)}. See what listens on its port (ss -ltnp), or choose '
                       'another in TF_CONFIG on all workers.') from None
    # That of TensorFlow 1.14 complains if the interpreter ends first.
    atexit.register(delattr, self, '_server')
    is_on_one_machine = all(map(is_loopback, cluster.addresses))
    if is_on_one_machine:
      self._keep_others_away()
    if cluster.is_chief and not cluster.is_apart:
      write_line(_describe_reach(is_on_one_machine, bool(cluster.token)))

  def _keep_others_away(self):
    try:
      load_extra('workers on loopback')(self.cluster.endpoint(self.cluster.rank)[1])
    except (OSError, UsageError) as error:  # The package may be missing.
      write_line(f'WARNING: other machines can reach the server of '
                 f'{self.cluster.describe(self.cluster.rank)}, which asks nobody who they are: '
                 f'{find_reason(error)}. Close its port to them by a firewall, or start the '
                 'workers by python -m towers launch --network=loopback.')

  def reach_others(self) -> None:
    """Raises a WorkerGone if another server cannot be reached, all of which have started."""
    for rank in range(len(self.cluster.addresses)):
      try:
        socket.create_connection(self.cluster.endpoint(rank), _SECONDS_TO_CONNECT).close()
      except OSError as error:
        raise WorkerGone(
            f'The server of {self.cluster.describe(rank)} cannot be reached: {error}. See that '
            'this is its address, and that each worker can reach the ports of the others.'
            ) from None

  def open_session(self) -> Session:
    """Returns a session on the server, for the default graph."""
    return ServerSession(self._server.target, config=self.session_config)

  def compare_graphs(self, graph: Graph, startup: Startup) -> None:
    """Makes sure that all workers have built the same, before they take a step together."""
    startup.begin('workers\' graphs', 'waiting for the graphs of the other workers')
    self.peers.share(find_facts(graph), lambda facts: check_alike(
        self.cluster, 'graphs', facts, 'Something in the model or the data depends on the machine: '
        'see to it that all workers build the same.'))


def _describe_reach(is_on_one_machine, has_token):
  """Returns who can reach the workers, what they can do there, and what closes it."""
  if is_on_one_machine:
    who, fix = 'every user of this machine', (
        'python -m towers launch --network=auto closes them, and cuts the run off from downloads '
        'and trackers')
  else:
    who, fix = 'whoever reaches them over the network', (
        'a firewall or a network policy closes them, as that of deploy/kubernetes.yaml')
  place = '' if has_token else f", or take a worker's place at the start (without {TOKEN})"
  return (f"ports: {who} can run any op in the workers, and so read and write this user's files"
          f'{place}; {fix}')


# A server ends with its process alone, so that a later program of the process trains on it.
_started: List[Worker] = []


def find_started(cluster: Cluster) -> Optional[Worker]:
  """Returns this worker where an earlier program of this process has started it, or None."""
  return next((worker for worker in _started if worker.cluster == cluster), None)


def _allow_open_files(num_workers):
  """Lets this process have the open files that TensorFlow's server would end it for want of."""
  need = _OPEN_FILES + _OPEN_FILES_OF_A_WORKER * num_workers
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if not 0 <= soft < need:  # -1 is no limit.
    return
  try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
  except (OSError, ValueError):
    raise UsageError(
        f'Each of {num_workers} workers needs up to {need} open files, and this process may have '
        f'{hard} at most: raise its hard limit, as by ulimit -Hn {need} as root, or nofile in '
        '/etc/security/limits.conf.') from None


@contextlib.contextmanager
def join_workers(cluster: Cluster, facts: Mapping[str, Any], *, startup: Startup,
                 session_settings: Mapping[str, Any], start_seconds: float = 300.0,
                 worker_seconds: float = 20.0) -> Iterator[Optional[Worker]]:
  """Meets the other workers, and watches them while the context lasts; yields None if alone.

  All must share the `facts` by name, such as flags and examples, or it is a UsageError.
  `session_settings` are arguments of `build_session_config`, the devices among them. All have
  `start_seconds` to come, and another may then be silent for `worker_seconds`: a WorkerGone.
  """
  if not cluster.trains_together:
    yield None
    return
  _allow_open_files(cluster.num_workers)
  startup.limit(start_seconds, is_of_idleness=True)
  session_config = build_session_config(workers=Workers(cluster.num_workers, cluster.rank),
                                        **session_settings)
  facts = {name: digest_examples(fact) if isinstance(fact, Examples) else fact
           for name, fact in dict(facts, tensorflow=tf.__version__).items()}
  worker = find_started(cluster)
  if worker is not None and worker.session_config != session_config:
    raise UsageError(
        'This process has trained another program as a worker, on other devices or with other '
        'threads, and TensorFlow ends its server only with the process: give both programs the '
        'same num_towers, device and session settings, or start a process for each.')
  startup.limit(None)  # From here on workers wait for each other.
  peers = Peers(cluster) if worker is None else worker.peers
  startup.begin('workers', peers.describe_wait)
  try:
    if worker is None:
      peers.meet(start_seconds)
    startup.limit(start_seconds)
    with peers.watched(worker_seconds):
      peers.share(facts, lambda of_all: check_alike(
          cluster, 'versions, settings or data', of_all,
          'Start all of them with the same settings, data and versions.'))
      if worker is None:
        worker = Worker(cluster, session_config, peers)
        _started.append(worker)
        peers.share('serves')
        worker.reach_others()
      yield worker
  finally:
    if worker is None:
      peers.close()
