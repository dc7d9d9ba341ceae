"""Ports of this machine, on which the workers that are started together will listen."""

import contextlib
import random
import socket
from typing import List

from towers.base.usage_error import UsageError

# Below what the kernel gives to outgoing connections (from 32768): a worker that asks whether a
# peer is there yet could be given that peer's port for it. And below what Kubernetes gives to
# services of a node (from 30000).
_PORTS = range(20000, 30000)


def find_free_ports(count: int) -> List[int]:
  """Returns ports on which nothing listens.

  They are free at this moment; the workers take them when they have imported TensorFlow, and
  whoever is faster until then gets them. The worker then ends and says so; another launch looks for
  others.
  """
  free: List[int] = []
  with contextlib.ExitStack() as sockets:
    for port in random.sample(_PORTS, len(_PORTS)):
      if len(free) == count:
        break
      # On all interfaces, as TensorFlow's server.
      with contextlib.suppress(OSError):
        sockets.enter_context(socket.socket()).bind(('', port))
        free.append(port)
  if len(free) < count:
    raise UsageError(f'workers={count} need as many ports from {_PORTS.start} to '
                     f'{_PORTS.stop - 1}, and {len(free)} are free.')
  return free
