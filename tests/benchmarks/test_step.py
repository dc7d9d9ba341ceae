"""A step beside others': all compute the same, differences are caught, and the table."""

import functools
import importlib.util

import numpy as np
import pytest

from benchmarks import step
from benchmarks.harness import step_table
from benchmarks.harness.figures import read_figures, write_figures
from benchmarks.harness.step_process import KINDS
from benchmarks.harness.task import Task, initial_weights, measure_movement

LINEAR = Task('linear', num_towers=2, batch_size=1)
QUICK = dict(rounds=1, seconds=0.01, checked_steps=2, limit_seconds=60)


def figures(*milliseconds, losses=(2.0, 1.5), weights=(0.1, 0.05)):
  return dict(milliseconds=list(milliseconds), cpu_milliseconds=[3.0], setup_seconds=[2.5],
              peak_bytes=300e6, mean_losses=list(losses), weights={'logits/weights': list(weights)},
              settings={}, steps_per_turn=10)


def recorded(**changes):
  line = dict(net='linear', num_towers=2, batch_size=1, versions={'TensorFlow': '1.14.0'},
              absent={'tensorpack': 'not installed'}, failed={}, disagreements=[],
              kinds={'towers': figures(1.0, 2.0, 4.0), 'one tower': figures(0.5, 1.0, 2.0),
                     'by hand': figures(1.5, 3.0, 4.0), 'mirrored': figures(2.0, 4.0, 8.0)})
  return dict(line, **changes)


@pytest.mark.nightly
def test_all_kinds_compute_the_same_and_missing_packages_are_named():
  kinds = ['towers', 'by hand', 'recipe', 'mirrored']
  is_there = importlib.util.find_spec('tensorpack') is not None
  line = step.measure(LINEAR, kinds + ['tensorpack'], **QUICK)
  assert not line['failed'] and not line['disagreements']
  assert list(line['kinds']) == kinds + ['tensorpack'] * is_there
  assert is_there or 'not installed' in line['absent']['tensorpack']
  for found in line['kinds'].values():
    assert len(found['mean_losses']) == 2 and len(found['milliseconds']) == 1
    assert found['peak_bytes'] > 0
    assert set(found['weights']) == {'logits/weights', 'logits/biases'}
  assert 'agree' in step_table.format_line(line)


@pytest.mark.nightly
def test_a_sum_instead_of_a_mean_is_caught():
  line = step.measure(LINEAR, ['towers', 'by hand'], module='tests.benchmarks.wrong_step', **QUICK)
  assert not line['failed']
  loss, moved = line['disagreements']
  # The first loss comes before any update.
  assert loss.startswith('by hand: the mean loss of 2 steps')
  assert 'logits/biases has moved' in moved
  assert 'DISAGREES: by hand' in step_table.format_line(line)


@pytest.mark.parametrize('changes, what', [
    (dict(losses=(2.0, 1.51)), 'mean loss of 2 steps is 1.51, not 1.5'),
    (dict(losses=(float('nan'), 1.5)), 'mean loss of 1 steps is nan'),
    (dict(weights=(0.11, 0.05)), 'logits/weights has moved by 0.11, not 0.1'),
    (dict(weights=(0.1, -0.05)), 'in a random direction by -0.05')])
def test_each_difference_has_its_words(changes, what):
  kinds = {'towers': figures(1.0), 'mirrored': figures(1.0)}
  assert step_table.find_disagreements(kinds) == []
  [found] = step_table.find_disagreements(dict(kinds, mirrored=figures(1.0, **changes)))
  assert found.startswith('mirrored: ') and what in found
  kinds['mirrored']['weights']['another'] = [0.0, 0.0]
  assert step_table.find_disagreements(kinds) == ['mirrored: other variables than ours: another']


def test_weights_start_by_name_and_movements_are_measured_from_there():
  start = initial_weights('conv1/weights', (3, 3, 1, 8))
  np.testing.assert_array_equal(start, initial_weights('tower1/conv1/weights', (3, 3, 1, 8)))
  assert np.abs(start - initial_weights('conv2/weights', (3, 3, 1, 8))).max() > 0.1
  moved = measure_movement({'conv1/weights:0': start + 0.5, 'conv_norm/scale:0': np.ones(4),
                            'conv_norm/offset:0': np.zeros(4)})
  assert moved['conv1/weights'][0] == pytest.approx(0.5 * np.sqrt(72))
  assert moved['conv_norm/scale'] == [0.0, 0.0] and moved['conv_norm/offset'] == [0.0, 0.0]


