"""Trains a program of the gallery on N towers."""

from typing import Dict, List, NamedTuple

import numpy as np

import towers
from tests.gallery.programs import PROGRAMS
from tests.harness import small
from towers.checks.towers import CheckReport
from towers.tensorflow_v1 import tf

NUM_STEPS = 4
BATCH_SIZE = 8


class Trained(NamedTuple):
  """The losses, and all variables of the model before and after the steps."""
  losses: List[float]
  initial: Dict[str, np.ndarray]
  weights: Dict[str, np.ndarray]


def train(name: str, num_towers: int, tower_build: str) -> Trained:
  """Trains a program for some steps, from the same initial values each time."""
  program = PROGRAMS[name]
  with tf.Graph().as_default():
    built = towers.Program(
        program.make(), train=towers.from_arrays(*program.arrays()), device='cpu', shuffle=False,
        optimizer=program.optimizer(), batch_size=BATCH_SIZE, num_towers=num_towers,
        tower_build=tower_build)
    with built.session() as session:
      initial = small.read_variables(built, session)
      losses = [session.train() for _ in range(NUM_STEPS)]
      return Trained(losses, initial, small.read_variables(built, session))


def largest_difference(one: Trained, other: Trained) -> float:
  """Returns the largest difference of losses and variables, by the scale of each from 1 on."""
  assert sorted(one.weights) == sorted(other.weights)
  pairs = [(one.losses, other.losses)] + [
      (value, other.weights[name]) for name, value in one.weights.items()]
  pairs = [np.float64(pair) for pair in pairs]
  return max(float(np.max(np.abs(right - left)) / max(1, np.max(np.abs(left))))
             for left, right in pairs if np.size(left))


def check(name: str) -> CheckReport:
  program = PROGRAMS[name]
  return towers.check(program.make(), towers.from_arrays(*program.arrays()), num_towers=2,
                      batch_size=6, num_steps=1)
