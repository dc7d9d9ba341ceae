"""Workers: the formula, turns of steps, and the tables; slow: a tiny run of all kinds, and links.
"""

import json
import sys

import numpy as np
import pytest

from benchmarks import workers
from benchmarks.harness import all_reduces, slow_links, worker_cluster, worker_steps
from benchmarks.peers import horovod
from benchmarks.peers.ring import Link, Point, count_sent_bytes, plan, ring_seconds
from tensorflow_v1 import tf
from towers import build_plan

LINK = Link(latency=0.5e-3, bandwidth=1e9)


def test_a_ring_of_one_costs_nothing_and_of_many_twice_the_bytes():
  assert ring_seconds(1, 1e8, LINK) == 0
  assert ring_seconds(2, 0, LINK) == pytest.approx(1.5e-3)  # A request, and two messages.
  assert ring_seconds(8, 0, LINK) == pytest.approx(7.5e-3)
  assert ring_seconds(2, 1e8, LINK) == pytest.approx(1.5e-3 + 0.1)
  assert ring_seconds(4, 1e8, LINK) == pytest.approx(3.5e-3 + 0.15)
  assert count_sent_bytes(1000, 1e8) == pytest.approx(2e8, rel=0.01)


def test_the_plan_has_bytes_and_time_on_each_link():
  head, small, large = plan([('net', 25000000)], [('fast', Link(0.0, 1e9))], [2, 64])
  assert head == ['model', 'workers', 'each sends', 'fast']
  assert small == ['net', '2', '100.0 MB', '100.0 ms']
  assert large == ['net', '64', '196.9 MB', '196.9 ms']
  last = all_reduces.format_plan().splitlines()[-1].split()
  assert last[:2] == ['nasnet_large', '512']


def test_the_formula_stands_beside_what_a_link_took():
  point = Point(4, 1e6, 0.5)
  row = all_reduces.LinkedPoint('all-reduce', all_reduces.read_link('20:40'), point, 0.05)
  assert row.formula_seconds == pytest.approx(7 * 0.02 + 1.5e6 / 5e6)
  assert ' '.join(all_reduces.format_linked(row).split()) == (
      '4 workers 20 ms 40 Mb/s all-reduce 1.0 MB measured 500.0 ms formula 440.0 ms (0.88) '
      'without limits 50.0 ms, with the formula 0.98')


def test_all_reduces_of_one_machine_are_told_with_their_cpu_time():
  told = all_reduces.format_all_reduces([Point(2, 1e6, 0.005)], {2: 1.5e-9, 4: 2.5e-9})
  assert '2 workers    1.0 MB      5.00 ms' in told
  assert told.endswith('CPU of each worker for a MB: 1.50 ms of 2, 2.50 ms of 4')


@pytest.mark.parametrize('text', ['5', '5:', '5:x', '-1:5', '1:0', '1:nan', '1:2:3'])
def test_a_text_that_is_no_link_is_refused(text, monkeypatch, capsys):
  with pytest.raises(ValueError):
    all_reduces.read_link(text)
  monkeypatch.setattr(sys, 'argv', ['workers', f'--links={text}'])
  with pytest.raises(SystemExit, match='2'):
    workers.main()
  assert f"'{text}' is no link" in capsys.readouterr().err


