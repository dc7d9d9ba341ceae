"""History finds the best validation and stops early, and does not trust the file it reads."""

import math

import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.checkpoint.history import HISTORY, History
from towers.placement.counters import get_examples_seen
from towers.tensorflow_v1 import tf


def history_of(values, **settings):
  history = History(**settings)
  best, stopped = [], []
  for step, value in enumerate(values, 1):
    history.add(step, {'loss': value, 'accuracy': -value})
    best.append(history.is_best)
    stopped.append(history.has_stopped)
  return history, best, stopped


@pytest.mark.parametrize('metric', ['loss', 'accuracy'])
def test_the_best_is_better_than_all_before_it_and_patience_counts_from_it(metric):
  nan = math.nan
  history, best, stopped = history_of([3, 2, 2, nan, 1, 1, 4, 5], metric=metric, patience=3)
  assert best == [True, True, False, False, True, False, False, False]
  assert stopped == [False] * 7 + [True]
  assert history.best_first() == [5, 6, 2, 3, 1, 7, 8] and 'after step 5' in history.describe_best()
  assert history.best == {'loss': 1, 'accuracy': -1, 'step': 5}


@pytest.mark.parametrize('metric, is_best', [
    ('rmse', True), ('recall', False), ('max:loss', False), ('min:distance', True)])
def test_the_direction_is_that_of_the_name_or_as_told(metric, is_best):
  history = History(metric=metric, patience=1)
  for step, value in enumerate((0.5, 0.25), 1):
    history.add(step, {metric.split(':')[-1]: value})
  assert history.is_best == is_best and history.has_stopped != is_best


@pytest.mark.parametrize('before, now, told', [
    ('"rmse"', None, 'the largest rmse, and is the smallest rmse now: rmse 1.0000 after step 3'),
    ('"rmse"', 'rmse', 'the largest rmse, and is the smallest rmse now: rmse 1.0000 after step 3'),
    ('"min:rmse"', 'max:rmse',
     'the smallest rmse, and is the largest rmse now: rmse 4.0000 after step 1'),
    ('"min:rmse"', None, ''), ('"loss"', 'rmse', ''), ('null', 'rmse', '')])
def test_a_best_of_the_other_direction_is_found_anew_with_a_line(before, now, told, tmp_path):
  rows = '{"step": 1, "rmse": 4}, {"step": 2, "rmse": 2}, {"step": 3, "rmse": 1}'
  # Earlier versions wrote a name without a direction.
  (tmp_path / HISTORY).write_text(
      f'{{"validations": [{rows}], "rollbacks": [], "metric": {before}}}')
  history, lines = History(metric=now), []
  history.read(str(tmp_path), 9, lines.append)
  assert history.best_first() == ([1, 2, 3] if now == 'max:rmse' else [3, 2, 1])
  assert [told in line for line in lines] == [True] * bool(told)
  again = History()
  again.load(history.content, 9)
  assert again.metric == history.metric


def test_a_run_that_goes_on_drops_the_validation_of_its_early_end_alone():
  history, again, ended = History(), History(), History()
  history.add(3, dict(loss=2.0))
  history.roll_back(8, 6)
  history.add(6, dict(loss=1.0), is_due=False)
  again.load(history.content, 6)
  ended.load(history.content, 9)  # As somebody reads it who asks for the best.
  assert (again.best_first(), again.num_rollbacks) == ([3], 1)
  assert (ended.best_first(), ended.best_first(undue=False)) == ([6, 3], [3])


def test_a_folder_of_an_unknown_metric_asks_for_its_direction(tmp_path):
  (tmp_path / HISTORY).write_text('{"validations": [], "rollbacks": [], "metric": "distance"}')
  history, told = History(), History(metric='min:distance')
  history.read(str(tmp_path), 9)
  with pytest.raises(UsageError, match='best_metric=min:distance or best_metric=max:distance'):
    history.check_metric()
  told.read(str(tmp_path), 9, pytest.fail)
  told.check_metric()


def test_nothing_but_nan_is_never_the_best_and_stops():
  history, best, stopped = history_of([math.nan] * 3, patience=2)
  assert best == [False] * 3 and stopped == [False, True, True]
  assert history.describe_best() == 'loss nan: none had a loss that is a number'
  assert history.best is None


def test_what_is_read_is_what_was_known_at_that_step(tmp_path):
  history, _, _ = history_of([3, 2, 1, 4])
  history.roll_back(7, to=2)
  history.add(6, {'loss': 0.5, 'accuracy': 0.0})
  (tmp_path / HISTORY).write_text(history.format())
  for step, best, rollbacks in ((1, [1], 0), (2, [2, 1], 1), (9, [6, 2, 1], 1)):
    other = History()
    other.read(str(tmp_path), step)
    assert (other.best_first(), other.num_rollbacks) == (best, rollbacks)
    assert other.rate_factor == 0.5 ** rollbacks
    assert other.has_validated(best[0]) and not other.has_validated(5)


def test_no_file_is_no_warning(tmp_path):
  History().read(str(tmp_path), 5, pytest.fail)


@pytest.mark.parametrize('metric, message', [
    ('f1', 'best_metric=f1: validation measures loss, accuracy, distance; choose one of these.'),
    ('acuracy', 'best_metric=acuracy: validation measures loss, accuracy, distance; '
     'did you mean accuracy?'),
    ('max:distence', 'best_metric=distence: validation measures loss, accuracy, distance; '
     'did you mean distance?'),
    ('distance', 'best_metric=distance: the name does not say whether the smallest or the largest '
     'is the best. Write best_metric=min:distance or best_metric=max:distance.')])
def test_a_metric_that_nobody_measures_or_without_direction_is_named(metric, message):
  with pytest.raises(UsageError) as caught:
    History(metric=metric).check_metric(['loss', 'accuracy', 'distance'])
  assert str(caught.value) == message


@pytest.mark.parametrize('names', [['loss', 'accuracy'], ['val_loss', 'loss', 'accuracy']], ids=len)
def test_a_metric_is_found_by_the_name_that_results_and_curves_have(names):
  for metric, of_first in (('val_loss', ['min:loss', 'min:val_loss']),
                           ('validation_accuracy', ['max:accuracy'] * 2),
                           ('max:validation_loss', ['max:loss'] * 2)):
    history = History(metric=metric)
    history.check_metric(names)
    assert str(history.metric) == of_first['val_loss' in names]


def test_another_length_is_told_where_the_rate_falls_over_the_run(tmp_path, capsys):
  def train(epochs, folder, rate):
    program = small.program(optimizer=tf.train.GradientDescentOptimizer, learning_rate=rate)
    towers.train(program, epochs=epochs, checkpoint_dir=str(tmp_path / folder))
    return capsys.readouterr().out

  def fall(plan):
    seen = tf.cast(get_examples_seen().read_value(), tf.float32)
    return tf.train.cosine_decay(0.1, seen, plan.num_examples * 4)

  for folder, rate in (('falling', fall), ('constant', 0.1)):
    line = 'the run was to have 1 epochs and is now to have 2 epochs: a rate that falls'
    assert 'was to have' not in train(1, folder, rate)
    assert (line in train(2, folder, rate)) == (folder == 'falling')
    assert 'was to have' not in train(2, folder, rate)
