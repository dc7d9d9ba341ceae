"""Timetables count in steps."""

from towers import build_plan
from towers.training.settings.timetable import Interval, Timetable, build_timetable

# Steps of 8 and of 5 examples.
_PLAN = build_plan(num_examples=13, batch_size=8, num_towers=2)


def test_a_timetable_counts_in_steps():
  assert build_timetable(_PLAN, epochs=3.0, validate_every='2epochs', checkpoint_every='5') == (
      Timetable(6, Interval(4), Interval(5)))
  assert build_timetable(_PLAN, epochs=3.0, checkpoint_every='90seconds', on_nan='skip') == (
      Timetable(6, Interval(2), save_every=Interval(6), save_seconds=90.0, on_nan='skip'))
