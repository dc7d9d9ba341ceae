"""Slow links: processes of this machine as machines of their own, on links of a set speed.

  worker 0 ── its namespace ── TUN ──┐                      ┌── TUN ── its namespace ── worker 1
                                     ├──► this process ─────┤
  worker 2 ── its namespace ── TUN ──┘  a queue per sender   └── TUN ── …
                                        bandwidth, latency

Each process enters a network namespace whose only interface, besides loopback, is a TUN device. It
passes the device's other end to a process that reads the packets of all: a packet leaves its sender
when those before it have left, at the sender's bandwidth, and arrives a latency later. So links are
far slower than the cores, and all else is the kernel's own TCP.

Nothing has a name, so nothing remains: the kernel removes namespaces and devices with the processes
that use them, and these with the process that has started them, however it ends. It needs
/dev/net/tun, and the rights of `towers.launch --network=loopback`.
"""

import array
import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarks.peers.ring import Link
from towers_launch.network import enter_network, find_obstacle

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PORT = 2222
_TUN = '/dev/net/tun'
_NAME = b'link'
_MAKE_TUN, _TUN_WITHOUT_HEADER = 0x400454ca, 0x1001  # TUNSETIFF; IFF_TUN | IFF_NO_PI.
_SET_ADDRESS, _SET_MASK, _SET_MTU, _SET_FLAGS = 0x8916, 0x891c, 0x8922, 0x8914  # SIOCSIF….
_UP = 1
_SET_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG.
# Large packets leave the cores in peace: reading one takes as long as reading a small one.
_PACKET_BYTES = 8960
_DESTINATION = slice(16, 20)  # In the header of IPv4.
_SECONDS_TO_ENTER = 60


def find_problem() -> Optional[str]:
  """Returns why processes cannot have slow links here, or None if they can."""
  reason = find_obstacle(lambda: os.close(_enter(0)))
  return reason and (
      f'this kernel gives no network of its own with a TUN device ({reason}). Start as root with '
      f'CAP_NET_ADMIN and CAP_SYS_ADMIN on a Linux that has {_TUN}')


class SlowLinks:
  """A network for processes that `enter` it, each with a link to all others.

  Start the processes within the context, then `open` the links.

  Attributes:
    addresses: 'host:port' of each process, by rank.
  """

  def __init__(self, num_workers: int):
    self.addresses = [f'{_host(rank)}:{_PORT}' for rank in range(num_workers)]
    self._receiver, self._sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    self._receiver.settimeout(_SECONDS_TO_ENTER)
    self._forwarder: Any = None

  def __enter__(self) -> 'SlowLinks':
    return self

  def __exit__(self, *_: Any) -> None:
    self._receiver.close()
    self._sender.close()
    if self._forwarder is not None:
      self._forwarder.kill()
      self._forwarder.communicate()

  def enter(self, rank: int) -> None:
    """Gives the calling process, which has no threads yet, its namespace and its link.

    It ends with the process that has started it.
    """
    ctypes.CDLL(None).prctl(_SET_END_WITH_PARENT, signal.SIGKILL)
    tun = _enter(rank)
    _send_file(self._sender, rank, tun)
    os.close(tun)

  def open(self) -> None:
    """Joins the links of all processes once these have started, at any speed until `set`.

    Raises:
      OSError: a process has not entered.
    """
    ends: Dict[int, int] = {}
    while len(ends) < len(self.addresses):
      rank, tun = _receive_file(self._receiver)
      ends[rank] = tun
    tuns = [ends[rank] for rank in sorted(ends)]
    command = [sys.executable, '-m', __name__, *map(str, tuns)]
    self._forwarder = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, pass_fds=tuns,
                                       universal_newlines=True)
    for tun in tuns:
      os.close(tun)

  def set(self, link: Link) -> None:
    """Sets the speed of all links, for the packets that come from now on."""
    self._forwarder.stdin.write(f'{link.latency!r} {link.bandwidth!r}\n')
    self._forwarder.stdin.flush()


