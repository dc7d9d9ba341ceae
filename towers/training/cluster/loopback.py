"""Loopback: keeps other machines away from the servers of workers on one machine.

TensorFlow's server listens on all interfaces of its machine, whatever its address, and asks nobody.
If the workers' addresses are those of loopback, the kernel drops what reaches a server's sockets
through another interface, by a filter of three instructions on the listening socket. It needs no
rights, and takes nothing from the worker itself, which reaches what it reached before.

Steven McCanne and Van Jacobson, "The BSD Packet Filter", USENIX 1993.
"""

import contextlib
import ctypes
import os
import socket
import stat
import struct
from typing import Iterator

_SO_ATTACH_FILTER = 26  # Of Linux.
_LOOPBACK = 'lo'
# The kernel gives facts about a packet at negative offsets; the eighth is its interface.
_INTERFACE = -0x1000 + 8
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALL_BYTES, _NO_BYTES = 0xffffffff, 0


def refuse_other_machines(port: int) -> None:
  """Drops what reaches this process's sockets on a port from another interface than loopback.

  A connection from there that was open before ends.

  Raises:
    OSError: the platform cannot, or nothing listens on the port.
  """
  listeners = 0
  for found in _find_sockets(port):
    if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
      _attach_filter(found)
      listeners += 1
  if not listeners:
    raise OSError(None, f'nothing of this process listens on port {port}')
  for found in _find_sockets(port):
    with contextlib.suppress(OSError):  # It listens, or has ended.
      host = found.getpeername()[0].replace('::ffff:', '')
      if not host.startswith('127.') and host not in ('::1', found.getsockname()[0]):
        found.shutdown(socket.SHUT_RDWR)


def _find_sockets(port: int) -> Iterator[socket.socket]:
  """Yields the sockets of this process with a local port, each until the next one."""
  for name in os.listdir('/proc/self/fd'):
    with contextlib.suppress(OSError):  # It has been closed meanwhile.
      if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
        continue
      found = socket.socket(fileno=os.dup(int(name)))
      with found:
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port:
          yield found


def _attach_filter(listener: socket.socket) -> None:
  """Lets a socket, and those that it accepts, take packets of loopback alone."""
  instructions = [(_LOAD_WORD, 0, 0, _INTERFACE),
                  (_JUMP_IF_EQUAL, 0, 1, socket.if_nametoindex(_LOOPBACK)),
                  (_RETURN, 0, 0, _ALL_BYTES),
                  (_RETURN, 0, 0, _NO_BYTES)]
  program = ctypes.create_string_buffer(
      b''.join(struct.pack('HBBI', code, true, false, value & _ALL_BYTES)
               for code, true, false, value in instructions))
  listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                      struct.pack('HL', len(instructions), ctypes.addressof(program)))
