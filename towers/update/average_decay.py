"""The decay of moving averages; no TensorFlow."""

import numbers

from towers.base.usage_error import UsageError


def check_decay(decay: float) -> None:
  """Refuses a decay that is no number above 0 and below 1."""
  if not isinstance(decay, numbers.Real) or not 0 < decay < 1:
    raise UsageError(f'average_weights={decay}: it must be above 0 and below 1, such as 0.9999; '
                     'leave it out for no averages.')
