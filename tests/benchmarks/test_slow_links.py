"""Slow links: packets wait and arrive in order, and nothing is left of processes that end."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from benchmarks.harness.slow_links import _host, find_problem, forward
from tests import ROOT
from tests.harness.processes import is_alive, wait_until

LATENCY, BANDWIDTH = 0.05, 1e5
# Two processes: one sends the other a byte and gets it back. Then both wait.
RUN = '''
import functools, subprocess, sys, time
from benchmarks.harness.slow_links import SlowLinks
from benchmarks.peers.ring import Link
ANSWER = """
import socket, time
listener = socket.socket()
listener.bind(('', 2222))
listener.listen()
connection, _ = listener.accept()
connection.send(connection.recv(1))
time.sleep(60)
"""
ASK = """
import os, socket, sys, time
until = time.monotonic() + 20
while True:
  try:
    connection = socket.create_connection(('10.0.0.1', 2222), 20)
    break
  except ConnectionRefusedError:
    assert time.monotonic() < until
    time.sleep(0.05)
started = time.monotonic()
connection.send(b'x')
connection.recv(1)
print(time.monotonic() - started, sorted(os.listdir('/proc/sys/net/ipv4/conf')), flush=True)
time.sleep(60)
"""
with SlowLinks(2) as links:
  processes = [subprocess.Popen([sys.executable, '-c', program],
                                preexec_fn=functools.partial(links.enter, rank))
               for rank, program in enumerate([ANSWER, ASK])]
  links.open()
  links.set(Link(0.05, 1e6))
  print(*(process.pid for process in [*processes, links._forwarder]), flush=True)
  for process in processes:
    process.wait()
'''
has_links = pytest.mark.skipif(find_problem() is not None,
                               reason='needs namespaces and TUN devices')


def build_packet(rank, size, mark):
  return (bytes(16) + socket.inet_aton(_host(rank)) + bytes([mark])).ljust(size, b'\0')


def test_packets_wait_for_those_before_them_and_a_latency_and_arrive_in_order():
  near, far = zip(*(socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)))
  for end in [*near, *far]:
    end.setblocking(False)
  reader, writer = os.pipe()
  forwarder = threading.Thread(target=forward, args=([end.fileno() for end in far], reader),
                               daemon=True)
  forwarder.start()
  os.write(writer, b'%r %r\n' % (LATENCY, BANDWIDTH))
  time.sleep(0.05)  # The speed of packets that come before is another.
  started = time.monotonic()
  near[0].send(build_packet(1, 1000, 1))
  near[0].send(b'\x60' + bytes(99))  # Of IPv6: it goes nowhere.
  near[0].send(build_packet(1, 4000, 2))
  near[2].send(build_packet(0, 100, 3))
  near[1].settimeout(20)
  near[0].settimeout(20)
  assert near[1].recv(9000) == build_packet(1, 1000, 1)
  assert near[1].recv(9000) == build_packet(1, 4000, 2)
  assert time.monotonic() - started >= LATENCY + 5000 / BANDWIDTH
  assert near[0].recv(9000) == build_packet(0, 100, 3)
  with pytest.raises(BlockingIOError):
    near[2].recv(9000)
  os.close(writer)
  forwarder.join(20)
  assert not forwarder.is_alive()
  for end in [*near, *far]:
    end.close()
  os.close(reader)


@has_links
@pytest.mark.parametrize('signal_number', [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_processes_and_namespaces(signal_number):
  run = subprocess.Popen([sys.executable, '-c', RUN], cwd=ROOT, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
  pids = list(map(int, run.stdout.readline().split()))
  spaces = [os.readlink(f'/proc/{pid}/ns/net') for pid in pids[:2]]
  seconds, interfaces = run.stdout.readline().split(maxsplit=1)
  assert float(seconds) >= 0.1 and interfaces.strip() == "['all', 'default', 'link', 'lo']"
  assert len({*spaces, os.readlink('/proc/self/ns/net')}) == 3
  run.send_signal(signal_number)
  run.wait(20)
  wait_until(lambda: not any(map(is_alive, pids)))
  run.stdout.close()
