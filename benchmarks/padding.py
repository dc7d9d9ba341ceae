"""How much of an epoch is padding, with and without buckets.

  python -m benchmarks.padding --batch_size=64

Counts on the plan alone, for lengths as sentences have them: log-normal, with a median of 20.
"""

import argparse

import numpy as np

from benchmarks.harness.flags import at_least

_WINDOWS = (0, 10, 100, 1000)
_MEDIAN, _SIGMA, _LONGEST = 20, 0.7, 512


def measure(lengths: np.ndarray, *, batch_size: int, window: int) -> float:
  """Returns which part of a shuffled epoch is padding to the longest example of each global batch.

  Args:
    lengths: of the examples, `[num_examples]`.
    batch_size: the global batch.
    window: of buckets, in global batches; 0 for none.
  """
  from towers.data.examples import Buckets
  from towers.input.plan import build_plan
  plan = build_plan(num_examples=len(lengths), batch_size=batch_size, num_towers=1)
  order = plan.order(seed=0, buckets=Buckets(lengths, window) if window else None)
  taken = lengths[order(np.arange(len(lengths)), 0)]
  batches = np.split(taken, np.arange(batch_size, len(taken), batch_size))
  return 1 - taken.sum() / sum(batch.max() * len(batch) for batch in batches)


def main() -> None:
  """Prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--batch_size', type=at_least(1), default=64, help='the global batch')
  parser.add_argument('--examples', type=at_least(1), default=200000, help='of an epoch')
  flags = parser.parse_args()
  random = np.random.RandomState(0)
  lengths = np.clip(random.lognormal(np.log(_MEDIAN), _SIGMA, flags.examples), 1, _LONGEST)
  print('window in batches  padding')
  for window in _WINDOWS:
    share = measure(lengths.astype(np.int64), batch_size=min(flags.batch_size, flags.examples),
                    window=window)
    print(f'{window or "no buckets":>17}  {share:>7.1%}')


if __name__ == '__main__':
  main()
