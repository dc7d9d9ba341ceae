"""Segments: where to cut a forward pass whose activations are computed again.

  forward    ──segment 0──┤──segment 1──┤──segment 2──►  loss
  kept                   cut           cut     all of the last segment
  backward   ◄────────────┤◄────────────┤◄─────────────
              0 again        1 again

An activation that is taken behind the cut after it is kept, and so is one that cannot be computed
again. The others exist twice for a short time, once in each pass, and those of one segment at a
time. So memory is what is kept and the largest segment: of n equal layers in a row, about
2 √n activations instead of n (Chen et al. 2016, arXiv:1604.06174).

Nothing here knows of TensorFlow: positions number a forward pass's ops as they can run.
"""

import bisect
import itertools
import math
from typing import Any, List, NamedTuple, Sequence, Union

from towers.base.usage_error import UsageError

# Less is not worth the time.
_LEAST_GAIN = 0.1
# More segments compute more activations again: worth it for this share of memory.
_WORTH_MORE = 0.1
_ADVICE = ('give auto, a number of segments of at least 2, or the beginnings of names of ops, with '
           'commas between them, as block_1/,block_2/.')


class Activation(NamedTuple):
  """A tensor of the forward pass, from the position of the op that computes it to the last that
  takes it; whether the backward pass reads it, and whether it cannot be computed again.
  """
  begin: int
  end: int
  num_bytes: int
  is_read: bool
  is_fixed: bool = False


def parse_recompute(setting: Any) -> Union[str, int, List[str]]:
  """Returns 'none', 'auto', a number of segments, or the beginnings of names.

  Raises:
    UsageError: something else, or fewer than two segments.
  """
  text = str(setting)
  if text in ('none', 'auto'):
    return text
  if text.lstrip('-').isdigit():
    if int(text) < 2:
      raise UsageError(f'recompute={text}: one segment is the whole forward pass, which saves '
                       f'nothing: {_ADVICE}')
    return int(text)
  names = text.split(',')
  if not isinstance(setting, str) or not all(names):
    raise UsageError(f'recompute={text}: {_ADVICE}')
  return names


def estimate_peak(activations: Sequence[Activation], cuts: Sequence[int]) -> int:
  """Returns the bytes of activations that are there at a time in the backward pass, at most."""
  kept = 0
  segments = [0] * (len(cuts) + 1)
  for activation in activations:
    segment = find_segment(activation.begin, cuts)
    if is_kept(activation, cuts):
      kept += activation.num_bytes
    elif activation.is_read:
      segments[segment] += activation.num_bytes
  return kept + max(segments)


def find_segment(position: int, cuts: Sequence[int]) -> int:
  """Returns the segment of the op at a position."""
  return bisect.bisect_left(cuts, position)


def is_kept(activation: Activation, cuts: Sequence[int]) -> bool:
  """Returns whether an activation is kept from the forward to the backward pass."""
  if activation.is_fixed:
    return activation.is_read
  return find_segment(activation.begin, cuts) != find_segment(activation.end, cuts)


class Cutter:
  """Cuts between the positions of two activations that the backward pass reads.

  `most` is the largest number of segments: each has an activation to compute again, or the last.
  """

  def __init__(self, activations: Sequence[Activation]):
    self._activations = activations
    read = [activation for activation in activations
            if activation.is_read and not activation.is_fixed]
    positions = sorted({activation.begin for activation in read})
    self.most = len(positions)
    crossing = _sum_crossing(activations) if read else []
    # For each number of positions before a cut, from 1 on, the best place for it.
    self._places = [min(range(before, after), key=lambda place: crossing[place])
                    for before, after in zip(positions, positions[1:])]
    self._costs = [crossing[place] for place in self._places]
    sizes = dict.fromkeys(positions, 0)
    for activation in read:
      sizes[activation.begin] += activation.num_bytes
    self._before = list(itertools.accumulate(sizes[position] for position in positions))

  def cut(self, num_segments: int) -> List[int]:
    """Returns the positions of the last ops of all segments but the last, of 2 to `most`.

    Segments have about equal activations. Near each place for a cut, the cut is where the least is
    taken behind it.
    """
    total, last = self._before[-1], len(self._places)
    cuts: List[int] = []
    first = 0
    for index in range(1, num_segments):
      target, reach = total * index / num_segments, total / (2 * num_segments)
      # Every later segment needs a place too.
      end = last - (num_segments - 1 - index)
      low = bisect.bisect_left(self._before, target - reach, first, end - 1)
      high = max(bisect.bisect_right(self._before, target + reach, low, end), low + 1)
      chosen = min(range(low, high), key=lambda place: (self._costs[place],
                                                        abs(self._before[place] - target)))
      cuts.append(self._places[chosen])
      first = chosen + 1
    return cuts

  def cut_best(self) -> List[int]:
    """Returns cuts for little memory, or [] if none of them saves a tenth of it."""
    if self.most < 2:
      return []
    numbers = range(2, min(self.most, 2 * int(math.sqrt(self.most)) + 2) + 1)
    choices = [self.cut(number) for number in numbers]
    peaks = [estimate_peak(self._activations, cuts) for cuts in choices]
    if min(peaks) > (1 - _LEAST_GAIN) * estimate_peak(self._activations, []):
      return []
    return next(cuts for cuts, peak in zip(choices, peaks)
                if peak <= (1 + _WORTH_MORE) * min(peaks))


def _sum_crossing(activations) -> List[int]:
  """Returns for each position the bytes of activations that are taken behind it."""
  changes = [0] * (max(activation.end for activation in activations) + 2)
  for activation in activations:
    if not activation.is_fixed:
      changes[activation.begin] += activation.num_bytes
      changes[activation.end] -= activation.num_bytes
  return list(itertools.accumulate(changes))
