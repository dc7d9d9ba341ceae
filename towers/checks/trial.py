"""Trial: a program of one or several towers that takes a few steps.

The check compares what trials compute. They can start each step from the same variables, so that
rounding does not grow from one step to the next.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from tensorflow_v1 import Operation, tf
from towers.checks.draws import find_draws
from towers.checks.forward import find_dead
from towers.checks.law import find_coupling
from towers.data.examples import Examples
from towers.graph.walk import find_needed
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.devices import build_session_config
from towers.placement.workers import ALONE
from towers.settings import arguments_of
from towers.tower.model_call import Model
from towers.training_graph import ProgramSettings, TrainingGraph

LEARNING_RATE = 0.01
# The values of a step, in the order in which they are computed: each tower's batch; the variables;
# what losses are computed from, each tower's; the mean over the global batch and its gradients; the
# variables after the step.
KINDS = INPUT, START, OP, LOSS, GRADIENT, END = (
    'input', 'start', 'op', 'loss', 'gradient', 'end')
# Tensors of these types cannot be fetched and compared.
_OPAQUE = (tf.resource, tf.variant)

Step = Dict[Tuple[str, str], Any]
"""The values of a step by kind and name, in order."""


class Trial:
  """A program in a graph of its own.

  Attributes:
    program: that takes the steps, with plain gradient descent.
    variables: by name, all of the model, trained or not.
    draws: the random ops that losses are computed from.
  """

  def __init__(self, model: Model, examples: Examples, *, is_training: bool, **settings: Any):
    """Builds the program.

    Args:
      model: of each tower.
      examples: of the plan.
      is_training: for the model. With False it need not update moving averages.
      **settings: of the program.

    Raises:
      ValueError: what building it raises, UsageErrors among them.
    """
    defaults = {name: setting.default for name, setting in arguments_of('program').items()}
    with tf.Graph().as_default() as graph:
      self.program = TrainingGraph(
          model if is_training else _without_updates(model), examples, None,
          ProgramSettings(**{**defaults, **settings, **dict(
              optimizer=tf.train.GradientDescentOptimizer(LEARNING_RATE), learning_rate=None,
              shuffle=False, staging_depth=0, tower_build='reuse', validation_tower=False,
              frozen=(), rate_factors=None, init_from=None)}), ALONE)
      towers, reduced = self.program.towers, self.program.gradients
      needed = find_needed([tower.loss.op for tower in towers])
      ops = [op for op in graph.get_operations() if op in needed]
      self.draws = [op for op in find_draws(ops) if op.name.startswith(towers[0].scope)]
      self._fetches: Step = {
          **_find_inputs(self.program.batches), **self._find_activations(ops),
          (LOSS, 'loss'): reduced.loss,
          **{(GRADIENT, variable.op.name): tf.convert_to_tensor(gradient)
             for gradient, variable in reduced.gradients}}
      counters = (get_global_step(), get_examples_seen())
      self.variables = {variable.op.name: variable
                        for variable in tf.global_variables() + tf.local_variables()
                        if all(variable is not counter for counter in counters)}
      self._values = {name: tf.placeholder(variable.dtype.base_dtype, name='value')
                      for name, variable in self.variables.items()}
      self._load = tf.group(*[variable.assign(self._values[name], read_value=False)
                              for name, variable in self.variables.items()])
      # One after the other, since a local variable may start from a global one.
      self._initializers = [tf.global_variables_initializer(), tf.local_variables_initializer(),
                            tf.tables_initializer()]
      self._config = build_session_config(self.program.devices)

  def _open(self):
    """Returns a session of its own, with initial variables."""
    session = tf.Session(graph=self.program.graph, config=self._config)
    for initializer in self._initializers:
      session.run(initializer)
    return session

  def run(self, num_steps: int, *, starts: Optional[Sequence[Step]] = None,
          watched: Optional[int] = None, reverses: bool = False) -> List[Step]:
    """Takes the first steps.

    Args:
      num_steps: how many.
      starts: steps with whose variables these begin; None for those of the step before.
      watched: the step whose ops are kept.
      reverses: whether the examples of each batch stand in the opposite order.

    Raises:
      tf.errors.OpError: what the graph raises.
    """
    steps = []
    with self._open() as session:
      self.program.feed.start(session)
      for number in range(num_steps):
        if starts is not None:
          self._start_from(session, starts[number])
        start = session.run(self.variables)
        fetches = {key: value for key, value in self._fetches.items()
                   if key[0] != OP or number == watched}
        values, _ = session.run([fetches, self.program.train_op],
                                self._reverse(session) if reverses else {})
        values.update({(START, name): value for name, value in start.items()})
        values.update({(END, name): value for name, value in session.run(self.variables).items()})
        steps.append({key: values[key] for key in sorted(values, key=lambda key: KINDS.index(
            key[0]))})
    return steps

  def judge(self, steps: Sequence[Step], num_parts: int) -> List[str]:
    """Returns what `find_coupling` finds in the first of the steps in which it finds any."""
    with self._open() as session:
      for step in steps:
        self._start_from(session, step)
        rows = [np.asarray(values[0]) for (kind, _), values in step.items() if kind == INPUT]
        found = find_coupling(self.program.towers[0], self.program.batches[0], session, rows,
                              num_parts=num_parts, moves_state=True)
        if found:
          return found
    return []

  def _start_from(self, session, step):
    session.run(self._load, {self._values[name]: value for (kind, name), value in step.items()
                             if kind == START and name in self._values})

  def _reverse(self, session):
    """Takes each tower's next batch, and returns the feed of the same examples from the last."""
    tensors = [tensor for batch in self.program.batches for tensor in batch.flatten()
               if tf.is_tensor(tensor)]
    return {tensor: value[::-1] if np.ndim(value) else value
            for tensor, value in zip(tensors, session.run(tensors))}

  def find_op(self, name: str) -> Operation:
    """Returns the first tower's op that computes an activation."""
    return self._fetches[OP, name][0].op

  def shorten(self, op: Operation) -> str:
    """Returns the name of the first tower's op without the tower's scope."""
    return op.name[len(self.program.towers[0].scope):]

  def _find_activations(self, ops) -> Step:
    """Returns the tensors that are in all towers, in the model's order, by the name in a tower."""
    dead, [first, *others] = find_dead(ops), [tower.scope for tower in self.program.towers]
    alive = {tensor.name: tensor for op in ops if op not in dead for tensor in op.outputs
             if tensor.dtype not in _OPAQUE and not tensor.dtype._is_ref_dtype
             and self.program.graph.is_fetchable(tensor)}
    names = [name[len(first):] for name in alive if name.startswith(first)]
    return {(OP, name): [alive[scope + name] for scope in (first, *others)] for name in names
            if all(scope + name in alive for scope in others)}


def _without_updates(model):
  """Returns the model for validation, with an update that does nothing, so that no check misses
  one."""
  def changed(batch, is_training):
    del is_training
    returned = model(batch, False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.no_op())
    return returned

  return changed


def _find_inputs(batches) -> Step:
  """Returns each tower's tensors by the key in a dict, or the position; and their numbers."""
  first = batches[0].tensors
  flat = [list(map(tf.convert_to_tensor, batch.flatten())) for batch in batches]
  keys = sorted(first) if isinstance(first, dict) and len(first) == len(flat[0]) - 1 else None
  names = [*(map(repr, keys) if keys else map(str, range(len(flat[0]) - 1))), 'of their number']
  return {(INPUT, name): list(values) for name, values in zip(names, zip(*flat))}
