"""Worker: this process in its cluster, until all workers start training together.

  roll call ─► serve ─► meet ─► (build the graph) ─► compare graphs ─► the chief's state ─► train
  versions,                                          all name the worker that differs, and the
  flags, data                                        values

TensorFlow itself waits for a worker in silence, and workers whose graphs differ hang, or train
apart.
"""

import atexit
import contextlib
import hashlib
import json
import resource
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from tensorflow_v1 import Graph, ServerSession, Session, tf
from towers.annexes import load as load_annex
from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.data.digest import digest_examples
from towers.data.examples import Examples
from towers.placement.cluster import Cluster
from towers.placement.collectives import sum_of_workers
from towers.placement.devices import build_session_config
from towers.placement.workers import Workers
from towers.training.cluster.peers import REFUSED, Peers, find_faults
from towers.training.cluster.roll_call import RollCall, check_alike, name_ranks
from towers.training.faults.run_error import RunError, WorkerGone, tell_uncaught
from towers.training.stepping.startup import Startup

# Those of TensorFlow's server, of data and of checkpoints; -1 is no limit.
_OPEN_FILES = 64
_FIX = 'Start all of them with the same flags, data and versions.'


class Worker:
  """One of several workers, with a server of its own.

  Attributes:
    cluster: the workers, this one included.
    session_config: for the server and its sessions.
    peers: watches the others, once all have met.
  """

  peers: Peers

  def __init__(self, cluster: Cluster, session_config: Any):
    """Starts the server; raises a UsageError if it cannot, as when its port is in use."""
    self.cluster = cluster
    self.session_config = session_config
    self._next_key = 1  # The keys of a program's graph are far above.
    try:
      self._server = tf.train.Server({'worker': cluster.addresses}, job_name='worker',
                                     task_index=cluster.rank, config=session_config)
    except tf.errors.OpError as error:
      raise UsageError(f'The server of {cluster.describe(cluster.rank)} cannot start: '
                       f'{find_reason(error)}. See what listens on its port (ss -ltnp), or choose '
                       'another in TF_CONFIG on all workers.') from None
    if cluster.is_on_loopback:
      self._keep_others_away()

  def _keep_others_away(self):
    try:
      load_annex('workers on loopback')(self.cluster.port)
    except (OSError, UsageError) as error:  # The annex may be missing.
      write_line(f'WARNING: other machines can reach the server of '
                 f'{self.cluster.describe(self.cluster.rank)}, which asks nobody who they are: '
                 f'{find_reason(error)}. Close its port to them by a firewall, or start the '
                 'workers by python -m towers.launch --network=loopback.')

  def meet(self, limit_seconds: float) -> None:
    """Waits until the servers of all workers answer; raises a WorkerGone that names the missing."""
    until = time.monotonic() + limit_seconds
    missing = [rank for rank in range(len(self.cluster.addresses)) if rank != self.cluster.rank]
    while True:
      found = find_faults(self.cluster, missing)
      faults = {rank: fault for rank, fault in found.items() if fault}
      missing = sorted(faults)
      if not faults:
        return
      if time.monotonic() >= until:
        clauses = [f"worker {rank} {'does not listen' if fault == REFUSED else fault}"
                   for rank, fault in sorted(faults.items())]
        raise WorkerGone(
            f"The server of {name_ranks(self.cluster, missing)} not there after "
            f"{limit_seconds:g} s (start_seconds), although it was before: {'; '.join(clauses)}. "
            'See why it ended, and start all workers again.')
      time.sleep(0.2)

  def share(self, text: str) -> List[str]:
    """Returns the texts of all workers, by rank; all workers call it at the same time."""
    data = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    count, own = len(self.cluster.addresses), self.cluster.rank
    lengths = np.zeros([count], np.int32)
    lengths[own] = len(data)
    lengths = self._sum(lengths)

    table = np.zeros([count, max(1, lengths.max())], np.int32)
    table[own, :len(data)] = data
    rows = self._sum(table)
    return [bytes(row[:length].astype(np.uint8)).decode() for row, length in zip(rows, lengths)]

  def _sum(self, values):
    """Returns the sum of all workers' arrays, computed in a graph and a session of its own."""
    key, self._next_key = self._next_key, self._next_key + 1
    with tf.Graph().as_default() as graph, tf.device('/device:CPU:0'):
      placeholder = tf.placeholder(tf.int32, values.shape)
      total = sum_of_workers(placeholder, num_workers=len(self.cluster.addresses), key=key)
    with self.open_session(graph) as session:
      try:
        return session.run(total, {placeholder: values})
      except tf.errors.OpError as error:
        raise self.peers.explain(error) or RunError(
            f'The workers cannot exchange what they must agree on: {find_reason(error)}') from None

  def open_session(self, graph: Optional[Graph] = None) -> Session:
    """Returns a session on the server, for the default graph or another."""
    return ServerSession(self._server.target, graph=graph, config=self.session_config)

  def compare(self, what: str, facts: Dict[str, Any], fix: str) -> None:
    """Makes sure that all workers have the same facts by name, as `check_alike` does."""
    text = json.dumps(facts, sort_keys=True, default=str)
    check_alike(self.cluster, what, [json.loads(other) for other in self.share(text)], fix)

  def compare_graphs(self, graph: Graph, startup: Startup) -> None:
    """Makes sure that all workers have built the same, before they take a step together."""
    startup.begin('workers\' graphs', 'waiting for the graphs of the other workers')
    self.compare('graphs', _facts_of_graph(graph),
                 'Something in the model or the data depends on the machine: see to it that all '
                 'workers build the same.')


