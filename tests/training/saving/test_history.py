"""History finds the best validation and stops early, and does not trust the file it reads."""

import math

import pytest

from towers.base.usage_error import UsageError
from towers.training.saving.history import HISTORY, History


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
  assert history.best_first() == [5, 2, 1] and 'after step 5' in history.describe_best()


@pytest.mark.parametrize('metric, is_best', [
    ('top5_error', True), ('my_loss', True), ('recall', False)])
def test_errors_and_losses_are_best_when_small_and_others_when_large(metric, is_best):
  history = History(metric=metric)
  for step, value in enumerate((0.5, 0.25), 1):
    history.add(step, {metric: value})
  assert history.is_best == is_best


def test_nothing_but_nan_is_never_the_best_and_stops():
  history, best, stopped = history_of([math.nan] * 3, patience=2)
  assert best == [False] * 3 and stopped == [False, True, True] and history.describe_best() == ''


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


def test_a_metric_that_nobody_measures_is_named():
  with pytest.raises(UsageError, match='best_metric=f1: validation measures loss, accuracy'):
    History(metric='f1').check_metric(['loss', 'accuracy'])
