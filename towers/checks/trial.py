"""Trial: a program of one or several towers that takes a few steps.

  batch ──► model ──────► loss ──► gradients ──► variables
  inputs    activations   losses   gradients     before, after

The check compares the outcomes of trials. Trials can start each step from the same variables, so
that rounding does not grow from one step to the next.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

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
from towers.tower.tower import Model
from towers.training_graph import ProgramSettings, TrainingGraph

LEARNING_RATE = 0.01
# Tensors of these types cannot be fetched and compared.
_OPAQUE = (tf.resource, tf.variant)


class Outcome(NamedTuple):
  """The values of a trial's steps: one item per step, except for `activations`.

  Attributes:
    counts: each tower's number of examples.
    inputs: by name, each tower's tensors, `[batch, ...]`.
    before: the variables at the start of the step, by name.
    losses: the mean over the global batch.
    gradients: of the mean loss, by variable.
    after: the variables after the step.
    activations: of one step, by the tensor's name in the tower, each tower's value.
  """
  counts: List[List[int]]
  inputs: List[Dict[str, List[Any]]]
  before: List[Dict[str, Any]]
  losses: List[Any]
  gradients: List[Dict[str, Any]]
  after: List[Dict[str, Any]]
  activations: Dict[str, List[Any]]


class Trial:
  """A program in a graph of its own.

  Attributes:
    program: that takes the steps, with plain gradient descent.
    variables: by name, all of the model, trained or not.
    activations: the tensors that the losses are computed from: by the name in the tower, those of
      all towers.
    draws: the names of the random ops among them.
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
      self._inputs = _name_inputs(self.program.batches)
      self._counts = [tf.convert_to_tensor(batch.num_examples) for batch in self.program.batches]
      needed = find_needed([tower.loss.op for tower in towers])
      self._needed = [op for op in graph.get_operations() if op in needed]
      self.draws = [self.shorten(op.name).split('_stateless/')[0]
                    for op in find_draws(self._needed) if self.owns(op)]
      self.activations = self._find_activations()
      self._fetches = [reduced.loss, {variable.op.name: tf.convert_to_tensor(gradient)
                                      for gradient, variable in reduced.gradients}]
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

  def run(self, num_steps: int, *, starts: Optional[Sequence[Dict[str, Any]]] = None,
          watched: Optional[int] = None, reverses: bool = False) -> Outcome:
    """Takes the first steps.

    Args:
      num_steps: how many.
      starts: for each step the variables that it begins with; None for those of the step before.
      watched: the step whose activations are kept.
      reverses: whether the examples of each batch stand in the opposite order.

    Raises:
      tf.errors.OpError: what the graph raises.
    """
    outcome = Outcome([], [], [], [], [], [], {})
    with self._open() as session:
      self.program.feed.start(session)
      for step in range(num_steps):
        if starts is not None:
          self._start_from(session, starts[step])
        outcome.before.append(session.run(self.variables))
        feed = self._reverse(session) if reverses else {}
        counts, inputs, (loss, gradients), values, _ = session.run(
            [self._counts, self._inputs, self._fetches,
             self.activations if step == watched else {}, self.program.train_op], feed)
        outcome.after.append(session.run(self.variables))
        outcome.counts.append([int(count) for count in counts])
        outcome.inputs.append(inputs)
        outcome.losses.append(loss)
        outcome.gradients.append(gradients)
        outcome.activations.update(values)
    return outcome

  def judge(self, outcome: Outcome, num_parts: int) -> List[str]:
    """Returns what `find_coupling` finds in the first step of an outcome in which it finds any."""
    program = self.program
    with self._open() as session:
      for step, inputs in enumerate(outcome.inputs):
        self._start_from(session, outcome.before[step])
        rows = [*(np.asarray(values[0]) for values in inputs.values()), outcome.counts[step][0]]
        found = find_coupling(program.towers[0], program.batches[0], session, rows,
                              num_parts=num_parts)
        if found:
          return found
    return []

  def _start_from(self, session, values):
    session.run(self._load, {self._values[name]: value for name, value in values.items()
                             if name in self._values})

  def _reverse(self, session):
    """Takes each tower's next batch, and returns the feed of the same examples from the last."""
    tensors = [tensor for batch in self.program.batches for tensor in batch.flatten()
               if tf.is_tensor(tensor)]
    return {tensor: value[::-1] if np.ndim(value) else value
            for tensor, value in zip(tensors, session.run(tensors))}

  def find_op(self, name: str) -> Operation:
    """Returns the first tower's op that computes an activation."""
    return self.activations[name][0].op

  def owns(self, op: Operation) -> bool:
    """Returns whether an op belongs to the first tower's model."""
    return op.name.startswith(self.program.towers[0].scope)

  def shorten(self, name: str) -> str:
    """Returns the name of an op or tensor of the first tower without the tower's scope."""
    return name[len(self.program.towers[0].scope):]

  def _find_activations(self):
    """Returns the tensors that are in all towers, in the model's order."""
    dead, scopes = find_dead(self._needed), [tower.scope for tower in self.program.towers]
    alive = {tensor.name: tensor for op in self._needed if op not in dead for tensor in op.outputs
             if tensor.dtype not in _OPAQUE and not tensor.dtype._is_ref_dtype
             and self.program.graph.is_fetchable(tensor)}
    names = [self.shorten(name) for name, tensor in alive.items() if self.owns(tensor.op)]
    return {name: [alive[scope + name] for scope in scopes] for name in names
            if all(scope + name in alive for scope in scopes)}


def _without_updates(model):
  """Returns the model for validation, with an update that does nothing, so that no check misses
  one."""
  def changed(batch, is_training):
    del is_training
    returned = model(batch, False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.no_op())
    return returned

  return changed


def _name_inputs(batches):
  """Returns each tower's inputs by name: the key in a dict, or the position."""
  tensors = [tf.nest.flatten(batch.tensors) for batch in batches]
  first = batches[0].tensors
  keys = sorted(first) if isinstance(first, dict) and len(first) == len(tensors[0]) else None
  names = map(repr, keys) if keys else map(str, range(len(tensors[0])))
  return {name: list(of_towers) for name, of_towers in zip(names, zip(*tensors))}
