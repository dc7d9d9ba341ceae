"""All workers meet at the chief before TensorFlow speaks, and each names the one that differs."""

import concurrent.futures
import contextlib
import os
import re
import socket
import subprocess
import sys
import time

import pytest

from tests import ROOT
from tests.harness.in_process_cluster import find_ports
from tests.harness.processes import wait_until
from towers.base.usage_error import UsageError
from towers.placement.cluster import Cluster, Token
from towers.process.run_error import RunError
from towers.workers import meeting as meeting_module
from towers.workers.agreement import check_alike
from towers.workers.meeting import Peers
from towers_launch.tf_config import format_tf_config

pytestmark = pytest.mark.plain


@pytest.fixture
def addresses():
  return [f'127.0.0.1:{port}' for port in find_ports(3)]


@pytest.fixture
def threads():
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    yield threads


def report(addresses, rank, facts, limit_seconds=10, told=None):
  peers = Peers(Cluster(addresses, rank), tell=(told if told is not None else []).append)
  with contextlib.closing(peers):
    peers.meet(limit_seconds)
    return peers.share(facts)


def connect(address):
  host, port = address.split(':')
  until = time.monotonic() + 10
  while True:
    try:
      return socket.create_connection((host, int(port)))
    except ConnectionRefusedError:
      assert time.monotonic() < until
      time.sleep(0.02)


def join(address, rank):
  connection = connect(address)
  connection.sendall(b'{"rank": %d}\n' % rank)
  return connection


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('order', [(2, 1, 0), (0, 1, 2)])
def test_all_get_the_facts_of_all_in_any_order(addresses, threads, order):
  facts, told, calls = [dict(rank=rank, rate=float('inf')) for rank in range(3)], [], {}
  for rank in order:
    calls[rank] = threads.submit(report, addresses, rank, facts[rank], told=told)
    time.sleep(0.7)
  expected = [dict(rank=rank, rate='Infinity') for rank in range(3)]
  assert [calls[rank].result(20) for rank in range(3)] == [expected] * 3
  first = ({0: f'worker 1 ({addresses[1]}), worker 2 ({addresses[2]}) are',
            2: f'worker 0 ({addresses[0]}) is'}[order[0]])
  assert told[0] == f'waiting for the other workers: {first} not there yet'


def test_a_missing_worker_is_named_by_all(addresses, threads):
  calls = [threads.submit(report, addresses, rank, {}, 1.5) for rank in (0, 2)]
  for call in calls:
    with pytest.raises(RunError, match=re.escape(
        f'worker 1 ({addresses[1]}) is not there after 1.5 s (start_seconds): it has not '
        'reported to worker 0')):
      call.result(20)
  with pytest.raises(RunError, match=r'worker 0 \S+ is not there after 1 s \(start_seconds\): it '
                     'cannot be reached: .*refused'):
    report(addresses, 1, {}, 1)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('comes, missing', [(False, 2), (True, 1)])
def test_a_worker_that_leaves_is_missing_again_unless_another_never_came(
    comes, missing, addresses, threads):
  chief = threads.submit(report, addresses, 0, {}, 2.5)
  with join(addresses[0], 1) as connection:
    assert connection.recv(100) == b'{"missing": [2], "gone": {}}\n'
  with connect(addresses[0]) as connection:
    if comes:
      connection.sendall(b'{"rank": 2}\n')
      assert connection.recv(100) == b'{"missing": [1], "gone": {}}\n'
    with pytest.raises(RunError, match=rf'^worker {missing} \S+ is not there'):
      chief.result(20)


def test_strangers_disturb_nobody(addresses, threads, caplog):
  chief = threads.submit(report, addresses, 0, dict(seed=0))
  silent = connect(addresses[0])
  for text in (b'\x00\xff\n', b'GET / HTTP/1.1\r\n\r\n', b'[' * 100000 + b'\n', b'{"rank": 0}\n',
               b'{"rank": true}\n', b'{"rank": NaN}\n', b'1\n', b'{}', b'{"missing": []}\n'):
    with connect(addresses[0]) as stranger:
      stranger.sendall(text)
  with join(addresses[0], 3) as stranger:
    assert b'names 3 workers: give the same cluster to all' in stranger.recv(1000)
  others = [threads.submit(report, addresses, rank, dict(seed=rank)) for rank in (1, 2)]
  assert [call.result(20) for call in [chief, *others]] == [
      [dict(seed=0), dict(seed=1), dict(seed=2)]] * 3
  silent.close()
  assert not caplog.records  # Of asyncio, where a message was too odd.


