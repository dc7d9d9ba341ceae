"""Micro-batches: in how many a step can be taken, and how many keep a tower's share small.

  batch of 100, 4 towers     1: 25 examples a tower     2: 13     4: 7     5: 5     10: 3     20: 2

All micro-batches of a step have one size, and each has an example for every tower. So the numbers
are the divisors of the global batch, up to the share of a tower.
"""

from typing import Iterator, Optional, Union

from towers.input.plan import Plan

# Begins with one micro-batch, and takes more where a step does not fit.
AUTO = 'auto'


def read_accumulate(accumulate: Union[int, str]) -> int:
  """Returns the micro-batches to begin with."""
  return 1 if isinstance(accumulate, str) else accumulate  # 'auto'.


def find_more(plan: Plan) -> Optional[int]:
  """Returns the next number of micro-batches, at least twice as many; None if there is none."""
  numbers = _find_numbers(plan.batch_size, plan.num_workers * plan.num_towers)
  return next((number for number in numbers if number >= 2 * plan.accumulate), None)


def find_fitting(most: int, *, batch_size: int, num_towers: int) -> int:
  """Returns the fewest micro-batches of which no tower gets more than `most` examples.

  If a tower always gets more, it is the largest number. Towers are those of all workers.
  """
  numbers = list(_find_numbers(batch_size, num_towers)) or [1]
  return next((number for number in numbers if -(-batch_size // number) <= most * num_towers),
              numbers[-1])


def _find_numbers(batch_size: int, num_towers: int) -> Iterator[int]:
  """Yields all numbers of micro-batches that a plan takes, the smallest first."""
  return (number for number in range(1, batch_size // max(num_towers, 1) + 1)
          if batch_size % number == 0)
