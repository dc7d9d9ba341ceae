"""What a chain of lives must equal: one uninterrupted run."""

import collections
import json
import os
import re
from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from tests.chaos.life import FIRST_VALIDATION, NUM_VALIDATION
from tests.chaos.team import Lost
from towers.checkpoint.checkpoints import path_of
from towers.checkpoint.history import HISTORY
from towers.tensorflow_v1 import tf

_VALIDATION = list(range(FIRST_VALIDATION, FIRST_VALIDATION + NUM_VALIDATION))
_FILES = re.compile(r'(model\.ckpt-\d+\.(index|data-00000-of-00001|sums)|checkpoint|lock|'
                    + re.escape(HISTORY) + ')$')
# Sums of a step are added in another order in another shape.
_TOLERANCE = 2e-6


class Outcome(NamedTuple):
  """What a run did and left: by step the examples it took and the loss, weights, and history."""
  taken: Dict[int, List[int]]
  losses: Dict[int, float]
  weights: Dict[str, np.ndarray]
  validations: List[Dict[str, float]]


class Life(NamedTuple):
  """What one life took: by step that it finished the examples, sorted, and the loss."""
  taken: Dict[int, List[int]]
  losses: Dict[int, float]


def read_life(notes: Sequence[List[List[str]]], *, is_whole: bool) -> Life:
  """Returns what the workers of a life took; Lost if a validation leaves out or repeats any."""
  taken = collections.defaultdict(list)
  validated = collections.defaultdict(list)
  losses: Dict[int, float] = {}
  for rank, lines in enumerate(notes):
    for words in lines:
      if words[0] in ('train', 'validate'):
        numbers = [int(word) for word in words[3:] if word != '0']
        (taken if words[0] == 'train' else validated)[int(words[1])] += numbers
      elif words[0] == 'loss' and rank == 0:
        losses[int(words[1])] = float.fromhex(words[2])
  for step, numbers in validated.items():
    is_complete = is_whole or any(later > step for later in losses)
    if sorted(numbers) != _VALIDATION if is_complete else len(set(numbers)) < len(numbers):
      raise Lost(f'the validation after step {step} took {sorted(numbers)}')
  # A step reads its number before it counts.
  return Life({step: sorted(taken[step - 1]) for step in losses}, losses)


def read_files(folder: str, num_steps: int):
  """Returns the last checkpoint's tensors and the history; Lost if there is any other file."""
  strange = [name for name in os.listdir(folder) if not _FILES.match(name)]
  if strange:
    raise Lost(f'files are left behind: {strange}')
  reader = tf.train.load_checkpoint(path_of(folder, num_steps))
  weights = {name: np.asarray(reader.get_tensor(name))
             for name in reader.get_variable_to_shape_map()}
  with open(os.path.join(folder, HISTORY)) as file:
    return weights, json.load(file)['validations']


def join_lives(lives: Sequence[Life], weights, validations, *,
               expected: Optional[Outcome] = None, is_exact: bool = False) -> Outcome:
  """Returns what all lives together did; Lost if a step was not as in the uninterrupted run."""
  joined = Outcome({}, {}, weights, validations)
  for index, life in enumerate(lives):
    for step, numbers in life.taken.items():
      if expected is not None:
        _compare(f'life {index}, step {step}: examples', numbers, expected.taken[step], 0)
        _compare(f'life {index}, step {step}: loss', life.losses[step], expected.losses[step],
                 0 if is_exact else _TOLERANCE)
    joined.taken.update(life.taken)
    joined.losses.update(life.losses)
  return joined


def compare(found: Outcome, expected: Outcome, *, is_exact: bool, history: bool) -> None:
  """Raises Lost unless a chain equals the uninterrupted run, to the bit if it `is_exact`.

  Unless its `history` is whole, it may lack rows.
  """
  tolerance = 0 if is_exact else _TOLERANCE
  if sorted(found.taken) != sorted(expected.taken):
    raise Lost(f'steps {sorted(set(expected.taken) ^ set(found.taken))} are missing or too many')
  if sorted(found.weights) != sorted(expected.weights):
    raise Lost(f'tensors {sorted(set(expected.weights) ^ set(found.weights))} differ')
  for name, value in expected.weights.items():
    _compare(f'tensor {name}', found.weights[name], value, tolerance)
  rows = {row['step']: row for row in expected.validations}
  steps = [row['step'] for row in found.validations]
  if (steps != sorted(rows)) if history else not set(steps) <= set(rows):
    raise Lost(f'validated after steps {steps}, and not after {sorted(rows)}')
  for row in found.validations:
    for name, number in rows[row['step']].items():
      _compare(f'validation after step {row["step"]}: {name}', row[name], number, tolerance)


def _compare(what, found, expected, tolerance):
  found, expected = np.asarray(found), np.asarray(expected)
  if found.shape != expected.shape or not (
      np.array_equal(found, expected) if tolerance == 0 else
      np.allclose(found, expected, rtol=0, atol=tolerance)):
    raise Lost(f'{what}: {found.tolist()} and not {expected.tolist()}')
