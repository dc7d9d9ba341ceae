"""Comparison: whether two programs' values are the same, except for rounding.

Sums in another order differ in their last bits. How much that comes to is measured, by one tower
whose weights are changed in their last bits and whose examples stand in the opposite order: the
noise. It is no smooth function of the weights: where a ReLU turns, the gradients before it jump. So
the noise of all gradients together counts for each of them. And noise explains a difference only up
to a small share of the value: beyond it, a row is inconclusive, instead of agreeing.

Differences and values are Euclidean norms over all entries and steps.
"""

import math
from typing import Any, NamedTuple

import numpy as np

AGREES, DIFFERS, INCONCLUSIVE = 'agrees', 'DIFFERS', 'INCONCLUSIVE (within rounding)'
_TOLERANCE = 1e-5  # Of the value.
_FLOOR = 1e-7
_FLOOR_SHARE = 1e-6  # Of the largest value of the same kind, since sums of such values may cancel.
_NOISE_TOLERANCE = 20
# Of the value: noise explains no larger difference. In a deep net a ReLU that turns moves the
# gradient of the first layer by some hundredths.
_LARGEST_SHARE = 0.05
_LAST_BITS = 1e-6  # The relative change that shows the effect of rounding.


class Difference(NamedTuple):
  """The difference from a value of the norm `scale`, that which rounding makes, and the verdict."""
  name: str
  difference: float
  scale: float
  noise: float
  verdict: str  # AGREES, DIFFERS, or INCONCLUSIVE: rounding alone may make such a difference.

  @property
  def agrees(self) -> bool:
    """Whether rounding explains the difference."""
    return self.verdict == AGREES


def compare(name: str, ours: Any, expected: Any, noisy: Any, *, largest: float = 0.0,
            share: float = 0.0) -> Difference:
  """Compares values, except for rounding; what is no number, to the bit.

  Args:
    name, ours, expected: of an array, or a list with one for each step; None for no value.
    noisy: the expected value after rounding, whose least share of the value is `share`.
    largest: the largest value of the same kind, such as of all gradients.
  """
  try:
    difference, scale = find_norm(ours, expected), find_norm(expected)
  except (TypeError, ValueError):
    is_same = same_bits(ours, expected)
    return Difference(name, 0.0 if is_same else math.inf, 0.0, 0.0, AGREES if is_same else DIFFERS)
  noise = max(find_norm(noisy, expected), share * scale)
  explained = _NOISE_TOLERANCE * noise
  allowed = min(explained, _LARGEST_SHARE * scale)
  if all(np.issubdtype(array.dtype, np.floating) for array in _arrays(expected)):
    allowed += _TOLERANCE * scale + _FLOOR + _FLOOR_SHARE * largest
  if difference <= allowed < math.inf:
    verdict = AGREES
  else:
    verdict = INCONCLUSIVE if difference <= explained < math.inf else DIFFERS
  return Difference(name, difference, scale, noise, verdict)


def same_bits(left: Any, right: Any) -> bool:
  """Returns whether two arrays, or lists of arrays, are the same to the bit; NaN equals itself."""
  lefts, rights = _arrays(left), _arrays(right)
  return len(lefts) == len(rights) and all(
      ours.shape == theirs.shape and ours.dtype == theirs.dtype
      and (ours.tolist() == theirs.tolist() if ours.dtype == object
           else ours.tobytes() == theirs.tobytes()) for ours, theirs in zip(lefts, rights))


def find_norm(values: Any, others: Any = None) -> float:
  """Returns the norm of arrays, or of their difference; infinite for a NaN or unequal shapes."""
  lefts, rights = _arrays(values), _arrays(values if others is None else others)
  if [array.shape for array in lefts] != [array.shape for array in rights]:
    return math.inf
  total = 0.0
  for left, right in zip(lefts, rights):
    with np.errstate(invalid='ignore'):
      array = left.astype(np.float64) - (0.0 if others is None else right.astype(np.float64))
      square = _sum_squares(array)
    if not math.isfinite(square):
      # Inf equals Inf.
      square = _sum_squares(array[np.isfinite(array)] if others is None
                            else np.where(left == right, 0.0, array))
    total += square
  return math.inf if math.isnan(total) else math.sqrt(total)


def _sum_squares(array):
  # Threads of np.vdot would wait for each other where other work keeps the cores busy.
  return float(np.einsum('i,i->', array.ravel(), array.ravel()))


def find_share(ours: Any, expected: Any, least: float) -> float:
  """Returns by what share of their size, or of `least`, values differ, at most 2."""
  size = max(find_norm(ours), find_norm(expected), least)
  return min(find_norm(ours, expected) / (size or 1.0), 2.0)


def shake(value: np.ndarray, random: np.random.RandomState, by: float = _LAST_BITS) -> np.ndarray:
  """Returns an array with its floats changed by a share of them, else in their last bits."""
  if value.dtype.kind != 'f':
    return value
  return value * (1 + by * random.choice([-1, 1], size=value.shape)).astype(value.dtype)


def _arrays(values):
  return [np.asarray(value) for value in (values if isinstance(values, list) else [values])]
