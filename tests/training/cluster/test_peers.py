"""Peers find who has ended, who is silent and who is there, with real servers and a fake clock."""

import socket
import threading

import pytest

from tensorflow_v1 import tf
from tests.harness.in_process_cluster import find_ports
from towers.placement.cluster import Cluster
from towers.training.cluster.peers import REFUSED, Peers, find_faults, greet

FOUR = Cluster(['a:1', 'b:1', 'c:1', 'd:1'], 1)


def listen(greeting):
  """Returns the address of a server that sends `greeting`, or nothing if None."""
  server = socket.socket()
  server.bind(('127.0.0.1', 0))
  server.listen()

  def serve():
    while True:
      connection, _ = server.accept()
      if greeting is not None:
        connection.sendall(greeting)
        connection.close()
      else:
        held.append(connection)

  held = []
  threading.Thread(target=serve, daemon=True).start()
  return f'127.0.0.1:{server.getsockname()[1]}'


def test_a_server_of_tensorflow_greets():
  address = f'localhost:{find_ports(1)[0]}'
  config = tf.ConfigProto()
  server = tf.train.Server({'worker': [address]}, job_name='worker', task_index=0, config=config)
  assert greet(address) == ''
  assert find_faults(Cluster([address, address], 1), [0]) == {0: ''}
  del server


@pytest.mark.parametrize('greeting, fault', [
    (None, 'does not answer'), (b'', REFUSED),
    (b'HTTP/1.1 400 Bad Request\r\n', 'is no TensorFlow server')])
def test_others_do_not(greeting, fault):
  assert greet(listen(greeting), seconds=0.5) == fault
  assert greet(f'127.0.0.1:{find_ports(1)[0]}') == REFUSED
  assert greet('no.such.host.invalid:1').startswith('cannot be reached: ')


class Clock:
  now = 0.0

  def __call__(self):
    return self.now


def make(faults, clock, **settings):
  return Peers(FOUR, limit_seconds=10, clock=clock, ask=lambda _, ranks: dict(faults), **settings)


def test_who_has_ended_has_ended_for_good():
  faults = {0: '', 2: REFUSED, 3: ''}
  peers = make(faults, Clock())
  assert peers.find_gone() == ['worker 2 (c:1) has ended']
  faults[2] = ''
  assert peers.find_gone() == ['worker 2 (c:1) has ended']
  faults[0] = REFUSED
  assert peers.find_gone() == ['worker 0 (a:1) has ended', 'worker 2 (c:1) has ended']


def test_who_is_silent_has_time_to_come_back():
  faults, clock = {0: 'does not answer', 2: '', 3: ''}, Clock()
  peers = make(faults, clock)
  for seconds in (0, 9.9):
    clock.now = seconds
    assert peers.find_gone() == []
  faults[0] = ''
  assert peers.find_gone() == []
  faults[0] = 'does not answer'
  clock.now = 15
  assert peers.find_gone() == []
  clock.now = 25
  assert peers.find_gone() == ['worker 0 (a:1) does not answer for 10 s (worker_seconds)']


def test_as_long_as_something_goes_forward_nobody_is_missed_and_then_at_once():
  told, is_told = [], threading.Event()

  def on_gone(reason):
    told.append(reason)
    is_told.set()

  peers = make({0: '', 2: REFUSED, 3: ''}, Clock(), on_gone=on_gone)
  peers.is_busy = lambda: True
  with peers:
    assert not is_told.wait(1.5)
    peers.is_busy = lambda: False
    assert is_told.wait(5)
  assert told == ['worker 2 (c:1) has ended. A step needs all workers, so this one ends. Only the '
                  'steps after the last checkpoint are lost: start all workers again.']


def test_after_the_end_nobody_is_missed():
  told = []
  peers = make({0: REFUSED, 2: REFUSED, 3: REFUSED}, Clock(), on_gone=told.append)
  with peers:
    peers.stop()
    peers._thread.join(5)
  assert told == []


def test_of_many_that_are_gone_some_are_named():
  told = []
  cluster = Cluster([f'h{rank}:1' for rank in range(100)])
  with Peers(cluster, limit_seconds=10, on_gone=told.append,
             ask=lambda _, ranks: dict.fromkeys(ranks, REFUSED)) as peers:
    peers._thread.join(5)
  assert 'worker 8 (h8:1) has ended; 91 others too. A step needs all' in told[0]