def _host(rank: int) -> str:
  return f'10.0.0.{rank + 1}'


def _enter(rank: int) -> int:
  """Enters a namespace with a TUN device; returns the device's other end.

  Raises:
    OSError: the kernel does not allow it; its `filename` says what.
  """
  enter_network()
  tun = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    address = struct.pack('16sH2x4s8x', _NAME, socket.AF_INET, socket.inet_aton(_host(rank)))
    mask = struct.pack('16sH2x4s8x', _NAME, socket.AF_INET, socket.inet_aton('255.255.255.0'))
    try:
      fcntl.ioctl(tun, _MAKE_TUN, struct.pack('16sH22x', _NAME, _TUN_WITHOUT_HEADER))
      fcntl.ioctl(any_socket, _SET_ADDRESS, address)
      fcntl.ioctl(any_socket, _SET_MASK, mask)
      fcntl.ioctl(any_socket, _SET_MTU, struct.pack('16si20x', _NAME, _PACKET_BYTES))
      fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack('16sH22x', _NAME, _UP))
    except OSError as error:
      raise OSError(error.errno, error.strerror, _TUN) from None
  return tun


def _send_file(sender: socket.socket, number: int, file: int) -> None:
  """Sends a number and an open file to another process of this machine."""
  rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [file]))
  sender.sendmsg([struct.pack('i', number)], [rights])


def _receive_file(receiver: socket.socket) -> Tuple[int, int]:
  """Returns the next number and open file that a process has sent."""
  data, [(_, _, rights)], *_ = receiver.recvmsg(4, socket.CMSG_SPACE(4))
  return struct.unpack('i', data)[0], struct.unpack('i', rights[:4])[0]


def forward(tuns: Sequence[int], control: int) -> None:
  """Forwards packets between the devices until the end of `control`, which sets the links' speed.

  Args:
    tuns: the other end of each process's device, by rank.
    control: lines of latency and bandwidth.
  """
  link = Link(0.0, float('inf'))
  is_free_at = [0.0] * len(tuns)  # When the last packet of a sender will have left.
  on_the_way: List[Tuple[float, int, int, bytes]] = []  # (arrives, number, receiver, packet).
  receivers = {socket.inet_aton(_host(rank)): tun for rank, tun in enumerate(tuns)}
  ranks = {tun: rank for rank, tun in enumerate(tuns)}
  number = 0
  while True:
    timeout = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
    for readable in select.select([control, *tuns], [], [], timeout)[0]:
      if readable == control:
        line = os.read(control, 1000)
        if not line:
          return
        link = Link(*map(float, line.split(b'\n')[-2].split()))
        continue
      rank = ranks[readable]
      for packet in _read_packets(readable):
        receiver = receivers.get(packet[_DESTINATION])
        if receiver is not None:  # Not one of IPv6, which looks for routers.
          leaves = max(time.monotonic(), is_free_at[rank]) + len(packet) / link.bandwidth
          is_free_at[rank] = leaves
          number += 1
          heapq.heappush(on_the_way, (leaves + link.latency, number, receiver, packet))
    now = time.monotonic()
    while on_the_way and on_the_way[0][0] <= now:
      _, _, receiver, packet = heapq.heappop(on_the_way)
      with contextlib.suppress(OSError):  # The process has ended, or TCP sends the packet again.
        os.write(receiver, packet)


def _read_packets(tun: int, most: int = 16) -> List[bytes]:
  """Returns some of the packets that wait in a device."""
  packets: List[bytes] = []
  try:
    while len(packets) < most:
      packets.append(os.read(tun, 1 << 16))
  except OSError:  # There are no more.
    pass
  return packets


if __name__ == '__main__':
  forward(list(map(int, sys.argv[1:])), sys.stdin.fileno())
