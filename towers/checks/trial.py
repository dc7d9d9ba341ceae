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
from towers.checks.law import find_coupling, find_dead
from towers.data.examples import Examples
from towers.graph.walk import find_needed
from towers.input.feed import build_batches, build_feed
from towers.input.pipeline import build_inputs
from towers.input.plan import Plan
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.devices import Devices, build_session_config
from towers.placement.variables import build_variable_store
from towers.reduce.average import average_gradients
from towers.tower.batch_norm_layer import BATCH_MOMENTS
from towers.tower.tower import Model, build_towers
from towers.update.apply import build_train_op

LEARNING_RATE = 0.01
# Tensors of these types cannot be fetched and compared.
_OPAQUE = (tf.resource, tf.variant)
# A uniform draw from 0 to 1 with which dropout keeps everything.
_ALMOST_ONE = 0.999


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
    graph: of the program.
    batches: of the towers.
    towers: as `build_towers` returns them.
    variables: by name, all of the model, trained or not.
    activations: the tensors that the losses are computed from: by the name in the tower, those of
      all towers.
    draws: the names of the random ops among them.
    batch_norms: the names of the layers of batch normalisation that can be joined.
  """

  def __init__(self, model: Model, examples: Examples, *, plan: Plan, devices: Devices, seed: int,
               batch_norm: str, is_training: bool, holds_draws: bool = False):
    """Builds the program.

    Args:
      model: of each tower.
      examples: of the plan.
      plan: of all steps, for as many towers as there are devices.
      devices: of the towers.
      seed: of initial weights and random ops.
      batch_norm: as for `build_towers`.
      is_training: for the model. With False it need not update moving averages.
      holds_draws: whether each random op returns the same number to all examples of all towers.

    Raises:
      ValueError: what building the towers raises, UsageErrors among them.
    """
    with tf.Graph().as_default() as self.graph:
      inputs = build_inputs(examples, plan=plan, seed=seed)
      self._feed = build_feed(inputs, devices=devices.names, staging_depth=0)
      batches = build_batches(self._feed)
      self.batches = batches
      self._inputs = _name_inputs(batches)
      self._counts = [tf.convert_to_tensor(batch.num_examples) for batch in batches]
      self.towers = build_towers(
          model if is_training else _without_updates(model), batches, devices=devices.names,
          store=build_variable_store(devices=devices.names, seed=seed), is_training=is_training,
          batch_norm=batch_norm if is_training else 'first')

      needed = find_needed([tower.loss.op for tower in self.towers])
      draws = find_draws([op for op in self.graph.get_operations() if op in needed])
      if holds_draws:
        _hold_draws(draws)
      self.draws = [self.shorten(op.name).split('_stateless/')[0] for op in draws if self.owns(op)]
      self.activations = self._find_activations(needed)
      self.batch_norms = sorted({_find_layer(moment)
                                 for moment in tf.get_collection(BATCH_MOMENTS)})

      reduced = average_gradients(self.towers)
      self._loss = reduced.loss
      self._gradients = {variable.op.name: tf.convert_to_tensor(gradient)
                         for gradient, variable in reduced.gradients}
      self._train_op = build_train_op(
          reduced, optimizer=tf.train.GradientDescentOptimizer(LEARNING_RATE))
      self._build_load()
      self._config = build_session_config(devices)

  def _build_load(self):
    """Builds the ops that set the model's variables to given values, or to their initial ones."""
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

  def run(self, num_steps: int, *, starts: Optional[Sequence[Dict[str, Any]]] = None,
          watched: Optional[int] = None, reverses: bool = False) -> Outcome:
    """Takes the first steps in a session of its own.

    Args:
      num_steps: how many.
      starts: for each step the variables that it begins with; None for those of the step before.
      watched: the step whose activations are kept.
      reverses: whether the examples of each batch stand in the opposite order.

    Raises:
      tf.errors.OpError: what the graph raises.
    """
    outcome = Outcome([], [], [], [], [], [], {})
    with tf.Session(graph=self.graph, config=self._config) as session:
      for initializer in self._initializers:
        session.run(initializer)
      self._feed.start(session)
      for step in range(num_steps):
        if starts is not None:
          session.run(self._load, {self._values[name]: value
                                   for name, value in starts[step].items() if name in self._values})
        outcome.before.append(session.run(self.variables))
        activations = self.activations if step == watched else {}
        feed = self._reverse(session) if reverses else {}
        counts, inputs, loss, gradients, values, _ = session.run(
            [self._counts, self._inputs, self._loss, self._gradients, activations, self._train_op],
            feed)
        outcome.after.append(session.run(self.variables))
        outcome.counts.append([int(count) for count in counts])
        outcome.inputs.append(inputs)
        outcome.losses.append(loss)
        outcome.gradients.append(gradients)
        outcome.activations.update(values)
    return outcome

  def _reverse(self, session):
    """Takes each tower's next batch, and returns the feed of the same examples from the last."""
    tensors = [tensor for batch in self.batches for tensor in batch.flatten()
               if tf.is_tensor(tensor)]
    return {tensor: value[::-1] if value.ndim else value
            for tensor, value in zip(tensors, session.run(tensors))}

  def judge(self, outcome: Outcome, num_parts: int) -> List[str]:
    """Returns sentences on what depends on other examples, in the first step in which any does.

    Args:
      outcome: of the steps of this trial.
      num_parts: as for `check_towers`.

    Raises:
      UsageError: as for `check_towers`.
    """
    with tf.Session(graph=self.graph, config=self._config) as session:
      for initializer in self._initializers:
        session.run(initializer)
      for step, (counts, inputs) in enumerate(zip(outcome.counts, outcome.inputs)):
        session.run(self._load, {self._values[name]: value
                                 for name, value in outcome.before[step].items()})
        rows = [*(np.asarray(values[0]) for values in inputs.values()), counts[0]]
        found = find_coupling(self.towers[0], self.batches[0], session, rows, num_parts=num_parts)
        if found:
          return found
    return []

  def find_op(self, name: str) -> Operation:
    """Returns the first tower's op that computes an activation."""
    return self.activations[name][0].op

  def owns(self, op: Operation) -> bool:
    """Returns whether an op belongs to the first tower's model."""
    return op.name.startswith(self.towers[0].scope)

  def shorten(self, name: str) -> str:
    """Returns the name of an op or tensor of the first tower without the tower's scope."""
    return name[len(self.towers[0].scope):]

  def _find_activations(self, needed):
    """Returns the tensors that are in all towers, in the model's order."""
    found = {}
    dead = find_dead([op for op in self.graph.get_operations() if op in needed])
    for op in self.graph.get_operations():
      if op not in needed or op in dead or not self.owns(op):
        continue
      for tensor in op.outputs:
        if (tensor.dtype in _OPAQUE or tensor.dtype._is_ref_dtype
            or not self.graph.is_fetchable(tensor)):
          continue
        name = self.shorten(tensor.name)
        copies = [_find_tensor(self.graph, tower.scope + name) for tower in self.towers]
        if all(copy is not None and copy.op in needed and copy.op not in dead for copy in copies):
          found[name] = copies
    return found