def test_who_does_not_say_a_rank_in_time_is_left(addresses, threads, monkeypatch):
  monkeypatch.setattr(meeting_module, '_SECONDS_TO_SAY_WHO', 1)
  chief = threads.submit(report, addresses, 0, 0, 20)
  with connect(addresses[0]) as silent, connect(addresses[0]) as slow:
    silent.settimeout(10)
    with pytest.raises(OSError):  # Byte by byte does not help.
      for byte in b'{"rank": 1, "token": "secret"}' * 9:
        slow.sendall(bytes([byte]))
        time.sleep(0.1)
    assert silent.recv(1) == b'' and not chief.done()
  others = [threads.submit(report, addresses, rank, rank) for rank in (1, 2)]
  assert [call.result(20) for call in [chief, *others]] == [[0, 1, 2]] * 3


def test_many_who_say_nothing_are_soon_few(addresses, threads, monkeypatch):
  def is_open(stranger):
    try:
      return bool(stranger.recv(1))
    except BlockingIOError:
      return True

  monkeypatch.setattr(meeting_module, '_SECONDS_TO_SAY_WHO', 60)
  chief = threads.submit(report, addresses, 0, 0, 40)
  with contextlib.ExitStack() as closing:
    strangers = []
    for _ in range(60):
      strangers.append(closing.enter_context(connect(addresses[0])))
      strangers[-1].setblocking(False)
      time.sleep(0.005)  # Few wait in the kernel.
    wait_until(lambda: sum(map(is_open, strangers)) <= 22, 10)
    assert is_open(strangers[-1])
    others = [threads.submit(report, addresses, rank, rank, 20) for rank in (1, 2)]
    assert [call.result(20) for call in [chief, *others]] == [[0, 1, 2]] * 3


def test_without_the_token_of_the_run_nobody_takes_a_place_and_it_is_not_shown(addresses, threads):
  clusters = [Cluster(addresses[:2], rank, token=Token('secret')) for rank in range(2)]
  assert 'secret' not in repr(clusters[0]) and 'secret' not in f'{clusters}'

  def meet(cluster):
    with contextlib.closing(Peers(cluster, tell=str)) as peers:
      peers.meet(10)
      return peers.share(cluster.rank)

  chief = threads.submit(meet, clusters[0])
  for token in (b'', b', "token": "secre"', b', "token": null', b', "token": ["secret"]'):
    with connect(addresses[0]) as stranger:
      stranger.sendall(b'{"rank": 1%s}\n' % token)
      assert b'not that of worker 0' in stranger.recv(1000)
  with pytest.raises(UsageError, match='TOWERS_TOKEN of this process is not that of worker 0'):
    meet(clusters[1]._replace(token=Token()))
  assert meet(clusters[1]) == chief.result(20) == [0, 1]


def test_two_processes_of_one_rank_are_told(addresses, threads):
  chief = threads.submit(report, addresses, 0, {})
  older = threads.submit(report, addresses, 1, dict(age=2))
  time.sleep(0.5)
  newer = threads.submit(report, addresses, 1, dict(age=1))
  with pytest.raises(UsageError, match='Another process is worker 1 .* too'):
    older.result(20)
  report(addresses, 2, {})
  assert chief.result(20) == newer.result(20) == [{}, dict(age=1), {}]


def test_a_port_in_use_is_told(addresses):
  with socket.socket() as taken:
    taken.bind(('127.0.0.1', int(addresses[0].split(':')[1])))
    taken.listen()
    with pytest.raises(UsageError, match=r'worker 0 .* cannot listen on port'):
      report(addresses, 0, {})


def test_the_one_that_differs_is_named(addresses):
  cluster = Cluster(addresses)
  check_alike(cluster, 'flags', [dict(seed=1)] * 3, '')
  with pytest.raises(UsageError, match=re.escape(
      f'The workers have different flags: worker 0 ({addresses[0]}) has seed=1, the others 2. '
      'Fix it.')):
    check_alike(cluster, 'flags', [dict(seed=1), dict(seed=2), dict(seed=2)], 'Fix it.')


@pytest.mark.nightly
def test_workers_of_two_tensorflows_end_with_code_2_and_name_the_odd_one(addresses):
  pythons = [os.path.join(ROOT, f'.venv-{target}', 'bin', 'python') for target in ('tf1', 'tf2')]
  if not all(map(os.path.exists, pythons)):
    pytest.skip('needs the environments of both targets')
  if not os.path.samefile(os.path.dirname(sys.executable), os.path.dirname(pythons[0])):
    pythons.reverse()
  started = [subprocess.Popen(
      [python, 'main.py', '--num_gpus=1', '--model=linear', '--steps=3'], cwd=ROOT,
      env=dict(os.environ, TF_CONFIG=format_tf_config(addresses[:2], 'worker', rank)), text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank, python in enumerate(pythons)]
  outputs = [process.communicate(timeout=120)[0] for process in started]
  assert [process.returncode for process in started] == [2, 2], outputs
  for output in outputs:
    assert re.search(r'worker 1 \(\S+\) has tensorflow="\S+", the others "\S+"\. Start all of '
                     'them with the same settings, data and versions', output), output
