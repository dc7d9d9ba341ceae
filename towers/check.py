"""Check: whether N towers of a model compute what one tower on the whole batch computes, and if not, what is to blame.

Both are built from the same seed and take the same few batches. Losses, gradients and updated weights must agree, but
for rounding: sums in another order differ, and how much a model makes of that is measured, by one tower whose weights
are changed in their last bits. Where the towers do not agree, the first op of the model whose values differ for the
same examples is looked up, with the line of the program that made it.
"""

import math
from typing import Any, Dict, List, NamedTuple

import numpy as np

from data.examples import Examples
from models.batch_norm import BATCH_MOMENTS
from tensorflow_v1 import tf
from towers.apply import build_train_op
from towers.average import average_gradients
from towers.devices import build_devices, build_session_config
from towers.feed import build_batches, build_feed
from towers.inputs import build_inputs
from towers.plan import build_plan
from towers.randomness import STATELESS_TYPES
from towers.tower import Model, build_towers
from towers.variables import build_variable_store

_TOLERANCE = 1e-5  # Of the largest value.
_NOISE = 1e-6  # What weights are changed by to see what rounding does, relative.
_NOISE_TOLERANCE = 20
_LEARNING_RATE = 0.01


class Row(NamedTuple):
  """One comparison.

  Attributes:
    name: of what is compared.
    difference: the largest difference of two values, over all steps.
    scale: the largest value.
    noise: the largest difference that rounding makes.
  """
  name: str
  difference: float
  scale: float
  noise: float

  @property
  def agrees(self) -> bool:
    """Whether the difference is one of rounding."""
    return math.isfinite(self.difference) and bool(
        self.difference <= _TOLERANCE * self.scale + _NOISE_TOLERANCE * self.noise + 1e-7)


class Report(NamedTuple):
  """What a check found.

  Attributes:
    num_towers: that one tower was compared with.
    rows: all comparisons.
    causes: what makes towers differ, in words; empty if they agree.
    draws: whether the model draws random numbers, as dropout does, which differ in every tower.
  """
  num_towers: int
  rows: List[Row]
  causes: List[str]
  draws: bool

  @property
  def agrees(self) -> bool:
    """Whether the towers are one tower."""
    return all(row.agrees for row in self.rows)

  def format(self) -> str:
    """Returns a table and the verdict."""
    width = max(len(row.name) for row in self.rows)
    lines = ['%d towers beside one on the same batches, largest differences:' % self.num_towers]
    lines += ['  %-*s  %9.2g of %9.2g  %s' % (width, row.name, row.difference, row.scale,
                                               'agrees' if row.agrees else 'DIFFERS') for row in self.rows]
    if self.agrees:
      lines.append('%d towers are one tower: losses, gradients and weights agree.' % self.num_towers)
    else:
      lines.append('%d towers are NOT one tower. %s' % (self.num_towers, ' '.join(self.causes)))
    return '\n'.join(lines)


class _Trial(NamedTuple):
  """What a few steps of one program gave."""
  losses: List[float]
  gradients: Dict[str, Any]
  weights: Dict[str, Any]
  activations: Dict[str, Any]
  lines: Dict[str, str]
  batch_norms: List[str]
  random_ops: List[str]


def check(model: Model, examples: Examples, *, num_towers: int = 2, batch_size: int = 16, num_steps: int = 3,
          seed: int = 0, batch_norm: str = 'first', is_training: bool = True) -> Report:
  """Builds a model with one tower and with several, on virtual CPU devices, and compares a few steps.

  Args:
    model: to check.
    examples: to take the first `num_steps` batches from, not shuffled.
    num_towers: of the second program.
    batch_size: the global batch of both.
    num_steps: that both take.
    seed: of initial weights and random ops.
    batch_norm: as for `build_towers`.
    is_training: handed to the model. With False dropout is off, and what is left can be compared.

  Raises:
    UsageError: a model that towers cannot share, or sizes that cannot be.
  """
  settings = dict(batch_size=batch_size, num_steps=num_steps, seed=seed, batch_norm=batch_norm, is_training=is_training)
  one = _try(model, examples, num_towers=1, **settings)
  noisy = _try(model, examples, num_towers=1, noise=_NOISE, **settings)
  several = _try(model, examples, num_towers=num_towers, **settings)
  rows = [_compare('loss', several.losses, one.losses, noisy.losses)]
  rows += [_compare('gradient of ' + name, several.gradients[name], value, noisy.gradients[name])
           for name, value in one.gradients.items()]
  rows += [_compare(name, several.weights[name], value, noisy.weights[name]) for name, value in one.weights.items()]
  report = Report(num_towers, rows, [], draws=bool(one.random_ops))
  return report if report.agrees else report._replace(causes=_find_causes(one, noisy, several, batch_norm))


