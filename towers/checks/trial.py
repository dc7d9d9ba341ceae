"""Trial: a program of one or several towers that takes a few steps.

The check compares what trials compute. They can start each step from the same variables, so that
rounding does not grow from one step to the next.
"""

import contextlib
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from towers.data.examples import Examples
from towers.graph.walk import find_dead, find_needed
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.randomness import find_draws, is_random
from towers.placement.workers import ALONE
from towers.process.startup import Startup
from towers.program import Program
from towers.tensorflow_v1 import tf
from towers.tower.model_call import Model
from towers.warm_start.warm_start import load_values

_LEARNING_RATE = 0.01
# The values of a step, in the order in which they are computed: the variables; each tower's batch;
# what losses are computed from, each tower's; the mean over the global batch and its gradients; the
# variables after the step.
START, INPUT, OP, LOSS, GRADIENT, END = 'start', 'input', 'op', 'loss', 'gradient', 'end'
# Tensors of these types cannot be fetched and compared.
_OPAQUE = (tf.resource, tf.variant)

Step = Dict[Tuple[str, str], Any]
"""The values of a step by kind and name, in order."""


class Trial:
  """A program in a graph of its own, with plain gradient descent.

  Attributes:
    variables: by name, all of the model, trained or not.
    draws: whether losses are computed from random numbers.
    stateful_draws: the names of the ops that draw them by a state of their own, in a tower.
  """

  def __init__(self, model: Model, examples: Examples, **settings: Any):
    with tf.Graph().as_default() as graph:
      self.program = Program(
          model, train=examples, optimizer=tf.train.GradientDescentOptimizer(_LEARNING_RATE),
          shuffle=False, staging_depth=0, tower_build='reuse', workers=ALONE, **settings)
      self._scopes = [tower.scope for tower in self.program.towers]
      needed = find_needed([tower.loss.op for tower in self.program.towers])
      ops = [op for op in graph.get_operations() if op in needed]
      draws = [op for op in find_draws(ops) if op.name.startswith(self._scopes[0])]
      self.draws = bool(draws)
      self.stateful_draws = [op.name[len(self._scopes[0]):] for op in draws if is_random(op)]
      self._fetches: Step = {
          **self._find_inputs(), **self._find_activations(ops),
          (LOSS, 'loss'): self.program.gradients.loss,
          **{(GRADIENT, variable.op.name): tf.convert_to_tensor(gradient)
             for gradient, variable in self.program.gradients.gradients}}
      counters = (get_global_step().op, get_examples_seen().op)
      self.variables = {variable.op.name: variable
                        for variable in tf.global_variables() + tf.local_variables()
                        if variable.op not in counters}

  @contextlib.contextmanager
  def open(self) -> Iterator[tf.Session]:
    """Opens a session of its own, with initial variables."""
    session = self.program.session()
    with session.opened(Startup(time.monotonic())):
      yield session.tf_session

  def run(self, num_steps: int, *, starts: Optional[Sequence[Step]] = None,
          watched: Optional[int] = None, reverses: bool = False) -> List[Step]:
    """Takes the first steps; raises what the graph raises.

    Args:
      starts: steps with whose variables these begin; None for those of the step before.
      watched: the step whose ops are kept.
      reverses: whether the examples of each batch stand in the opposite order.
    """
    steps: List[Step] = []
    with self.open() as session:
      self.program.feed.start(session)
      for number in range(num_steps):
        if starts is not None:
          self.start_from(session, starts[number])
        start = self._read(session, START)
        fetches = {key: value for key, value in self._fetches.items()
                   if key[0] != OP or number == watched}
        values, _ = session.run([fetches, self.program.train_op],
                                self._reverse(session) if reverses else {})
        steps.append({**start, **values, **self._read(session, END)})
    return steps

  def _read(self, session, kind) -> Step:
    return {(kind, name): value for name, value in session.run(self.variables).items()}

  def start_from(self, session: tf.Session, step: Step) -> None:
    """Gives the variables the values with which another program's step began."""
    load_values(session, {variable: step[START, name] for name, variable in self.variables.items()
                          if (START, name) in step})

  def _reverse(self, session):
    """Takes each tower's next batch, and returns the feed of the same examples from the last."""
    tensors = [tensor for batch in self.program.batches for tensor in batch.flatten()
               if tf.is_tensor(tensor)]
    return {tensor: value[::-1] if np.ndim(value) else value
            for tensor, value in zip(tensors, session.run(tensors))}

  def _find_inputs(self) -> Step:
    """Returns the towers' tensors by their position, the number of examples last."""
    towers = zip(*(map(tf.convert_to_tensor, batch.flatten()) for batch in self.program.batches))
    return {(INPUT, str(index)): list(values) for index, values in enumerate(towers)}

  def _find_activations(self, ops) -> Step:
    """Returns the tensors that are in all towers, in the model's order, by the name in a tower."""
    dead, [first, *others] = find_dead(ops), self._scopes
    alive = {tensor.name: tensor for op in ops if op not in dead for tensor in op.outputs
             if tensor.dtype not in _OPAQUE and not tensor.dtype._is_ref_dtype
             and self.program.graph.is_fetchable(tensor)}
    names = [name[len(first):] for name in alive if name.startswith(first)]
    return {(OP, name): [alive[scope + name] for scope in (first, *others)] for name in names
            if all(scope + name in alive for scope in others)}
