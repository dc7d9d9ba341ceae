"""Gaps: what differs between two sides by more than rounding explains, and where it begins to."""

import collections
import contextlib
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from towers.coupling.comparison import find_norm, find_share
from towers.coupling.fed_towers import FedTowers, LeftOut, Values
from towers.coupling.first_difference import (
  LEAST,
  NOISE_SHARE,
  Culprit,
  describe_culprit,
  find_least_share,
)
from towers.coupling.sides import Sides, list_orders
from towers.graph.source_lines import format_op
from towers.tensorflow_v1 import replaced, tf

# The relative differences that rounding makes, of sums and of other values, by `is_half`.
_ROUNDING = {False: (1e-4, 1e-3), True: (1e-2, 5e-2)}
# Of the largest gradient: others may cancel, and so may the losses of examples.
_LEAST_GRADIENT, _LEAST_LOSS = 1e-2, 1e-3
# What a kind of values is called, in order of what a warning names.
_NAMES = {'sum': 'The model\'s {}', 'rows': 'The metric {}', 'gradient': 'The gradient of {}',
          'input': 'The input of {}, batch normalisation,',
          'limited': 'The value {}, which the model compares with a limit,'}
_NOISY = 'gradient', 'limited'  # Kinds of which the noise of one counts for all.
_SHAKES = 4  # Of the weights: rounding turns by luck no ReLU in one of them.


class Gap(NamedTuple):
  """What differs between two sides, by what share, and whether sizes alone explain it."""
  kind: str
  name: str
  share: float
  goes_by_size: bool = False

  @property
  def subject(self) -> str:
    """What differs, as a sentence begins with it; '' for a penalty and for an update."""
    return _NAMES.get(self.kind, '').format(self.name)


def try_out(fed: FedTowers, make_sides: Callable[..., Sides]) -> Tuple[List[Gap], Culprit]:
  """Returns what differs between the sides by more than rounding explains, of rows in the first
  order in which anything does; and the first op that makes it differ."""
  orders = list_orders(fed, make_sides(fed).reference)
  gaps, culprit = _try_order(fed, make_sides(fed), orders[0])
  for number, order in enumerate(orders[1:], 2):
    # The first order tells enough of gradients, which take most of the time, and of what is left
    # out.
    if not gaps:
      with replaced((fed, 'gradients', [])), contextlib.suppress(LeftOut):
        gaps, culprit = _try_order(fed, make_sides(fed, is_last=number == len(orders)), order)
  return gaps, culprit


def _try_order(fed, sides, order) -> Tuple[List[Gap], Culprit]:
  count = 1 + max(share.rows.max() for share in sides.reference)
  chosen = order[np.linspace(0, len(order) - 1, count).astype(int)]  # Of all, evenly.
  return _try_sides(fed, Sides(*(
      [share._replace(rows=chosen[share.rows]) for share in side] for side in sides)))


def _try_sides(fed, sides) -> Tuple[List[Gap], Culprit]:
  reference, other = fed.measure(sides)
  gaps = find_gaps(fed, reference, other, sides)
  if gaps:
    shakes = [fed.shake(sides.reference, seed) for seed in range(_SHAKES)]
    noise: Dict[Any, float] = collections.defaultdict(float)
    for given in shakes:
      for key, share in _find_shares(reference, fed.compute_reference(sides, [given]),
                                     Sides(sides.reference, sides.reference)).items():
        # Where rounding turns a ReLU, the gradients of all layers before it jump.
        of_all = key[0] if key[0] in _NOISY else key
        noise[of_all] = max(noise[of_all], share)
    sure = [gap for gap in gaps if NOISE_SHARE * gap.share >= noise[
        gap.kind if gap.kind in _NOISY else gap[:2]]]
    found = sure or [gap for gap in gaps if not (gap.kind in _NOISY or fed.is_guess)]
    culprit = locate(fed, sides, shakes[0], found) if found else Culprit()
    if sure or culprit.text:
      return [gap._replace(goes_by_size=gap.kind == 'sum' and _goes_by_size(
          fed, sides, gap, reference, other)) for gap in found], culprit
    if found:
      raise LeftOut(_find_reason(fed, sides, reference))
  elif not any(np.any(getattr(value, 'values', value)) for key, values in reference.items()
               if key[0] == 'gradient' or key == ('sum', 'loss') for value in values):
    raise LeftOut('the loss of the few rows that were tried is 0')
  return [], Culprit()