def _try(model, examples, *, num_towers, batch_size, num_steps, seed, batch_norm, is_training, noise=0.0):
  with tf.Graph().as_default() as graph:
    devices = build_devices(num_towers, 'cpu')
    plan = build_plan(num_examples=examples.num_examples, batch_size=batch_size, num_towers=num_towers,
                      name=examples.name)
    feed = build_feed(build_inputs(examples, plan=plan, seed=seed), devices=devices.names, staging_depth=0)
    store = build_variable_store(devices=devices.names, seed=seed)
    towers = build_towers(model, build_batches(feed), devices=devices.names, store=store, is_training=is_training,
                          batch_norm=batch_norm)
    averaged = average_gradients(towers)
    gradients = {variable.op.name: tf.convert_to_tensor(gradient) for gradient, variable in averaged.gradients}
    activations = _find_activations(graph, num_towers)
    train_op = build_train_op(averaged, optimizer=tf.train.GradientDescentOptimizer(_LEARNING_RATE))
    variables = {variable.op.name: variable for variable in tf.trainable_variables()}

    with tf.Session(config=build_session_config(devices)) as session:
      session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
      if noise:
        for variable, value in zip(variables.values(), session.run(list(variables.values()))):
          signs = np.random.RandomState(0).choice([-1, 1], size=value.shape)
          session.run(variable.initializer, {variable.initial_value: value * (1 + noise * signs)})
      feed.start(session)
      losses, all_gradients, first_activations = [], [], None
      for _ in range(num_steps):
        fetches = [averaged.loss, gradients, activations if first_activations is None else {}, train_op]
        loss, gradient_values, activation_values, _ = session.run(fetches)
        losses.append(loss)
        all_gradients.append(gradient_values)
        first_activations = first_activations or activation_values
      weights = session.run(variables)
  return _Trial(
      losses=losses, gradients={name: np.stack([values[name] for values in all_gradients]) for name in gradients},
      weights=weights,
      activations={name: np.concatenate(values) for name, values in (first_activations or {}).items()},
      lines={name: _find_line(tensors[0].op, model) for name, tensors in activations.items()},
      batch_norms=sorted({_find_layer(tensor) for tensor in graph.get_collection(BATCH_MOMENTS)}),
      random_ops=[op.name[len('tower_0/'):].split('_stateless/')[0] for op in graph.get_operations()
                  if op.name.startswith('tower_0/') and op.type in STATELESS_TYPES])


def _find_activations(graph, num_towers):
  """Returns, in the order of the model, what every tower computes for each of its examples, by name without tower."""
  found = {}
  for op in graph.get_operations():
    if not op.name.startswith('tower_0/') or '/gradients/' in op.name or op._get_control_flow_context() is not None:
      continue
    for index, tensor in enumerate(op.outputs):
      shape = tensor.shape
      if tensor.dtype != tf.float32 or not shape.ndims:
        continue
      name = '%s:%d' % (op.name[len('tower_0/'):], index)
      try:
        copies = [graph.get_tensor_by_name('tower_%d/%s' % (tower, name)) for tower in range(num_towers)]
      except KeyError:
        continue
      found[name] = copies
  return found


def _compare(name, ours, expected, noisy):
  ours, expected, noisy = (np.asarray(value, np.float64) for value in (ours, expected, noisy))
  return Row(name, _largest(ours - expected), _largest(expected), _largest(noisy - expected))


def _largest(values):
  """Returns the largest absolute value, which is infinite if one is no number."""
  largest = float(np.max(np.abs(values))) if values.size else 0.0
  return float('inf') if np.isnan(largest) else largest


def _find_causes(one, noisy, several, batch_norm):
  """Returns sentences: what is known to differ, or the first op that does."""
  causes = []
  if not np.isfinite(one.losses).all():
    causes.append('The losses of one tower are no finite numbers already.')
  if one.random_ops:
    causes.append('Random ops draw other numbers in every tower, as they should (%s): compare the rest with '
                  'is_training=False.' % ', '.join(one.random_ops[:3]))
  if one.batch_norms and batch_norm != 'sync':
    causes.append('Batch normalisation takes the moments of each tower\'s own batch (%s): batch_norm=sync takes those '
                  'of the global batch.' % ', '.join(one.batch_norms[:3]))
  if not causes:
    for name, value in one.activations.items():
      other = several.activations.get(name)
      # A value of another shape is none per example: it is looked at through what is made of it.
      if other is None or other.shape != value.shape:
        continue
      if not _compare(name, other, value, noisy.activations[name]).agrees:
        causes.append('The first values that differ for the same examples are those of %s%s: it, or what it is made '
                      'from, depends on the other examples of the batch.' % (name, one.lines[name]))
        break
    else:
      causes.append('The model gives each example the same loss; what differs is how they are added up or '
                    'differentiated.')
  return causes


def _find_line(op, model):
  """Returns ', made in FILE, line N' for the innermost line of the model's own file, or ''."""
  file_name = getattr(getattr(model, '__code__', None), 'co_filename', None)
  for frame in reversed(list(op.traceback or [])):
    path, line = (frame[0], frame[1])
    if path == file_name:
      return ', made in %s, line %d' % (path, line)
  return ''


def _find_layer(tensor):
  return tensor.op.name.split('/', 1)[1].rsplit('/', 1)[0]
