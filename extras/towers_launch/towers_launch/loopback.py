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
import struct
from typing import Iterator

_SO_ATTACH_FILTER = 26  # Of Linux.
_LOOPBACK = 'lo'
# In the kernel's tables: a state, and addresses in words of four bytes, the last byte first.
_LISTENS = '0A'
_LOOPBACK_4 = '7F'
_LOOPBACK_6 = '0' * 24 + '01000000'
_MAPPED = '0' * 16 + 'FFFF0000'  # An address of version 4 in one of version 6.
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
  num_listeners = 0
  for listener in find_sockets(port, listening=True):
    _attach_filter(listener)
    num_listeners += 1
  if not num_listeners:
    raise OSError(None, f'nothing of this process listens on port {port}')
  for stranger in find_sockets(port, listening=False):
    with contextlib.suppress(OSError):  # It has ended.
      stranger.shutdown(socket.SHUT_RDWR)


def find_sockets(port: int, *, listening: bool) -> Iterator[socket.socket]:
  """Yields this process's sockets on a local port, each until the next one.

  They are those that wait for connections, or else the connections of other machines. No other
  socket is touched: another descriptor of one that TensorFlow closes meanwhile would keep it among
  those that it polls.

  Raises:
    OSError: the platform has no such tables.
  """
  names = set()
  for table in ('tcp', 'tcp6'):
    path = f'/proc/self/net/{table}'
    if table == 'tcp' or os.path.exists(path):  # IPv6 can be switched off.
      with open(path, encoding='ascii') as file:
        for words in map(str.split, file.readlines()[1:]):
          (own, own_port), (other, _) = words[1].split(':'), words[2].split(':')
          is_wanted = listening or not _is_of_this_machine(own, other)
          if int(own_port, 16) == port and listening == (words[3] == _LISTENS) and is_wanted:
            names.add(f'socket:[{words[9]}]')
  for name in os.listdir('/proc/self/fd'):
    with contextlib.suppress(OSError):  # It has been closed meanwhile.
      if os.readlink(f'/proc/self/fd/{name}') in names:
        with socket.socket(fileno=os.dup(int(name))) as found:
          yield found


def _is_of_this_machine(own, other):
  """Whether a connection comes from loopback, or from the address that it has reached."""
  host = other[len(_MAPPED):] if other.startswith(_MAPPED) else other
  return other == own or host == _LOOPBACK_6 or len(host) == 8 and host.endswith(_LOOPBACK_4)


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
