"""Peers find who has ended, who is silent and who is there, by connections that stay open."""

import concurrent.futures
import contextlib
import json
import math
import re
import socket
import threading
import time

import pytest

from tests.harness.in_process_cluster import find_ports
from tests.harness.processes import wait_until
from towers.base.usage_error import UsageError
from towers.checkpoint.history import History
from towers.placement.cluster import Cluster
from towers.process.run_error import WorkerGone
from towers.workers import meeting as meeting_module
from towers.workers.meeting import Peers

pytestmark = pytest.mark.plain


@pytest.fixture
def told(monkeypatch):
  """The reasons for which the process was to end."""
  reasons = []
  monkeypatch.setattr(meeting_module, 'end_process', lambda reason, code: reasons.append(reason))
  return reasons


class Other:
  """Stands in for a worker, over a connection of its own."""

  def __init__(self, connection):
    self._connection, self._lines = connection, connection.makefile('rb')

  def send(self, **message):
    self._connection.sendall(json.dumps(message).encode() + b'\n')

  def send_part(self, text):
    self._connection.sendall(text.encode())

  def read_next(self):
    return json.loads(next(self._lines))

  def read(self, name):
    """Returns what the next message has under a name, if that is not empty."""
    return next(message[name] for message in map(json.loads, self._lines) if message.get(name))

  def end(self):
    self._lines.close()
    self._connection.close()


@contextlib.contextmanager
def meet(rank, num_workers):
  """Yields a worker of a cluster, and those that it is connected to, which are all there."""
  cluster = Cluster([f'127.0.0.1:{port}' for port in find_ports(num_workers)], rank)
  peers, others = Peers(cluster, tell=str), []
  meeting = threading.Thread(target=peers.meet, args=(20,))
  with contextlib.closing(peers), contextlib.ExitStack() as closing:
    if rank:
      listener = closing.enter_context(socket.socket())
      listener.bind(cluster.endpoint(0))
      listener.listen()
      meeting.start()
      others.append(Other(listener.accept()[0]))
      others[0].send(missing=[], gone={})
    else:
      meeting.start()
      wait_until(lambda: peers._server)
      for other in range(1, num_workers):
        others.append(Other(socket.create_connection(cluster.endpoint(0))))
        others[-1].send(rank=other)
    meeting.join()
    yield peers, others
    for other in others:
      other.end()


def sign_for(seconds, other):
  """Lets a worker give signs of life for so long."""
  until = time.monotonic() + seconds
  while time.monotonic() < until:
    other.send()
    time.sleep(0.1)


def test_who_has_ended_is_missed_by_all_and_for_good(told):
  with meet(0, 4) as (peers, others), peers.watched(60):
    address = re.escape(peers._cluster.describe(2))
    others[1].end()
    wait_until(lambda: told)
    assert re.match(rf'{address} has ended. A step needs all workers, so this one ends. Only the '
                    'steps after the last checkpoint are lost: start all workers again.', told[0])
    assert others[0].read('gone') == {'2': 'has ended'}
    others[2].end()
    wait_until(lambda: list(peers.gone) == [2, 3])
    assert isinstance(peers.explain(ValueError('Collective ops is aborted')), WorkerGone)
    assert peers.explain(ValueError('something else')) is None
    with pytest.raises(WorkerGone, match=rf'{address} has ended; worker 3'):
      peers.share('mine')


def test_what_the_chief_says_and_that_it_ends_is_taken(told):
  with meet(1, 3) as (peers, [chief]), peers.watched(60):
    peers.is_busy = lambda: True
    chief.send(missing=[], gone={'1': 'does not answer', '2': 'has ended'})
    wait_until(lambda: peers.gone == {2: 'has ended'})
    chief.end()
    wait_until(lambda: peers.gone == {2: 'has ended', 0: 'has ended'})
    assert not told


@pytest.mark.nightly(but='1')
@pytest.mark.parametrize('rank', [0, 1])
def test_who_is_silent_has_time_to_come_back(rank, told):
  with meet(rank, 2) as (peers, [other]):
    sign = (lambda: other.send()) if rank == 0 else (lambda: other.send(missing=[], gone={}))
    with peers.watched(2):
      for _ in range(2):
        time.sleep(1.2)
        sign()
        wait_until(lambda: not peers.gone)
      assert not told
      wait_until(lambda: told)
    assert re.match(rf'worker {1 - rank} \S+ does not answer for \d s \(worker_seconds\)\.',
                    told[0])
    sign()
    wait_until(lambda: not peers.gone)


def test_a_process_that_stood_still_misses_nobody_for_it(told, monkeypatch):
  with meet(0, 2) as (peers, [other]), peers.watched(3):
    wait_until(lambda: peers._connections)
    peers._loop.call_soon_threadsafe(time.sleep, 4)
    time.sleep(5)
    sign_for(1, other)
    assert not told


