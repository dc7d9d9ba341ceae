"""Worker: this process among those that train together, from the first sign of the others to the
common start.

  serve ─► meet ─► compare flags ─► (build the graph) ─► compare graphs ─► the chief's state ─►
  train
           waits for all, names who is missing           both name the odd worker and what is odd

TensorFlow itself is silent while it waits for a worker, and workers whose graphs differ hang, or
train apart.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import numpy as np

import towers
from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.placement.collectives import sum_of_workers
from towers.training.cluster.peers import REFUSED, Peers, find_faults
from towers.training.faults.reason import find_reason
from towers.training.faults.run_error import RunError
from towers.training.settings.cluster import Cluster
from towers.training.settings.config import Config
from towers.training.stepping.session import build_session_config
from towers.training.stepping.startup import Startup

# What may differ from worker to worker: paths of their machines, and what changes no number.
_OWN = ('data_dir', 'checkpoint_dir', 'result_file', 'summary_dir', 'report', 'trace_steps',
    'trace_file', 'export_dir',
        'device', 'num_gpus', 'input_threads', 'inter_threads', 'intra_threads', 'graph_rewriter',
        'xla', 'tower_build',
        'stall_seconds', 'worker_seconds', 'start_seconds', 'on_full_disk', 'keep_checkpoints',
        'quiet')


class Worker:
  """One of several workers, with a server of its own.

  Attributes:
    target: to open sessions on.
    session_config: for them.
    cluster: of which it is one.
    missing: the numbers of those that are not there yet.
    peers: watches the others, once all have met.
  """

  def __init__(self, cluster: Cluster, session_config: Any, *, worker_seconds: float):
    """Starts the server.

    Args:
      cluster: of which this process is a worker.
      session_config: for the server, and for sessions on it.
      worker_seconds: how long another may be silent.

    Raises:
      UsageError: it cannot be started, as where the port is in use.
    """
    self.cluster = cluster
    self.session_config = session_config
    self._next_key = 1  # Those of a program's graph are far above.
    try:
      self._server = tf.train.Server({'worker': cluster.addresses}, job_name='worker',
                                     task_index=cluster.rank, config=session_config)
    except tf.errors.OpError as error:
      raise UsageError(f'The server of {cluster.describe(cluster.rank)} cannot be started: '
                       f'{find_reason(error)}. See what listens on its port (ss -ltnp), or name '
                       'another in TF_CONFIG on all workers.') from None
    self.target = self._server.target
    self.peers = Peers(cluster, limit_seconds=worker_seconds)
    self.missing: List[int] = [
        worker for worker in range(len(cluster.addresses)) if worker != cluster.rank
    ]

  def close(self) -> None:
    """Gives the server back, while what it needs for that is there: TensorFlow 1.14's complains at
    the very end.
    """
    del self._server

  def meet(self, limit_seconds: float, *, tell: Callable[[str], Any] = print,
           ask: Callable[[Cluster], Dict[int, str]] = find_faults,
           clock: Callable[[], float] = time.monotonic) -> None:
    """Waits until all workers are there, and tells for whom.

    Raises:
      RunError: one is not within `limit_seconds`; names it.
    """
    until = clock() + limit_seconds
    never_seen = set(self.missing)
    has_told = False
    while True:
      faults = {worker: fault for worker, fault in ask(self.cluster).items() if fault}
      never_seen &= set(faults)
      # Who was there and is not any more has had its own reason, such as that another is missing.
      self.missing = sorted(never_seen or faults)
      if not faults:
        return
      if not has_told:
        tell(self.describe_wait())
        has_told = True
      if clock() >= until:
        raise RunError(
            '{} not there after {:g} s (start_seconds): {}. Start the same command on '
            'every machine of '
            'TF_CONFIG, and see that each can reach the ports of the others.'.format(
                self._name_missing(), limit_seconds, '; '.join(
                    'worker %d %s' %
                    (worker, 'does not listen' if faults[worker] == REFUSED else faults[worker])
                    for worker in self.missing)))
      time.sleep(0.2)

  def describe_wait(self) -> str:
    """Returns in words who is waited for."""
    return f'waiting for the other workers: {self._name_missing()} not there yet'

  def _name_missing(self):
    """Returns who is not there yet: 'worker 1 (10.0.0.2:2222) is'."""
    named = ', '.join(self.cluster.describe(worker) for worker in self.missing)
    return f"{named} {'is' if len(self.missing) == 1 else 'are'}"

  def share(self, text: str) -> List[str]:
    """Returns the texts of all workers, each of which calls it at the same time, the chief's first.
    """
    data = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    count, own = len(self.cluster.addresses), self.cluster.rank
    lengths = np.zeros([count], np.int32)
    lengths[own] = len(data)
    lengths = self._sum(lengths)
    table = np.zeros([count, max(1, lengths.max())], np.int32)
    table[own, :len(data)] = data
    return [
        bytes(row[:length].astype(np.uint8)).decode()
        for row, length in zip(self._sum(table), lengths)
    ]

  def _sum(self, numbers):
    """Returns the sum of all workers' arrays, in a graph and a session of its own."""
    key, self._next_key = self._next_key, self._next_key + 1
    with tf.Graph().as_default() as graph, tf.device('/device:CPU:0'):
      given = tf.placeholder(tf.int32, numbers.shape)
      total = sum_of_workers(given, num_workers=len(self.cluster.addresses), key=key)
    with tf.Session(self.target, graph=graph, config=self.session_config) as session:
      try:
        return session.run(total, {given: numbers})
      except tf.errors.OpError as error:
        raise self.peers.explain(error) or RunError(
            f'The workers cannot exchange what they must agree on: {find_reason(error)}') from None

  def compare(self, what: str, facts: Dict[str, Any], fix: str) -> None:
    """Makes sure that all workers have the same facts.

    Args:
      what: has the facts, in words: 'flags'.
      facts: by name; of a value that is long, a hash.
      fix: what to do where they differ.

    Raises:
      UsageError: names the odd worker, the facts, and what they are elsewhere.
    """
    told = [json.loads(text) for text in self.share(json.dumps(facts, sort_keys=True, default=str))]
    differences = []
    for name in sorted({name for of_worker in told for name in of_worker}):
      values = [json.dumps(of_worker.get(name)) for of_worker in told]
      # Of two, the chief's.
      usual = max(values, key=lambda value:
                  (collections.Counter(values)[value], value == values[0]))
      differences += [f'{self.cluster.describe(worker)} has {name}={value}, the others {usual}'
                      for worker, value in enumerate(values) if value != usual]
    if differences:
      raise UsageError(f"The workers have different {what}: {'; '.join(differences[:8])}. {fix}")


