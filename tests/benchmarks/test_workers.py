"""Workers: the formula and its fit, turns of steps, and the table; slow: a tiny run of all kinds.
"""

import json
import sys

import numpy as np
import pytest

from benchmarks import workers
from benchmarks.harness import worker_steps
from benchmarks.peers.ring import (
  Link,
  Point,
  count_sent_bytes,
  fit_link,
  on_one_machine,
  plan,
  ring_seconds,
)
from tensorflow_v1 import tf
from towers import build_plan

LINK = Link(latency=0.5e-3, bandwidth=1e9)


def test_a_ring_of_one_costs_nothing_and_of_many_twice_the_bytes():
  assert ring_seconds(1, 1e8, LINK) == 0
  assert ring_seconds(2, 0, LINK) == pytest.approx(1e-3)
  assert ring_seconds(2, 1e8, LINK) == pytest.approx(1e-3 + 0.1)
  assert count_sent_bytes(1000, 1e8) == pytest.approx(2e8, rel=0.01)


def test_the_fit_finds_the_link_that_made_the_points():
  points = [Point(num_workers, size, ring_seconds(num_workers, size, LINK))
            for num_workers in (2, 4) for size in (1e5, 1e6, 1e8)]
  assert fit_link(points) == pytest.approx(LINK)
  shared = on_one_machine(LINK, 2, 4)
  assert ring_seconds(4, 1e8, shared) == pytest.approx(3e-3 + 0.3)


def test_a_small_sum_counts_as_much_as_a_large_one():
  points = [Point(2, size, ring_seconds(2, size, LINK) * factor)
            for size, factor in ((4, 1.0), (1e8, 1.1), (2e8, 0.9))]
  assert fit_link(points).latency == pytest.approx(LINK.latency, rel=0.02)


def test_one_size_fits_no_link():
  with pytest.raises(ValueError, match='different sizes'):
    fit_link([Point(2, 1e6, 0.1), Point(2, 1e6, 0.2)])


def test_the_plan_has_bytes_and_time_on_each_link():
  head, small, large = plan([('net', 25000000)], [('fast', Link(0.0, 1e9))], [2, 64])
  assert head == ['model', 'workers', 'each sends', 'fast']
  assert small == ['net', '2', '100.0 MB', '100.0 ms']
  assert large == ['net', '64', '196.9 MB', '196.9 ms']
  assert 'nasnet_large' in workers.format_plan()


def test_the_formula_stands_beside_sums_that_it_was_not_fitted_to():
  points = [Point(count, size, ring_seconds(count, size, on_one_machine(LINK, 2, count)))
            for count in (2, 4) for size in workers._SIZES]
  head, *rows = workers.format_all_reduce(points).splitlines()
  assert '0.50 ms a hop and 1000 MB/s' in head
  assert all(row.replace('  not fitted', '').endswith('(1.00)') for row in rows)
  assert len([row for row in rows if 'not fitted' in row]) == 5


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


def test_the_last_words_of_a_worker_are_reported(monkeypatch):
  monkeypatch.setattr(workers, '_SECONDS_TO_SPEAK', 0.5)
  module = 'benchmarks.harness.worker_steps'
  with workers.BenchmarkCluster(module, ['nothing', 'mlp', '4'], num_workers=1,
                                limit_seconds=60) as cluster, \
      pytest.raises(workers.Failed, match='KeyError'):
    cluster.wait()


@pytest.mark.slow
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
