"""Trains the model of a repository on N towers."""

from typing import Any

import numpy as np

import towers
from tests.gallery.field.programs import REPOSITORIES
from tests.gallery.field.scripts import SCRIPTS
from tests.gallery.training import Trained, largest_difference
from tests.harness import small
from towers.tensorflow_v1 import tf

NUM_STEPS = 5
# The last bits of a float32.
LAST_BITS = np.float32(1 + 2e-7)
ALL = {**REPOSITORIES, **SCRIPTS}


def shake(array: np.ndarray) -> np.ndarray:
  return array * LAST_BITS if array.dtype == np.float32 else array


def build(name: str, num_towers: int, *, shaken: bool = False, **settings: Any) -> towers.Program:
  """Builds the program of a repository in the default graph, for virtual CPU devices."""
  repository = ALL[name]
  arrays = repository.arrays()
  if shaken:
    arrays = tf.nest.map_structure(shake, arrays)
  settings = dict(repository.settings, **settings)
  np.random.seed(0)  # Some draw their first weights by it.
  model = repository.glue()
  return towers.Program(
      model, init_from=getattr(model, 'init_from', None), train=towers.from_arrays(*arrays),
      batch_size=repository.batch_size, optimizer=repository.optimizer(), num_towers=num_towers,
      device='cpu', **settings)


def train(name: str, num_towers: int, *, shaken: bool = False, **settings: Any) -> Trained:
  """Trains for some steps; all of `shaken` changes but the last bits of what goes in.

  These are those of the weights before the first step, and of the arrays that are no integers.
  """
  with tf.Graph().as_default():
    program = build(name, num_towers, shaken=shaken, **settings)
    changes = [weight.assign(weight * LAST_BITS) for weight in tf.trainable_variables()]
    with program.session() as session:
      if shaken:
        session.run(changes)
      initial = small.read_variables(program, session)
      losses = [float(session.train()) for _ in range(NUM_STEPS)]
      return Trained(losses, initial, small.read_variables(program, session))


def floor(name: str, one: Trained) -> float:
  """Returns what the last bits change on one tower."""
  return largest_difference(one, train(name, 1, shaken=True))
