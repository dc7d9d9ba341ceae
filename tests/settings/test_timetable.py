"""Timetables count in steps."""

import functools

import pytest

from towers.input.plan import build_plan
from towers.settings.config import Config
from towers.settings.timetable import Interval, Timetable, build_interval, build_timetable

OF_63_STEPS = build_plan(num_examples=500, batch_size=8, num_towers=1)


@pytest.mark.parametrize('text, expected', [('7', 7), (7, 7), ('500steps', 500), ('1step', 1),
                                            ('2epochs', 126), ('1epoch', 63), ('0.5 epochs', 32),
                                            ('0.001epochs', 1)])
def test_intervals_are_steps_or_epochs(text, expected):
  assert build_interval('validate_every', text, OF_63_STEPS) == Interval(expected)


@pytest.mark.parametrize('settings, steps', [
    ({}, 315), (dict(epochs=0.5), 32), (dict(epochs=0.001), 1), (dict(steps=7), 7)])
def test_a_run_has_the_steps_of_its_epochs_unless_they_are_given(settings, steps):
  assert Config(**settings).count_steps(OF_63_STEPS) == steps


def test_a_timetable_counts_in_steps():
  plan = build_plan(num_examples=13, batch_size=8, num_towers=2)  # Steps of 8 and of 5 examples.
  of_3_epochs = functools.partial(Config, epochs=3.0)
  assert build_timetable(of_3_epochs(validate_every='2epochs', checkpoint_every='5'), plan) == (
      Timetable(6, Interval(4), Interval(5)))
  assert build_timetable(of_3_epochs(checkpoint_every='90seconds'), plan) == (
      Timetable(6, Interval(2), save_every=Interval(6), save_seconds=90.0))


@pytest.mark.parametrize('text', ['7steps', '1epoch', '0.4epochs'])
@pytest.mark.parametrize('last_batch', ['keep', 'carry'])
def test_the_next_step_is_the_first_that_is_due(last_batch, text):
  interval = build_interval('validate_every', text, OF_63_STEPS._replace(last_batch=last_batch))
  due = [step for step in range(1, 300) if interval.is_due(step)]
  assert len(due) > 3
  for step in range(due[-1]):
    assert interval.next(step) == min(one for one in due if one > step)