def _without_updates(model):
  """Returns the model with an update that does nothing, so that no check misses one."""
  def changed(batch, is_training):
    returned = model(batch, is_training)
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


def _hold_draws(draws):
  """Gives the consumers of random ops constants, the same for each example."""
  for op in draws:
    drawn = op.outputs[0]
    consumers = drawn.consumers()
    graph = op.graph
    outer = graph._get_control_flow_context()
    graph._set_control_flow_context(op._get_control_flow_context())
    try:
      with tf.device(op.device):
        held = _hold(op, drawn)
    finally:
      graph._set_control_flow_context(outer)
    for consumer in consumers:
      for index, tensor in enumerate(consumer.inputs):
        if tensor is drawn:
          consumer._update_input(index, held)


def _hold(op, drawn):
  if 'Shuffle' in op.type:
    return tf.identity(op.inputs[0])
  if drawn.dtype.is_integer:
    return tf.zeros_like(drawn)
  value = _ALMOST_ONE if 'Uniform' in op.type else 0.5
  return tf.fill(tf.shape(drawn), tf.constant(value, drawn.dtype))


def _find_tensor(graph, name):
  try:
    return graph.get_tensor_by_name(name)
  except (KeyError, ValueError):
    return None


def _find_layer(tensor):
  return tensor.op.name.split('/', 1)[1].rsplit('/', 1)[0]
