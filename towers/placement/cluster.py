"""Cluster: the workers that train together, and the rank of this one, from TF_CONFIG.

  TF_CONFIG='{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
              "task": {"type": "worker", "index": 1}}'

Only the task differs by machine. A "chief" comes before the workers; without one, worker 0 is the
chief. An "evaluator" measures checkpoints. Nothing here imports TensorFlow.
"""

import json
import re
import socket
from typing import Any, List, Mapping, NamedTuple, Tuple

from towers.base.json_files import parse_json
from towers.base.usage_error import UsageError

VARIABLE = 'TF_CONFIG'
# Set by a launcher that may restart all workers as another number of them.
ELASTIC = 'TOWERS_ELASTIC'
# Set by a launcher, or by hand for all workers: without it nobody takes a worker's place.
TOKEN = 'TOWERS_TOKEN'
# Set by a launcher whose workers have a network of their own.
APART = 'TOWERS_APART'
_JOBS = ('chief', 'worker', 'evaluator')
_ADDRESS = re.compile(r'[!-~]+:([0-9]{1,5})\Z')
_MOST_SHOWN = 60
_EXAMPLE = ('{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", '
            '"index": 0}}')


class Token(str):
  """What all workers of a run know and nobody else; no message shows it."""

  def __repr__(self) -> str:
    return '<token>' if self else "''"


class Cluster(NamedTuple):
  """The workers that train together, and the rank of this one, 0 for an evaluator."""
  addresses: List[str]  # 'host:port' of all workers, by rank, the chief's first.
  rank: int = 0
  is_evaluator: bool = False  # Measures checkpoints instead of training.
  is_elastic: bool = False  # The launcher may start all again as another number of workers.
  token: Token = Token()  # Of the run; all workers have the same, or none.
  is_apart: bool = False  # The workers have a network of their own.

  @property
  def is_chief(self) -> bool:
    """Whether this process saves and reports."""
    return self.rank == 0 and not self.is_evaluator

  @property
  def num_workers(self) -> int:
    """The number of workers that train with this process, itself included."""
    return 1 if self.is_evaluator else len(self.addresses)

  @property
  def trains_together(self) -> bool:
    """Whether this process is one of several workers that train."""
    return self.num_workers > 1

  def endpoint(self, rank: int) -> Tuple[str, int]:
    """Returns host and port of a worker, as `socket` takes them."""
    host, _, port = self.addresses[rank].rpartition(':')
    return host.strip('[]'), int(port)

  def describe(self, rank: int) -> str:
    """Returns a worker in words: 'worker 1 (10.0.0.2:2222)'."""
    return f'worker {rank} ({self.addresses[rank]})'


ALONE = Cluster([''])


def is_loopback(address: str) -> bool:
  """Whether a 'host:port' says that it is on this machine, and only there."""
  host = address.rpartition(':')[0].strip('[]')
  return host in ('localhost', '::1') or re.fullmatch(r'127(\.\d{1,3}){3}', host) is not None


def read_cluster(environ: Mapping[str, str]) -> Cluster:
  """Returns the cluster of TF_CONFIG in `environ`; one worker if it is missing or empty."""
  text = environ.get(VARIABLE, '').strip()
  try:
    content = parse_json(text or '{}')
  except ValueError as error:
    raise _refusal(f'is no JSON: {error}') from None
  if not isinstance(content, dict):
    raise _refusal(f'is {_show(content)}, and must be an object')
  if not content.get('cluster'):
    # As in Estimator, a task or an environment without a cluster is one process.
    return ALONE
  jobs = _check_jobs(content['cluster'])
  addresses = jobs.get('chief', []) + jobs.get('worker', [])
  if not addresses:
    raise _refusal('names no worker')
  for address in addresses:
    if addresses.count(address) > 1:
      raise _refusal(f'names the address {address} twice: two workers need two ports')
  cluster = _find_task(content.get('task'), jobs, addresses)
  return cluster._replace(is_elastic=bool(environ.get(ELASTIC)),
                          token=Token(environ.get(TOKEN, '')), is_apart=bool(environ.get(APART)))


def _check_jobs(cluster: Any) -> Any:
  """Returns the cluster's lists of addresses by job, or raises if they are invalid."""
  if not isinstance(cluster, dict):
    raise _refusal('has a cluster that is no object')
  for job, addresses in cluster.items():
    if job == 'ps':
      raise _refusal('names parameter servers (ps), which do not exist here: workers all-reduce '
                     'gradients directly; leave "ps" out')
    if job not in _JOBS:
      raise _refusal(f"names the job {_show(job)}: choose from {', '.join(_JOBS)}")
    if not isinstance(addresses, list):
      raise _refusal(f'has a job "{job}" that is no list of addresses')
    for address in addresses:
      match = isinstance(address, str) and _ADDRESS.match(address)
      if not match or not 0 < int(match.group(1)) < 65536:
        raise _refusal(f'has the address {_show(address)} for a {job}: it must be host:port')
  if len(cluster.get('chief', [])) > 1:
    raise _refusal(f"names {len(cluster['chief'])} chiefs, and there can only be one")
  return cluster


def _find_task(task: Any, jobs: Any, addresses: List[str]) -> Cluster:
  """Returns the cluster with the rank of this process, by its task."""
  if not isinstance(task, dict) or 'type' not in task:
    raise _refusal(f'has no task, so that this process cannot know which of the {len(addresses)} '
                   'workers it is')
  # A master was the chief's name before TensorFlow 1.12.
  job = 'chief' if task['type'] == 'master' else task['type']
  if job not in _JOBS:
    raise _refusal(f"has a task of type {_show(job)}: choose from {', '.join(_JOBS)}")
  if job == 'evaluator':
    return Cluster(addresses, is_evaluator=True)
  index, count = task.get('index', 0), len(jobs.get(job, []))
  if type(index) is not int or not 0 <= index < count:
    valid = f'give an index from 0 to {count - 1}' if count else 'choose one that is there'
    raise _refusal(f'says that this is {job} {_show(index)}, but names {count} of them: {valid}')
  return Cluster(addresses, index + (len(jobs.get('chief', [])) if job == 'worker' else 0))


def listen(cluster: Cluster, *, on_all: bool = False) -> socket.socket:
  """Returns a socket on this worker's port: of this machine alone if its address is, or `on_all`.

  TensorFlow does not refuse a port in use: two of its servers may share one, and answer in turn.
  """
  host, port = cluster.endpoint(cluster.rank)
  if on_all or not is_loopback(cluster.addresses[cluster.rank]):
    host = ''
  listener = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
  # Ignores connections that an ended run has left in TIME_WAIT.
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  try:
    listener.bind((host, port))
    listener.listen(len(cluster.addresses))
  except OSError as error:
    listener.close()
    raise UsageError(
        f'{cluster.describe(cluster.rank)} cannot listen on port {port} of this '
        f'machine: {error.strerror}. Is it running already? End what uses the '
        f'port (ss -ltnp shows it), or choose another in {VARIABLE} on all workers.') from None
  return listener


def _show(value: Any) -> str:
  """Returns the start of a value as JSON, for a message."""
  text = json.dumps(value, ensure_ascii=False)
  return text if len(text) <= _MOST_SHOWN else f'{text[:_MOST_SHOWN]} …'


def _refusal(what):
  return UsageError(f'{VARIABLE} {what}. It must be like {_EXAMPLE}, or be unset for one worker.')