def test_a_process_that_fails_is_reported_and_fails_the_command(monkeypatch, capsys):
  measure = functools.partial(step.measure, module='tests.benchmarks.no_such_module')
  monkeypatch.setattr(step, 'measure', measure)
  assert step.main(['--models=linear', '--towers=1', '--kinds=towers']) == 1
  assert 'towers              FAILED: towers: exit code 1' in capsys.readouterr().out


def test_the_table_of_a_record(tmp_path, capsys):
  path = str(tmp_path / 'step.json')
  machine = dict(processor='Abacus', cores='2', system='Linux', commit='0123456789ab')
  write_figures(path, dict(machine=machine, lines=[recorded()]))
  assert step.main(['--show=' + path, '--picture=' + str(tmp_path / 'step.svg')]) == 0
  (head, _, title, names, ours, one, by_hand, mirrored, absent, best, scaling, agreement,
   picture) = capsys.readouterr().out.splitlines()
  assert head == 'Abacus, 2 cores, Linux, commit 0123456789ab'
  assert title == 'linear, 2 towers of 1, TensorFlow 1.14.0'
  assert len({len(row) for row in (names, ours, one, by_hand, mirrored)}) == 1
  assert ' '.join(by_hand.split()) == 'by hand 3 (2.25 to 3.5) 1.50 (1.25 to 1.50) 3 2.5 300'
  assert ' '.join(mirrored.split()).endswith(') 2.00 (2.00 to 2.00) 3 2.5 300')
  assert absent.split() == ['tensorpack', 'not', 'installed']
  assert best == '  the fastest other, by hand, takes 1.50 (1.25 to 1.50) times as long as ours'
  assert scaling == '  2 towers take 1.00 (1.00 to 1.00) times as long as 2 steps of one tower'
  assert agreement == '  losses of 2 steps and movements of 1 variables agree'
  with open(picture, encoding='utf-8') as file:
    drawn = file.read()
  assert 'by hand' in drawn and 'mirrored' in drawn and 'one tower' not in drawn
  alone = recorded(kinds={'towers': figures(1.0)}, absent={})
  write_figures(path, dict(machine=machine, lines=[alone]))
  assert step.main(['--show=' + path, '--picture=' + str(tmp_path / 'alone.svg')]) == 0
  assert 'svg' not in capsys.readouterr().out
  differing = recorded(disagreements=['mirrored: another loss'])
  write_figures(path, dict(machine=machine, lines=[differing]))
  assert step.main(['--show=' + path]) == 1
  assert '  DISAGREES: mirrored: another loss' in capsys.readouterr().out.splitlines()


def test_the_table_shows_the_settings_of_autotune():
  line = recorded()
  line['kinds']['towers --autotune'] = dict(figures(0.75, 1.5, 2.0), settings=dict(staging_depth=0))
  assert ('and 2.00 (2.00 to 2.00) times as long as ours with --staging_depth=0'
          in step_table.format_line(line))


def test_rounds_begin_with_another_kind_each():
  assert [''.join(step.in_turn('abc', index)) for index in range(4)] == ['abc', 'bca', 'cab', 'abc']


def test_one_tower_is_measured_beside_several():
  assert step.choose_kinds(list(KINDS), 1) == [kind for kind in KINDS if kind != 'one tower']
  assert step.choose_kinds(list(KINDS), 2) == list(KINDS)


@pytest.mark.nightly
def test_batch_norm_agrees_by_the_statistics_of_each_tower():
  task = Task('resnet20', num_towers=2, batch_size=2)
  line = step.measure(task, ['towers', 'by hand', 'mirrored'], **QUICK)
  assert not line['failed'] and not line['disagreements']
  assert len(line['kinds']['mirrored']['weights']) == 59


@pytest.mark.nightly
def test_the_command_writes_what_it_measures(tmp_path):
  path = str(tmp_path / 'step.json')
  assert step.main(['--models=linear', '--towers=2', '--kinds=towers', '--rounds=1',
                    '--seconds=0.01', '--setups=2', '--json=' + path]) == 0
  [line] = read_figures(path)['lines']
  assert len(line['kinds']['towers']['setup_seconds']) == 2
