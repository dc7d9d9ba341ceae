"""Workers with addresses of loopback take connections from this machine alone."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from tests.harness.in_process_cluster import find_ports
from towers.placement.cluster import Cluster, Token, is_loopback
from towers.tensorflow_v1 import tf
from towers.workers.worker import Worker
from towers_launch import loopback

SO_GET_FILTER = 26


def count_filters(port):
  """Returns how many listening sockets of this process on a port have a filter, and none."""
  lengths = [len(found.getsockopt(socket.SOL_SOCKET, SO_GET_FILTER, 64))
             for found in loopback.find_sockets(port, listening=True)]
  return len([length for length in lengths if length]), lengths.count(0)


def worker_on(hosts, capsys, *, rank=0, token='', is_apart=False):
  """Starts a worker's server; returns its filtered and open sockets, and what it said."""
  ports = find_ports(len(hosts))
  cluster = Cluster([f'{host}:{port}' for host, port in zip(hosts, ports)], rank,
                    token=Token(token), is_apart=is_apart)
  worker = Worker(cluster, tf.ConfigProto())
  counts = count_filters(ports[rank])
  socket.create_connection(('127.0.0.1', ports[rank]), 10).close()
  del worker
  return counts, capsys.readouterr().out


def test_a_server_takes_other_machines_only_if_there_are_some(capsys, monkeypatch):
  (filtered, unfiltered), said = worker_on(['127.0.0.1', 'localhost'], capsys)
  assert filtered and not unfiltered and said.count('\n') == 1
  assert said.startswith('ports: every user of this machine can run any op in the workers')
  assert 'place at the start (without TOWERS_TOKEN); python -m towers launch --network=auto' in said
  (filtered, unfiltered), said = worker_on(['127.0.0.1', 'another-host'], capsys, token='secret')
  assert unfiltered and not filtered and said.count('\n') == 1
  assert said.startswith('ports: whoever reaches them over the network can run any op in the')
  assert 'TOWERS_TOKEN' not in said and 'secret' not in said and 'a network policy closes' in said
  assert worker_on(['127.0.0.1', 'localhost'], capsys, is_apart=True)[1] == ''
  assert worker_on(['127.0.0.1', 'localhost'], capsys, rank=1)[1] == ''

  def find_no_interface(_):
    raise OSError(19, 'No such device')

  monkeypatch.setattr(socket, 'if_nametoindex', find_no_interface)
  (filtered, unfiltered), said = worker_on(['127.0.0.1', '127.0.0.1'], capsys)
  assert unfiltered and not filtered
  assert said.startswith('WARNING: other machines can reach the server of worker 0 (127.0.0.1:')
  assert 'No such device. Close its port to them by a firewall' in said


@pytest.mark.parametrize('address, expected', [
    ('127.0.0.1:1', True), ('127.8.0.1:1', True), ('localhost:1', True), ('[::1]:1', True),
    ('127.example.org:1', False), ('10.0.0.1:1', False), ('[::2]:1', False)])
def test_an_address_is_of_loopback_or_not(address, expected):
  assert is_loopback(address) == expected


def test_a_port_without_a_server_is_refused():
  [port] = find_ports(1)
  with pytest.raises(OSError, match='nothing of this process listens'):
    loopback.refuse_other_machines(port)


def test_no_other_socket_gets_a_second_descriptor(monkeypatch):
  # TensorFlow 1.14 hung when one that it closed had another descriptor for a moment.
  copied = []

  def copy(descriptor, dup=os.dup):
    copied.append(descriptor)
    return dup(descriptor)

  with socket.socket() as listener, socket.socket() as other:
    for one in (listener, other):
      one.bind(('127.0.0.1', 0))
      one.listen()
    with socket.create_connection(listener.getsockname()), listener.accept()[0]:
      monkeypatch.setattr(os, 'dup', copy)
      loopback.refuse_other_machines(listener.getsockname()[1])
    assert copied == [listener.fileno()]


