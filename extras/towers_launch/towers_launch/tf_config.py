"""TF_CONFIG: the addresses of all workers and the rank of a process, as TensorFlow's tools read it.

  {"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
   "task": {"type": "worker", "index": 1}}

The launcher sets it for each process. If a cluster starts the processes, each makes its own from
the names of all hosts, in the same order everywhere, and its index among them:

  TF_CONFIG=$(python -m towers tf_config --index=1 --port=2222 10.0.0.1 10.0.0.2)
"""

import argparse
import json
from typing import NoReturn, Sequence

from towers.base.output import write_line
from towers.base.usage_error import UsageError

_LARGEST_PORT = 65535


class Parser(argparse.ArgumentParser):
  """An argument parser whose errors are one line, without the usage."""

  def error(self, message: str) -> NoReturn:
    """Raises a UsageError."""
    raise UsageError(f'{message}. See --help.')


def format_tf_config(workers: Sequence[str], task_type: str, index: int) -> str:
  """Returns the value of TF_CONFIG for one process."""
  return json.dumps({'cluster': {'worker': list(workers)},
                     'task': {'type': task_type, 'index': index}})


def main(arguments: Sequence[str]) -> None:
  """Prints the TF_CONFIG of a command line; raises UsageError."""
  parser = Parser(prog='python -m towers tf_config', allow_abbrev=False,
                  description='Prints the TF_CONFIG of one worker.')
  parser.add_argument('--index', type=int, required=True,
                      help='of this worker among the hosts, from 0')
  parser.add_argument('--port', type=int, required=True, help='of the server of each worker')
  parser.add_argument('hosts', nargs='+', metavar='HOST',
                      help='of all workers, in the same order for each of them')
  given = parser.parse_args(arguments)
  if len(set(given.hosts)) < len(given.hosts):
    twice = next(host for host in given.hosts if given.hosts.count(host) > 1)
    raise UsageError(f'{twice} is twice among the hosts, and each runs one worker: name it once.')
  if not 0 <= given.index < len(given.hosts):
    raise UsageError(f'index={given.index}, but there are {len(given.hosts)} hosts, from 0 to '
                     f'{len(given.hosts) - 1}: give the index of this host among them.')
  if not 0 < given.port <= _LARGEST_PORT:
    raise UsageError(f'port={given.port} is not a port: use 1 to {_LARGEST_PORT}.')
  write_line(format_tf_config([f'{host}:{given.port}' for host in given.hosts], 'worker',
                              given.index))
