"""Pace: how fast a run trains, and how much of its time it waits, between two moments of it."""

from typing import NamedTuple, Optional

from towers.input.plan import Plan


class Pace(NamedTuple):
  """A moment: steps so far, seconds of training without pauses, and those that input took."""
  step: int
  seconds: float
  waited: float

  def speed_since(self, before: 'Pace', plan: Plan) -> Optional[float]:
    """Returns examples per second; None if no step was timed since."""
    examples = plan.examples_before(self.step) - plan.examples_before(before.step)
    seconds = self.seconds - before.seconds
    return examples / seconds if examples and seconds > 0 else None

  def wait_since(self, before: 'Pace') -> Optional[float]:
    """Returns the share of the time in which towers waited, 0 to 1; None as for the speed."""
    seconds = self.seconds - before.seconds
    return min(float(self.waited - before.waited) / seconds, 1.0) if seconds > 0 else None
