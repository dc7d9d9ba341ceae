"""Trains the model of a repository on N towers."""

from typing import Any

import numpy as np
import pytest

import towers
from tests.gallery.field.programs import REPOSITORIES
from tests.gallery.field.repositories import as_tensorflow_1
from tests.gallery.field.scripts import SCRIPTS
from tests.gallery.training import Trained, largest_difference
from tests.harness import small
from towers.tensorflow_v1 import tf

NUM_STEPS = 5
# Which change the last bits of a float32, and may do so by more or less.
FACTORS = np.float32([1 - 2e-7, 1 + 2e-7])
ALL = {**REPOSITORIES, **SCRIPTS}
# On TensorFlow 2.x: sums over axes of int64 have no gradient, and variables are of another class.
_ONLY_ON_1 = ('musegan', 'pggan')


def build(name: str, num_towers: int, *, factor: float = 1., **settings: Any) -> towers.Program:
  """Builds the program of a repository in the default graph, for virtual CPU devices."""
  repository = ALL[name]
  if tf.__version__[0] != '1' and name in _ONLY_ON_1:
    pytest.skip('TensorFlow 2.x itself fails in this repository')
  arrays = repository.arrays()
  arrays = tf.nest.map_structure(
      lambda array: array * factor if array.dtype == np.float32 else array, arrays)
  settings = dict(repository.settings, **settings)
  np.random.seed(0)  # Some draw their first weights by it.
  with as_tensorflow_1():
    model = repository.glue()
    return towers.Program(
        model, init_from=getattr(model, 'init_from', None), train=towers.from_arrays(*arrays),
        batch_size=repository.batch_size, optimizer=repository.optimizer(), num_towers=num_towers,
        device='cpu', **settings)


def train(name: str, num_towers: int, *, factor: float = 1., **settings: Any) -> Trained:
  """Trains for some steps; a factor is of weights before the first one, and of float arrays."""
  with tf.Graph().as_default():
    program = build(name, num_towers, factor=factor, **settings)
    changes = [weight.assign(weight * factor) for weight in tf.trainable_variables()]
    with program.session() as session:
      if factor != 1:
        session.run(changes)
      initial = small.read_variables(program, session)
      losses = [float(session.train()) for _ in range(NUM_STEPS)]
      return Trained(losses, initial, small.read_variables(program, session))


def floor(name: str, one: Trained, **settings: Any) -> float:
  """Returns what the last bits change on one tower."""
  return max(largest_difference(one, train(name, 1, factor=factor, **settings))
             for factor in FACTORS)