def _facts_of_graph(graph: Any) -> Dict[str, str]:
  """Returns what all workers' graphs must share: variables, collectives and the first tower."""
  with graph.as_default():
    variables = [f'{variable.op.name} {variable.shape} {variable.dtype.base_dtype.name}'
                 for variable in tf.global_variables()]
  ops = graph.get_operations()
  # Of sums whose shape each step chooses, 2.x takes the key as an input.
  collectives = [f"{op.type} {op.node_def.attr['instance_key'].i} "
                 f"{[str(value.shape) for value in op.inputs]}"
                 for op in ops if op.type.startswith('CollectiveReduce')]
  tower = [f'{op.name} {op.type}' for op in ops if op.name.startswith('tower_0/')]
  return dict(variables=_digest(variables), collectives=_digest(collectives),
              ops_of_tower_0=_digest(tower))


def _digest(lines):
  """Returns the number of lines and a hash of them."""
  digest = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
  return f'{len(lines)}, {digest[:8]}'


# A server ends with its process alone, so that a later program of the process trains on it.
_started: Dict[Tuple[Tuple[str, ...], int], Worker] = {}


def _drop_servers():
  """Drops all servers, though the collector leaves alone the cycles that hold their workers."""
  for worker in _started.values():
    del worker._server
  _started.clear()


def has_started(cluster: Cluster) -> bool:
  """Returns whether the server of this worker runs in this process, of an earlier program."""
  return _name(cluster) in _started


def _name(cluster):
  return tuple(cluster.addresses), cluster.rank


def _find_started(cluster: Cluster, session_config: Any) -> Optional[Worker]:
  """Returns the worker of an earlier program here, or None; refuses one on other devices."""
  worker = _started.get(_name(cluster))
  if worker is not None and worker.session_config != session_config:
    raise UsageError('This process has trained another program as a worker, on other devices or '
                     'with other threads, and TensorFlow ends its server only with the process: '
                     'give both programs the same num_towers, device and session settings, or '
                     'start a process for each.')
  return worker


def _check_open_files():
  """Raises a UsageError where TensorFlow's server would end the process for want of files."""
  limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  if 0 <= limit < _OPEN_FILES:
    raise UsageError(f'A worker needs some {_OPEN_FILES} open files, and this process may have '
                     f'{limit}: raise the limit, as by ulimit -n 1024.')


@contextlib.contextmanager
def join_workers(cluster: Cluster, facts: Mapping[str, Any], *, startup: Startup,
                 session_settings: Mapping[str, Any], start_seconds: float = 300.0,
                 worker_seconds: float = 20.0) -> Iterator[Optional[Worker]]:
  """Meets the other workers, and watches them while the context lasts; yields None if alone.

  All must share the `facts` by name, such as flags and examples. `session_settings` are arguments
  of `towers.build_session_config`, the devices among them. All have `start_seconds` to come, and
  another may then be silent for `worker_seconds`.

  Raises:
    UsageError: the port is in use, or the workers differ.
    WorkerGone: a worker is missing.
  """
  if not cluster.trains_together:
    yield None
    return
  tell_uncaught()
  _check_open_files()
  startup.limit_idleness(start_seconds)
  session_config = build_session_config(workers=Workers(cluster.num_workers, cluster.rank),
                                        **session_settings)
  facts = {name: digest_examples(fact) if isinstance(fact, Examples) else fact
           for name, fact in dict(facts, tensorflow=tf.__version__).items()}
  worker = _find_started(cluster, session_config)
  has_met = worker is not None
  startup.limit_idleness(None)  # From here on workers wait for each other.
  if worker is None:
    roll_call = RollCall(cluster, limit_seconds=start_seconds, tell=write_line)
    startup.begin('workers', roll_call.describe_wait)
    check_alike(cluster, 'versions, flags or data', roll_call.gather(facts), _FIX)
    worker = _started[_name(cluster)] = Worker(cluster, session_config)
    # The server of TensorFlow 1.14 complains if the interpreter ends first.
    atexit.register(_drop_servers)
    worker.meet(start_seconds)
  startup.limit(start_seconds)
  with Peers(cluster, limit_seconds=worker_seconds) as worker.peers:
    if has_met:
      startup.begin('workers', 'waiting for the other workers')
      worker.compare('flags or data', facts, _FIX)
    yield worker