CONNECT = '''
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as connection:
  print(connection.recv(5).decode(), flush=True)
  connection.settimeout(10)
  print(repr(connection.recv(1)), flush=True)
'''


def has_namespaces():
  if os.geteuid() != 0 or not shutil.which('ip'):
    return False
  name = f'towers-probe-{os.getpid()}'
  made = subprocess.run(['ip', 'netns', 'add', name], stderr=subprocess.DEVNULL).returncode == 0
  if made:
    subprocess.run(['ip', 'netns', 'delete', name])
  return made


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason='needs root, and ip of iproute2')


@contextlib.contextmanager
def another_machine():
  """A network of another machine, by a cable; yields this one's address and how that connects."""
  name, ours = f'towers-lo-{os.getpid()}', f'lo{os.getpid()}'
  network = f'10.78.{os.getpid() % 256}'  # Another process may run this test too.

  def ip(*words):
    subprocess.run((shutil.which('ip'), *words), check=True)

  def connect(port, seconds):
    return subprocess.Popen(
        ['ip', 'netns', 'exec', name, sys.executable, '-c', CONNECT, f'{network}.1', str(port),
         str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

  try:
    ip('netns', 'add', name)
    ip('link', 'add', ours, 'type', 'veth', 'peer', 'name', 'veth', 'netns', name)
    for words in (['address', 'add', f'{network}.1/24', 'dev', ours], ['link', 'set', ours, 'up'],
                  ['-n', name, 'address', 'add', f'{network}.2/24', 'dev', 'veth'],
                  ['-n', name, 'link', 'set', 'veth', 'up']):
      ip(*words)
    yield f'{network}.1', connect
  finally:
    subprocess.run(['ip', 'link', 'delete', ours])
    subprocess.run(['ip', 'netns', 'delete', name])


def assert_refused(connecting):
  said, error = connecting.communicate(timeout=30)
  assert said == '' and 'create_connection' in error and 'timed out' in error


@needs_namespaces
@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('family, address', [(socket.AF_INET6, '::'), (socket.AF_INET, '0.0.0.0')])
def test_another_machine_gets_no_connection_and_loses_one_that_it_had(family, address):
  accepted = []
  with another_machine() as (here, connect), socket.socket(family) as listener:
    if family == socket.AF_INET6:
      listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((address, 0))
    listener.listen()
    port = listener.getsockname()[1]

    def greet():
      while True:
        try:
          accepted.append(listener.accept()[0])
          accepted[-1].send(b'hello')
        except OSError:
          return

    threading.Thread(target=greet, daemon=True).start()
    try:
      early = connect(port, 10)
      assert early.stdout.readline() == 'hello\n'
      loopback.refuse_other_machines(port)
      assert early.communicate(timeout=20)[0] == "b''\n"
      assert_refused(connect(port, 1))
      for own in ('127.0.0.1', here):
        with socket.create_connection((own, port), 5) as connection:
          assert connection.recv(5) == b'hello'
    finally:
      listener.shutdown(socket.SHUT_RDWR)
      for connection in accepted:
        connection.close()


@needs_namespaces
@pytest.mark.nightly
def test_another_machine_reaches_the_server_of_a_worker_only_if_its_cluster_is_on_several():
  with another_machine() as (here, connect):
    for host, is_reached in (('127.0.0.1', False), (here, True)):
      ports = find_ports(2)
      worker = Worker(Cluster([f'{host}:{port}' for port in ports]), tf.ConfigProto())
      connecting = connect(ports[0], 5)
      if is_reached:  # The server speaks first, as HTTP/2 does, or waits.
        with contextlib.suppress(subprocess.TimeoutExpired):
          connecting.wait(2)
        connecting.kill()
        assert 'create_connection' not in connecting.communicate()[1]
      else:
        assert_refused(connecting)
      with socket.create_connection((host, ports[0]), 5):
        pass
      del worker
