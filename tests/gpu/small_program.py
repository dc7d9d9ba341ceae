"""Trains the small program of the laws: `python -m tests.gpu.small_program SETTINGS`.

SETTINGS is a JSON object of arguments of `towers.Program`. Prints a JSON object: the losses of 10
steps, the means of a validation, and the weights by name.
"""

import json
import sys

import towers
from tests.harness import small
from towers.tensorflow_v1 import tf, use_deterministic_kernels, use_tf32

STEPS = 10


def build_program(settings):
  """Builds the program in the default graph."""
  return towers.Program(
      small.model, train=small.random_examples(13), batch_size=8, shuffle=False,
      validation=small.random_examples(11, 'validation', seed=1),
      optimizer=tf.train.MomentumOptimizer(0.1, 0.9), **settings)


def train(program):
  """Returns what the process prints."""
  with program.session() as session:
    losses = [float(session.train()) for _ in range(STEPS)]
    means = {name: float(mean) for name, mean in session.validate().items()}
    weights = {variable.op.name: session.run(variable).tolist()
               for variable in tf.trainable_variables()}
  return dict(losses=losses, means=means, weights=weights)


if __name__ == '__main__':
  use_deterministic_kernels()
  use_tf32(False)
  print(json.dumps(train(build_program(json.loads(sys.argv[1])))))