def test_one_that_takes_nothing_holds_up_no_other_and_fills_no_memory():
  text = 'history ' * (1 << 21)
  with meet(0, 3) as (peers, [slow, other]), concurrent.futures.ThreadPoolExecutor(1) as thread:
    shared = thread.submit(peers.share, text)
    for one in (slow, other):
      one.send(value='')
    assert other.read('unusual') == {'0': text}
    for _ in range(3):  # Signs of life.
      other.read_next()
    assert peers._connections[1].is_behind and not shared.done()
    assert peers._connections[1]._writer.transport.get_write_buffer_size() <= 1 << 16
    assert slow.read('unusual') == {'0': text}
    assert shared.result(20) == [text, '', '']


def test_a_history_is_shared_whatever_was_measured():
  history, again = History(patience=2), History(patience=2)
  for step, loss in enumerate([math.nan, 2.5, math.inf, -math.inf, math.nan], 1):
    history.add(step, {'loss': loss, 'accuracy': math.nan})
  with meet(0, 1) as (peers, _):
    again.load(peers.share(history.content)[0], 5)
  assert again.best_first() == history.best_first() == [4, 2] and not again.has_stopped
  assert again.format() == history.format()


@pytest.mark.parametrize('rank', [0, 1])
def test_what_all_refuse_is_told_by_each_although_others_have_ended_by_it(rank, told):
  text = 'flags ' * (1 if rank else 1 << 21)

  def refuse(values):
    wait_until(lambda: peers.gone)  # As one that is slow to compare.
    raise UsageError(f'{len(values)} differ')

  with meet(rank, 3) as (peers, others), peers.watched(60), (
      concurrent.futures.ThreadPoolExecutor(1)) as thread:
    refused = thread.submit(peers.share, text, refuse)
    if rank == 0:
      slow, other = others
      for one in others:
        one.send(value='')
      other.read('unusual')
      other.end()
      wait_until(lambda: peers.gone)
      time.sleep(0.7)
      message = slow.read_next()
      while 'unusual' not in message:
        assert message['gone'] == {}
        message = slow.read_next()
      assert slow.read('gone') == {'2': 'has ended'}
    else:
      assert others[0].read('value') == text
      others[0].send(usual='', unusual={'1': text})
      others[0].end()
    with pytest.raises(UsageError, match='3 differ'):
      refused.result(20)
    time.sleep(1)
  assert not told


def test_one_that_takes_nothing_for_too_long_is_missed_and_so_is_the_step(told):
  with meet(0, 2) as (peers, [silent]), peers.watched(2):
    silent.send(value='')
    assert peers.share('history ' * (1 << 21))[1] == ''
    wait_until(lambda: told)
  assert 'does not answer for' in told[0]


def test_what_comes_of_a_long_line_is_a_sign_of_life(told):
  with meet(0, 2) as (peers, [other]), peers.watched(2):
    other.send_part('{"value": "')
    for _ in range(20):
      other.send_part('part')
      time.sleep(0.2)
      assert not told and not peers.gone


def test_as_long_as_something_goes_forward_nobody_is_missed_and_then_at_once(told):
  with meet(0, 2) as (peers, [other]), peers.watched(60):
    peers.is_busy = lambda: True
    other.end()
    time.sleep(1.5)
    assert peers.gone and not told
    peers.is_busy = lambda: False
    wait_until(lambda: told, 5)


@pytest.mark.parametrize('call, progress, is_told', [
    ('training after 3 steps', 0, True), ('training after 3 steps', 1, False),
    ('validation after 3 steps', 0, False), ('', 0, False)])
def test_calls_that_wait_for_each_other_end_the_chief(call, progress, is_told, told, monkeypatch):
  monkeypatch.setattr(meeting_module, '_SECONDS_APART', 1.0)
  with meet(0, 3) as (peers, others), peers.watched(60):
    peers.find_call = lambda: ('validation after 3 steps', 7)
    others[0].send(call=['', 0])  # It computes by itself.
    for number in range(25):
      others[1].send(call=[call, 5 + progress * number])
      time.sleep(0.1)
  assert bool(told) == is_told
  if is_told:
    assert re.match(r'Workers wait for each other in different calls for 1 s: worker 0 \S+ is in '
                    r'validation after 3 steps, worker 2 \S+ is in training after 3 steps', told[0])


def test_a_worker_says_which_call_it_is_in():
  with meet(1, 2) as (peers, [chief]):
    peers.find_call = lambda: ('training after 3 steps', 5)
    assert chief.read('call') == ['training after 3 steps', 5]


def test_after_the_end_nobody_is_missed(told):
  with meet(0, 2) as (peers, [other]):
    with peers.watched(60):
      peers.stop()
      other.end()
      wait_until(lambda: peers.gone)
    time.sleep(1)
  assert not told


def test_of_many_that_are_gone_some_are_named():
  peers = Peers(Cluster([f'h{rank}:1' for rank in range(100)]))
  peers.gone = dict.fromkeys(range(1, 100), 'has ended')
  assert 'worker 8 (h8:1) has ended; 91 others too. A step needs all' in peers._explain()