def _find_reason(fed, sides, reference) -> str:
  """Returns why a difference tells nothing: by rounding, or since a second run makes another."""
  if not find_gaps(fed, reference, fed.compute_reference(sides)):
    return 'rounding decides in this model'
  functions = [op for op in fed.forward if 'PyFunc' in op.type]
  may = f', as {format_op(functions[0])} may' if functions else ''
  return f'the model makes other values of the same examples and draws{may}'


def find_gaps(fed: FedTowers, reference: Values, other: Values, sides: Any = None) -> List[Gap]:
  """Returns what differs by more than rounding alone makes, as a warning names it: what the model
  returns before others, and the largest first; of values with limits only where sides are given."""
  kinds, (of_sums, of_values) = [*_NAMES, 'penalty', 'update'], _ROUNDING[fed.is_half]
  gaps = [Gap(*key, share) for key, share in _find_shares(reference, other, sides).items()
          if share > (of_sums if key[0] == 'sum' else of_values)]
  return sorted(gaps, key=lambda gap: (kinds.index(gap.kind), -gap.share))


def _goes_by_size(fed, sides, gap, reference, other) -> bool:
  """Returns whether a sum is the same if the part of each share is divided, or multiplied, by the
  number of its examples."""
  rows = np.concatenate([share.rows for share in sides.reference])
  if len(np.unique(rows)) < len(rows):  # Of copies, counts go by sizes too.
    return False
  explained = min(_ROUNDING[fed.is_half][0], NOISE_SHARE * gap.share)
  values = [side.get((gap.kind, gap.name), []) for side in (reference, other)]
  totals = [[sum(float(value) * share.num_real ** power for share, value in zip(*side))
             for side in zip(sides, values)] for power in (-1.0, 1.0)]
  return any(find_share(ours, theirs, 0.0) <= explained for ours, theirs in totals)


def _find_shares(reference, other, sides) -> Dict[Tuple[str, str], float]:
  """Returns by what share finite values differ between two sides."""
  largest = max([find_norm(_join(kind, values, values)[0])
                 for (kind, _), values in reference.items() if kind == 'gradient'], default=0.0)
  floors, shares = {'sum': 0.0, 'gradient': _LEAST_GRADIENT * largest,
                    ('sum', 'loss'): _LEAST_LOSS * min(largest, 1.0)}, {}
  for key, values in reference.items():
    if key[0] == 'limited':
      share = find_least_share(sides, (values, other[key]), by_set=True) if sides else 0.0
      shares[key] = share if share < 2 else 0.0  # Parts may be cut to lengths of their own.
      continue
    ours, theirs = _join(key[0], values, other.get(key, []))
    if key[0] != 'returned' and np.isfinite(ours).all():
      shares[key] = find_share(theirs, ours, floors.get(key, floors.get(key[0], LEAST)))
  return shares


def _join(kind, ours, theirs) -> List[np.ndarray]:
  """Returns what both sides come to, which is the same if all is right."""
  if kind not in ('sum', 'gradient'):
    return [np.concatenate([np.ravel(part) for part in tf.nest.flatten(values)])
            for values in (ours, theirs)]
  if not hasattr(ours[0], 'indices'):
    return [np.sum(np.asarray(values, np.float64), 0) for values in (ours, theirs)]
  rows = np.unique(np.concatenate([value.indices for value in ours + theirs]))
  totals = [np.zeros([len(rows), *ours[0].values.shape[1:]]) for _ in (ours, theirs)]
  for total, values in zip(totals, (ours, theirs)):
    for value in values:
      np.add.at(total, np.searchsorted(rows, value.indices), value.values)
  return totals


def locate(fed: FedTowers, sides: Sides, shaken: Dict[Any, Any], gaps: Sequence[Gap]) -> Culprit:
  """Describes the first op that makes what differs first, and its like, differ."""
  alike = [gap for gap in gaps if gap.kind == gaps[0].kind and gap.kind in _NAMES]
  if not alike:
    return Culprit()
  results, fed.runs_per_epoch = fed.list_results(0), None  # A name is worth its time.
  return describe_culprit(fed, sides, shaken, [results[gap[:2]] for gap in alike],
                          min(_ROUNDING[fed.is_half][1], gaps[0].share / 2))
