"""Workers that autotune: each trial is of all, all decide alike, none waits for one that left."""

import concurrent.futures
import contextlib
import json
import os
import re
import sys
import time

import pytest

from tests.harness.in_process_cluster import find_ports
from tests.harness.processes import run_python
from towers.base.usage_error import UsageError
from towers.placement.cluster import ALONE, Cluster
from towers.process.run_error import RunError, WorkerGone
from towers.settings.config import Config
from towers.workers.agreement import check_alike
from towers.workers.meeting import Peers
from towers_tools.trials import autotune
from towers_tools.trials.autotune import TrialRow, Tuned
from towers_tools.trials.exchange import Exchange
from towers_tools.trials.timed_trial import TimedTrial, join_trials


@pytest.fixture
def clusters():
  addresses = [f'127.0.0.1:{port}' for port in find_ports(3)]
  return [Cluster(addresses, rank) for rank in range(3)]


@pytest.fixture
def threads():
  with concurrent.futures.ThreadPoolExecutor(6) as threads:
    yield threads


def test_all_get_the_values_of_all_round_after_round(clusters, threads):
  def meet(cluster):
    exchange = Exchange(cluster, limit_seconds=20)
    return [exchange.share(dict(rank=cluster.rank, step=step)) for step in range(3)]

  expected = [[dict(rank=rank, step=step) for rank in range(3)] for step in range(3)]
  assert list(threads.map(meet, clusters)) == [expected] * 3
  assert Exchange(ALONE, limit_seconds=0).share('mine') == ['mine']


@pytest.mark.parametrize('failed', [0, 1])
def test_a_trial_that_waits_for_one_that_has_failed_ends(clusters, threads, failed):
  """The trial of one worker has failed: it meets the others, whose trials still wait for it."""
  def wait_in_trial(cluster):
    with contextlib.closing(Peers(cluster, tell=str)) as peers:
      peers.meet(20)
      found = peers.share(dict(batch_size=64))
    with pytest.raises(UsageError, match='different flags.*has autotune='):
      check_alike(cluster, 'flags', found, '')

  def take_part(cluster):
    if cluster.rank != failed:
      wait_in_trial(cluster)
    return Exchange(cluster, limit_seconds=20).share(cluster.rank)

  assert list(threads.map(take_part, clusters)) == [[0, 1, 2]] * 3


def test_who_is_lost_or_begins_anew_is_named(clusters, threads):
  started = time.monotonic()
  calls = [threads.submit(Exchange(cluster, limit_seconds=0.5).share, 0, others_seconds=0.5)
           for cluster in clusters[:2]]
  for call in calls:
    with pytest.raises(WorkerGone, match=re.escape(
        f'worker 2 ({clusters[2].addresses[2]}) is not there after 1 s (start_seconds and ')):
      call.result(20)
  assert time.monotonic() - started < 10

  def meet(cluster):
    exchange = Exchange(cluster, limit_seconds=20)
    exchange._round = int(cluster.rank == 1)
    with pytest.raises(RunError, match=re.escape('at [1, 2, 1]. One of them was started again')):
      exchange.share(0)

  list(threads.map(meet, clusters))


def test_the_cause_of_a_failed_trial_is_named():
  fine = TimedTrial(['NaN', 2.0], 5.0, 2, 100)
  assert str(join_trials([fine, TimedTrial()])) == str(fine._replace(losses=[float('nan'), 2.0]))
  lost, told = TimedTrial(error='exit code 75'), TimedTrial(error='x: The workers have different y')
  ended = TimedTrial(error='ended by signal 6')
  assert join_trials([ended, ended]).error == 'ended by signal 6'
  for other in (lost, told, fine):
    assert join_trials([other, ended]).error == 'in worker 1: ended by signal 6'
  assert join_trials([fine, lost]).error == 'in worker 1: exit code 75'


def test_what_one_has_forgotten_all_try_again(tmp_path, monkeypatch, clusters, threads):
  tried = []

  def run_trials(config, exchange, *_):
    tried.append(exchange.cluster.rank)
    return Tuned(dict(fusion_megabytes=1.0), [TrialRow({}, 1.0, '')])

  def tune(rank):
    config = Config(autotune=True, start_seconds=30.0)
    return autotune.autotune(config, cluster=Cluster(clusters[0].addresses[:2], rank),
                             command=[str(rank)])  # With a cache of its own.

  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(autotune, '_run_trials', run_trials)
  for expected in ([0, 1], [0, 1], [0, 0, 1, 1]):
    if len(expected) == 4:
      next((tmp_path / 'towers' / 'autotune').iterdir()).unlink()
    assert {tuned.fusion_megabytes for tuned in threads.map(tune, range(2))} == {1.0}
    assert sorted(tried) == expected


@pytest.mark.nightly
def test_two_workers_tune_and_train(tmp_path):
  flags = ['--autotune', '--xla=off', '--graph_rewriter=off', '--inter_threads=1',
           '--staging_depth=2', '--num_gpus=1', '--batch_size=16', '--steps=3',
           f'--result_file={tmp_path}/result']
  done = run_python('-m', 'towers', 'launch', '--workers=2', '--restarts=0', '--', sys.executable,
                    'main.py', *flags, env=dict(os.environ, XDG_CACHE_HOME=str(tmp_path)),
                    timeout=400)
  assert done.returncode == 0, done.stderr
  for words in ('of all workers together', '--fusion_megabytes=1', 'autotune: the same as',
                'done: 3 steps'):
    assert done.stdout.count(words) >= 1
  assert 'disagrees' not in done.stdout and 'exit code' not in done.stdout
  assert 'Exception ignored' not in done.stderr
  with open(tmp_path / 'result', encoding='utf-8') as file:
    assert json.load(file)['all_reduce_bytes'] > 1e6