def test_links_are_refused_where_the_kernel_gives_none(monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(slow_links, '_TUN', str(tmp_path / 'tun'))
  monkeypatch.setattr(sys, 'argv', ['workers', '--links'])
  with pytest.raises(SystemExit, match='2'):
    workers.main()
  said = capsys.readouterr().err.splitlines()[-1]
  assert '--links: this kernel gives no network of its own' in said
  assert 'Start as root' in said and '--sums' in said


def test_turns_wait_for_the_parent_and_report_the_mean_loss_so_far():
  requests, reports, clock = iter(['2\n', '0\n']), [], iter([3.0, 4.0, 6.0, 7.0]).__next__
  turns = worker_steps.Turns(lambda: next(requests), lambda line: reports.append(json.loads(line)),
                             started=1.0, clock=clock)
  assert turns.end_step(4.0)
  turns.noted['size'] = [1.0]
  assert turns.end_step(2.0)
  assert not turns.end_step(3.0)
  assert [(report['steps'], report['seconds'], report['mean_loss']) for report in reports] == [
      (1, 2.0, 4.0), (3, 2.0, 3.0)]
  assert reports[1]['size'] == [1.0] and 'size' not in reports[0]


def test_a_workers_examples_are_those_that_the_plan_deals_it():
  images, labels = worker_steps.load_examples('mlp').train.arrays
  of_second = worker_steps.examples_of('mlp', 1, 2)
  np.testing.assert_array_equal(of_second[1], labels[1::2])
  assert of_second[0].shape[1:] == images.shape[1:]
  shared = build_plan(num_examples=len(labels), batch_size=128, num_towers=1, num_workers=2,
                      rank=1)
  assert shared.shares(128) == [64]


def test_a_line_has_the_ratio_to_the_best_peer():
  def kind(*speeds):
    return dict(setup_seconds=1.0, mean_loss=2.0, steps_per_second=list(speeds),
                cpu_milliseconds=[3.0])

  kinds = {'towers': kind(30.0, 20.0, 40.0), 'fit': kind(9.0, 9.0, 9.0),
           'loop': kind(10.0, 20.0, 10.0)}
  line = dict(net='mlp', num_workers=2, batch_size=64, steps_per_turn=10, kinds=kinds)
  assert workers.best_peer(line) == 'loop'
  assert workers.ratios(line, 'loop') == [3.0, 1.0, 4.0]
  assert 'ours to loop, by rounds: 3.00 (1.00 to 4.00)' in workers.format_line(line)


@pytest.mark.parametrize('version, is_installed, kinds', [
    ('1.14.0', False, ['towers', 'estimator']),
    ('1.14.0', True, ['towers', 'estimator', 'horovod', 'horovod 0.1 ms']),
    ('2.21.0', True, ['towers', 'fit', 'loop'])])
def test_horovod_takes_part_where_it_is_installed(version, is_installed, kinds, monkeypatch):
  monkeypatch.setattr(horovod, 'is_installed', lambda: is_installed)
  assert workers.kinds_of(version) == kinds
  assert set(kinds) <= set(worker_steps.KINDS)


def test_the_last_words_of_a_worker_are_reported(monkeypatch):
  monkeypatch.setattr(worker_cluster, '_SECONDS_TO_SPEAK', 0.5)
  with worker_cluster.BenchmarkCluster(['nothing', 'mlp', '4'], num_workers=1,
                                       limit_seconds=60) as cluster, \
      pytest.raises(worker_cluster.Failed, match='KeyError'):
    cluster.wait()


@pytest.mark.nightly
def test_all_kinds_compute_the_same(monkeypatch, capsys, tmp_path):
  path = str(tmp_path / 'figures.json')
  monkeypatch.setattr(sys, 'argv', [
      'workers', '--nets=mlp', '--rounds=1', '--seconds=0.1', '--batch_size=4',
      '--limit_seconds=200', '--json=' + path])
  workers.main()
  with open(path, encoding='utf-8') as file:
    content = json.load(file)
  found = content['lines'][0]['kinds']
  assert list(found) == workers.kinds_of(tf.__version__)
  assert content['versions']['TensorFlow'] == tf.__version__
  for kind in found.values():
    assert kind['mean_loss'] == pytest.approx(found['towers']['mean_loss'], rel=1e-4)
  assert 'ours to' in capsys.readouterr().out


@pytest.mark.nightly
def test_the_formula_holds_on_a_slow_link(monkeypatch, capsys, tmp_path):
  # Not by a mark, with which both TensorFlows would take it.
  if slow_links.find_problem() is not None:
    pytest.skip('needs namespaces and TUN devices')
  path = str(tmp_path / 'figures.json')
  monkeypatch.setattr(all_reduces, '_LINKED_CLUSTER_SIZES', (3,))
  monkeypatch.setattr(sys, 'argv', ['workers', '--links=20:10', '--limit_seconds=200',
                                    '--json=' + path])
  workers.main()
  rows = capsys.readouterr().out.splitlines()
  assert len(rows) == 3 and 'step of mlp' in rows[2] and rows[2].split()[0] == '3'
  with open(path, encoding='utf-8') as file:
    found = json.load(file)['links']
  for _, link, (num_workers, num_bytes, seconds), _ in found:
    # Nothing is faster than its link. How much slower, a busy machine decides.
    assert seconds >= 0.95 * ring_seconds(num_workers, num_bytes, Link(*link))
