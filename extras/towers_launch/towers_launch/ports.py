"""Ports: free ones of this machine, for the workers to listen on."""

import contextlib
import random
import socket
from typing import List

from towers.base.usage_error import UsageError

# Outgoing connections have ports from 32768: a worker that connects to a peer before it listens
# could get that peer's own port. Kubernetes gives services of a node ports from 30000.
_PORTS = range(20000, 30000)


def find_free_ports(count: int) -> List[int]:
  """Returns ports on which nothing listens at this moment.

  The workers take them later, when they have imported TensorFlow. If another program was faster, a
  worker ends and says so; another launch finds other ports.

  Raises:
    UsageError: fewer are free.
  """
  free: List[int] = []
  with contextlib.ExitStack() as sockets:
    for port in random.sample(_PORTS, len(_PORTS)):
      if len(free) == count:
        break
      with contextlib.suppress(OSError):
        # TensorFlow's server listens on all interfaces too.
        sockets.enter_context(socket.socket()).bind(('', port))
        free.append(port)
  if len(free) < count:
    raise UsageError(f'workers={count} need as many ports from {_PORTS.start} to '
                     f'{_PORTS.stop - 1}, and {len(free)} are free.')
  return free