def flags_of(config: Config) -> Dict[str, Any]:
  """Returns the settings that all workers must have in common."""
  return {name: value for name, value in dataclasses.asdict(config).items() if name not in _OWN}


def facts_of_graph(graph: Any) -> Dict[str, str]:
  """Returns what the graphs of all workers must have in common: variables, what is exchanged, the
  first tower.
  """
  with graph.as_default():
    variables = [f'{variable.op.name} {variable.shape} {variable.dtype.base_dtype.name}'
                 for variable in tf.global_variables()]
  ops = graph.get_operations()
  collectives = [f"{op.type} {op.get_attr('instance_key')} "
                 f"{[str(value.shape) for value in op.inputs]}"
                 for op in ops if op.type.startswith('CollectiveReduce')]
  tower = [f'{op.name} {op.type}' for op in ops if op.name.startswith('tower_0/')]
  return {name: '%d, %s' % (len(lines), hashlib.sha256('\n'.join(lines).encode()).hexdigest()[:8])
          for name, lines in (('variables', variables), ('collectives', collectives), (
              'ops_of_tower_0', tower))}


@contextlib.contextmanager
def join_workers(cluster: Cluster, *, config: Config, devices: towers.Devices,
                 facts: Dict[str, Any], startup: Startup) -> Iterator[Optional[Worker]]:
  """Meets the other workers, and watches them while the context lasts; gives None where there are
  none.

  Args:
    cluster: of which this process is a worker.
    config: of the run.
    devices: of this worker's towers.
    facts: what else all workers must have in common, by name.
    startup: entered.

  Raises:
    UsageError: the port is in use, or the workers differ.
    RunError: a worker is not there.
  """
  if not cluster.trains_together:
    yield None
    return
  session_config = build_session_config(config, devices,
                                        towers.Workers(cluster.num_workers, cluster.rank))
  worker = Worker(cluster, session_config, worker_seconds=config.worker_seconds)
  startup.begin('workers', worker.describe_wait)
  worker.meet(config.start_seconds, tell=lambda text: print(text, flush=True))
  with worker.peers:
    worker.compare('flags or data', dict(flags_of(config), **facts),
                   'Start all of them with the same flags, data and versions.')
    yield worker
  worker.close()
