"""The shape of a run: what may change between two lives without changing what it computes."""

import random
from typing import List, NamedTuple

from tests.harness import small

# Global batch: at least one example for each of 4 towers of 3 workers. An epoch of 53 examples has
# five steps, the last of which leaves most towers empty.
BATCH_SIZE = 12


class Shape(NamedTuple):
  """How a run is spread."""
  mode: str
  depth: int
  towers: int
  workers: int
  accumulate: int
  variables: str

  def to_flags(self) -> List[str]:
    return [f'--input_mode={self.mode}', f'--staging_depth={self.depth}',
            f'--num_gpus={self.towers}', f'--accumulate={self.accumulate}',
            f'--variables={self.variables}', f'--batch_size={BATCH_SIZE}']

  def __str__(self) -> str:
    return (f'{self.mode}/{self.depth}, {self.workers} x {self.towers} towers, '
            f'{self.accumulate} micro-batches, {self.variables}')


def draw_shape(dice: random.Random) -> Shape:
  """Returns a random shape; half of them have one worker, since others start slowly."""
  towers = dice.randint(1, 4)
  workers = dice.choice([1, 1, 2, 3])
  most = BATCH_SIZE // (towers * workers)
  return Shape(dice.choice(small.MODES), dice.choice(small.DEPTHS), towers, workers,
               dice.choice([1, 1, min(2, most)]), dice.choice(small.PLACEMENTS))
