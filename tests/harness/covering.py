"""Few points of a large grid, in which values that may go together have met."""

import itertools
from typing import Any, Callable, Dict, List, Sequence

Point = Dict[str, Any]


def cover(axes: Dict[str, Sequence[Any]], *, strength: int,
          is_valid: Callable[[Point], bool] = lambda point: True) -> List[Point]:
  """Returns points in which any `strength` values of as many different axes meet at least once.

  Greedy: each point begins with a combination that is left, and takes axis by axis the value that
  meets most others of those left, and among these the first.

  Args:
    axes: the values of each axis, by its name.
    strength: 1 for every value once, 2 for all pairs, and so on.
    is_valid: whether the values of some axes go together; combinations that no point has are left
      out.
  """
  left = {frozenset(zip(names, indices)): None
          for names in itertools.combinations(axes, strength)
          for indices in itertools.product(*(range(len(axes[name])) for name in names))}

  def values(point):
    return {name: axes[name][point[name]] for name in axes if name in point}

  def complete(point):
    """Returns the point with an index for every axis, or None where no values go together."""
    if not is_valid(values(point)):
      return None
    name = next((name for name in axes if name not in point), None)
    if name is None:
      return point

    def value(index):
      met = sum(frozenset([(name, index), *others]) in left
                for others in itertools.combinations(point.items(), strength - 1))
      return -met, index

    found = (complete({**point, name: index})
             for index in sorted(range(len(axes[name])), key=value))
    return next((point for point in found if point is not None), None)

  points = []
  while left:
    first = next(iter(left))
    point = complete(dict(first))
    if point is None:
      del left[first]
      continue
    for met in itertools.combinations(point.items(), strength):
      left.pop(frozenset(met), None)
    points.append(values(point))
  return points
