"""Network: one of the launcher's own, whose only interface is loopback, for it and its workers.

  unshare ─► user and group numbers stay what they are ─► loopback up ─► workers

Servers of TensorFlow listen on all interfaces, and ask nobody. In a network namespace these are
loopback alone, and only processes of the launcher reach it: no other machine and no other user. The
workers reach nothing outside either. Everything else, such as files, devices, shared memory and
signals, stays as it was.

A process that has threads cannot enter, so the launcher does, before it starts anything. Python has
no `os.unshare` before 3.12.
"""

import ctypes
import fcntl
import os
import socket
import struct
from typing import Any, Callable, Optional

from towers.base.usage_error import UsageError
from towers.placement.cluster import APART

OPEN, AUTO, LOOPBACK = 'open', 'auto', 'loopback'
CHOICES = (OPEN, AUTO, LOOPBACK)

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET.
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP.
_REQUEST = '16sH14x'  # struct ifreq: a name and flags.


def choose_network(name: str, tell: Callable[[str], None]) -> None:
  """Enters a network of its own if `name` is 'loopback', or 'auto' and the kernel allows it.

  Raises:
    UsageError: 'loopback', and the kernel does not allow it.
  """
  if name == OPEN:
    return
  reason = find_obstacle(enter_network)
  if reason is None:
    enter_network()
    os.environ[APART] = '1'  # For the workers.
    tell('the workers have a network of their own, loopback: no other machine or user reaches '
         'their servers, and they reach nothing outside (--network=open)')
    return
  problem = (f'--network={name}: this kernel gives no network of its own ({reason}). Start as root '
             'with CAP_SYS_ADMIN, or allow user namespaces (sysctl user.max_user_namespaces, '
             'kernel.apparmor_restrict_unprivileged_userns; in a container its seccomp profile)')
  if name == LOOPBACK:
    raise UsageError(f'{problem}, or leave the flag out.')
  tell(f'{problem}. The workers use that of this machine: its other users can connect to their '
       'servers, which ask nobody who they are')


def find_obstacle(enter: Callable[[], Any]) -> Optional[str]:
  """Returns why `enter` cannot give a process a network of its own, or None if it can.

  A process that fails half-way would be left with neither network, so a child tries.
  """
  reader, writer = os.pipe()
  child = os.fork()
  if not child:
    try:
      enter()
      os._exit(0)
    except OSError as error:
      os.write(writer, f'{error.filename}: {error.strerror}'.encode())
    finally:
      os._exit(1)
  os.close(writer)
  with os.fdopen(reader) as file:
    reason = file.read()
  _, status = os.waitpid(child, 0)
  return (reason or 'it ended') if status else None


def enter_network() -> None:
  """Enters a network of its own, and a user namespace where only that gives the right to.

  Raises:
    OSError: the kernel does not allow it; its `filename` says what.
  """
  user, group = os.geteuid(), os.getegid()
  try:
    _unshare(_NEW_NETWORK)
  except OSError:
    _unshare(_NEW_USER | _NEW_NETWORK)
    # Numbers stay what they are. Only without setgroups may a process without rights map its group.
    for name, text in (('setgroups', 'deny'), ('uid_map', f'{user} {user} 1'),
                       ('gid_map', f'{group} {group} 1')):
      with open(f'/proc/self/{name}', 'w', encoding='ascii') as file:
        file.write(text)
  _bring_loopback_up()


def _unshare(flags: int) -> None:
  try:
    unshare = ctypes.CDLL(None, use_errno=True).unshare
  except AttributeError:
    raise OSError(0, 'it is not Linux', 'unshare') from None
  if unshare(flags):
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), 'unshare')


def _bring_loopback_up() -> None:
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    try:
      request = struct.pack(_REQUEST, b'lo', 0)
      _, flags = struct.unpack(_REQUEST, fcntl.ioctl(any_socket, _GET_FLAGS, request))
      fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack(_REQUEST, b'lo', flags | _UP))
    except OSError as error:
      raise OSError(error.errno, error.strerror, 'loopback') from None
