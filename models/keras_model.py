"""Any Keras model in towers: the first tower makes its layers, and every tower calls them.

  model = towers.KerasModel(
      lambda: tf.keras.applications.MobileNetV2(weights=None, classes=10, input_shape=(32, 32, 3)),
      loss='sparse_categorical_crossentropy', metrics={'accuracy': 'sparse_categorical_accuracy'})
  program = towers.Program(model, train=examples, batch_size=256, optimizer=optimizer)

                    ┌─► tower 0 ─ loss per example, updates of batch norm, penalties ─┐
  make, one set ────┼─► tower 1 ─ loss per example                                    ├─► average
  of variables      └─► tower 2 ─ loss per example                                   ─┘

A model that `make` has compiled brings its loss. Metrics are KerasModel's and the optimizer is the
program's: Keras's own `fit` knows no towers; do not call it on a model used here.
"""

import functools
import inspect
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from towers.base.usage_error import UsageError, check_parameters
from towers.tensorflow_v1 import load_keras, replace_tensor, tf
from towers.tower.all_towers import count_towers

from .layers import Layers

_Function = Union[str, Callable[[Any, Any], Any]]


class KerasModel:
  """A model function over batches of (inputs, labels), for `towers.Program`."""

  def __init__(self, make: Callable[[], Any], *,
               loss: Union[_Function, Sequence[_Function], Mapping[str, _Function], None] = None,
               metrics: Union[Mapping[str, _Function], Sequence[_Function], None] = None,
               preprocess: Optional[Callable[[Any], Any]] = None):
    """Makes nothing yet: the first tower of a graph makes the layers.

    Args:
      make: returns a Keras model or layer of any kind. What it loads or sets (weights='…',
        load_weights, set_weights, load_model) is what all towers start from.
      loss: of (labels, outputs), a function or the name of Keras's: one value per example, or their
        mean. Of several outputs a name is of each; or a list of losses, or a dict by the outputs'
        names, as `compile` takes them. None for what the model was compiled with, `loss_weights`
        too.
      metrics: by name, of (labels, outputs), functions or names of Keras's: one value per example.
        Of several outputs one of Keras's is of the output with whose name its own begins. A list
        of names or functions, as `compile` takes it, names each by itself.
      preprocess: what is done to a batch's inputs on the tower's device. By default images of bytes
        become floats in [0, 1], as with all models here, and everything else stays.

    Raises:
      UsageError: `tf.keras` is Keras 3, or `make` is a model that has been made already.
    """
    keras = load_keras()
    if isinstance(make, keras.layers.Layer) or not callable(make):
      raise UsageError(f'KerasModel takes a function that makes the model, and got {make!r}: its '
                       'variables are to be made where the towers\' are. Use KerasModel(lambda: '
                       '...), or the function you called.')
    check_parameters(make, 'make of KerasModel', fix='let it make the model by itself')
    named = metrics or {}
    if not isinstance(named, Mapping):
      named = {getattr(metric, '__name__', str(metric)): metric for metric in named}
    for name, metric in named.items():
      if isinstance(metric, keras.metrics.Metric):
        raise UsageError(f'The metric {name!r} of KerasModel, {metric!r}, keeps totals of its own, '
                         "which towers do not share: give a name, as 'binary_accuracy', or a "
                         'function of labels and outputs; what needs the whole split, as an AUC '
                         'does, is a towers.Whole.')
    self._make = make
    self._given_loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    self._is_for_each = loss is None or isinstance(loss, str) or _is_of_keras(loss)
    self._loss: Any = None
    self._metrics = {
        name: (_of_one(_find_metric(metric), casts=True), True)
        if isinstance(metric, str) or _is_of_keras(metric) else (_without_pairs(metric), False)
        for name, metric in named.items()}
    self._preprocess = preprocess or _bytes_to_floats
    self._graph: Any = None
    self._layers: Any = None
    self._predicting: Tuple[Any, Any] = (None, None)

  @property
  def layers(self) -> Any:
    """What `make` returned for the graph that towers were built in last; None before.

    To load weights into an open session: `tf.keras.backend.set_session(session)`, then
    `model.layers.load_weights(path)`.
    """
    return self._layers

  def __call__(self, batch: Tuple[Any, Any], is_training: Any) -> Tuple[Any, Dict[str, Any]]:
    """Returns losses and metrics of a tower's batch; the graph's first tower makes the layers.

    The inputs have any structure that the Keras model takes. Layers get `is_training`, a bool or a
    scalar bool tensor, as `training` and as the learning phase.

    Raises:
      UsageError: `make` returned no Keras model, there is no loss, or a batch is no such pair.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
      raise UsageError(f'KerasModel takes batches of (inputs, labels), and got {batch!r}: several '
                       'inputs are one structure, as in from_arrays((images, ages), labels).')
    inputs, labels = batch
    graph = tf.get_default_graph()
    is_first = self._graph is not graph
    if is_first:
      self._layers = self._make_layers()
      self._graph = graph
      _check_stateless(self._layers, inputs)
    inputs = _fit_inputs(self._layers, self._preprocess(inputs))
    outputs = _call(self._layers, inputs, is_training)
    names = _name_outputs(self._layers, outputs)
    if is_first:
      self._loss = self._find_loss(names)
      _collect(self._layers, inputs)
    losses = self._loss(labels, outputs)
    # What depends on the inputs, such as a penalty on activations, is a mean like the loss.
    penalties = self._layers.get_losses_for(inputs)
    if penalties:
      losses = _add_penalty(losses, tf.add_n(penalties), outputs)
    return losses, {
        name: metric(*_choose_output(name, metric, labels, outputs, names)
                     if is_of_one and len(names) > 1 else (labels, outputs))
        for name, (metric, is_of_one) in self._metrics.items()}

  def predict(self, inputs: Any) -> Any:
    """Returns the outputs for inputs alone, several by name, for a session and an export."""
    graph, layers = self._predicting
    if graph is not tf.get_default_graph():  # Each tower of it calls the layers of the first.
      layers = self._make_layers()
      self._predicting = tf.get_default_graph(), layers
    outputs = _call(layers, _fit_inputs(layers, self._preprocess(inputs)), is_training=False)
    return outputs if tf.is_tensor(outputs) else _by_name(
        'outputs', outputs, _name_outputs(layers, outputs))

  def _find_loss(self, names):
    """Returns a function of labels and all outputs."""
    loss, weights = self._given_loss, None
    if loss is None:
      loss, weights = _find_compiled(self._layers)
    if isinstance(loss, (list, tuple, dict)) or self._is_for_each and len(names) > 1:
      return _join_losses(loss, weights, names)
    found = load_keras().losses.get(loss)
    return (_of_one if self._is_for_each else _without_pairs)(found)

  def _make_layers(self):
    # Keras builds a functional model on placeholders, which are no ops of the tower.
    with tf.name_scope(None):
      made = self._make()
    if not isinstance(made, load_keras().layers.Layer):
      raise UsageError(f'The function of KerasModel returned {made!r}, which is no model of '
                       f'{load_keras().layers.Layer.__module__}: make it with tf.keras, where tf '
                       'comes from towers.tensorflow_v1, and return it.')
    return made


def _fit_inputs(layers, inputs):
  """Returns the inputs of a functional model as `fit` gives them: in its order, where 1.14 takes
  those of a dict by that of the keys, and one number of each example as `[n, 1]`."""
  names = getattr(layers, 'input_names', None) or []
  if isinstance(inputs, dict) and len(names) > 1 and not isinstance(layers._nested_inputs, dict):
    if not set(names) <= set(inputs):
      raise UsageError(f"The Keras model has the inputs {', '.join(names)}, and the batch has "
                       f"{', '.join(map(str, inputs))}: name them alike, or give them as a list "
                       'in that order.')
    inputs = [inputs[name] for name in names]
  wanted, given = getattr(layers, 'inputs', None) or [], tf.nest.flatten(inputs)
  if len(wanted) != len(given):
    return inputs
  return tf.nest.pack_sequence_as(inputs, [
      tf.expand_dims(one, 1) if _is_of_one_number(one, place) else one
      for one, place in zip(given, wanted)])


def _bytes_to_floats(inputs):
  # Rows of bytes may be numbers of words.
  is_image = getattr(inputs, 'dtype', None) == tf.uint8 and inputs.shape.ndims not in (1, 2)
  return Layers(True).normalize(inputs) if is_image else inputs


def _find_compiled(layers):
  """Returns the loss that a model was compiled with, and the weights of several."""
  is_compiled = getattr(layers, 'optimizer', None) is not None  # Any layer may have a `loss`.
  compiled = layers.loss if is_compiled else None
  if compiled is None:
    raise UsageError("KerasModel was given no loss, and its model is not compiled with one: give "
                     "KerasModel(make, loss='sparse_categorical_crossentropy') if it returns "
                     'probabilities, or a function of labels and outputs that returns one loss per '
                     'example.')
  return compiled, layers.loss_weights


def _name_outputs(layers, outputs) -> List[str]:
  """Returns the names of a model's outputs, one or several."""
  if isinstance(outputs, dict):
    return list(outputs)
  number = 1 if tf.is_tensor(outputs) else len(outputs)
  names = getattr(layers, 'output_names', None) or []
  return list(names) if len(names) == number else [f'output_{i + 1}' for i in range(number)]


def _by_name(kind, parts, names, needed=()) -> Dict[str, Any]:
  """Returns labels, outputs or losses by the names of outputs; all that are needed are there."""
  given = parts if isinstance(parts, (list, tuple, dict)) else [parts]
  if isinstance(given, dict) and set(needed) <= set(given) and (needed or set(given) <= set(names)):
    return given
  if isinstance(given, dict) or len(given) != len(names):
    raise UsageError(f"The Keras model has the outputs {', '.join(names)}, and its {kind} are "
                     f'{parts!r}: give them as a list in that order, or as a dict by these names.')
  return dict(zip(names, given))


def _join_losses(loss, weights, names):
  """Returns a function to the losses of all outputs that have one, by their names in Keras."""
  keras, is_one = load_keras(), not isinstance(loss, (list, tuple, dict))
  losses = {name: _of_one(keras.losses.get(one)) for name, one in _by_name(
      'losses', [loss] * len(names) if is_one else loss, names).items() if one is not None}
  factors = {} if weights is None else _by_name('loss_weights', weights, names)

  def compute(labels, outputs):
    wanted = _by_name('labels', labels, names, needed=losses)
    found = _by_name('outputs', outputs, names)
    return {f'{name}_loss': factors.get(name, 1.0) * one(wanted[name], found[name])
            for name, one in losses.items()}

  return compute


def _is_of_keras(function):
  """Returns whether a loss or a metric is one of Keras's own, which take labels as `fit` does."""
  keras = load_keras()
  name = getattr(function, '__name__', '')
  return isinstance(function, keras.losses.Loss) or bool(name) and any(
      getattr(kind, name, None) is function for kind in (keras.losses, keras.metrics))


def _find_metric(metric):
  """Returns the function of a metric of Keras; 'accuracy' is the one that fits the output."""
  metrics = load_keras().metrics
  if metric not in ('accuracy', 'acc'):
    return metrics.get(metric) if isinstance(metric, str) else metric

  def accuracy(labels, output):
    sizes, shape = output.shape.as_list(), labels.shape.as_list()
    kind = 'binary' if sizes[-1] == 1 else (
        'categorical' if len(shape) == len(sizes) and shape[-1] != 1 else 'sparse_categorical')
    return getattr(metrics, f'{kind}_accuracy')(labels, output)

  return accuracy


def _of_one(function, casts=False):
  """Returns a function of the labels of one output, `[n]` of an output `[n, 1]` in its shape.

  Where it `casts`, as Keras does for metrics, they are of the output's dtype.
  """
  @functools.wraps(function)
  def compute(labels, output):
    if _is_of_one_number(labels, output):
      labels = tf.expand_dims(labels, 1)
    return function(tf.cast(labels, output.dtype) if casts else labels, output)

  return compute


def _is_of_one_number(labels, output):
  return (tf.is_tensor(labels) and tf.is_tensor(output) and labels.shape.ndims == 1
          and output.shape.ndims == 2 and output.shape.as_list()[1] == 1)


def _without_pairs(function):
  """Returns a function of one's own that is refused where it takes labels `[n]` and outputs
  `[n, 1]` to be pairs of all: `fit` would give it labels `[n, 1]`."""
  @functools.wraps(function)
  def compute(labels, outputs):
    if not _is_of_one_number(labels, outputs):
      return function(labels, outputs)
    graph, shapes = tf.get_default_graph(), [labels.shape.as_list(), outputs.shape.as_list()]
    before = len(graph.get_operations())
    returned = function(labels, outputs)
    for op in graph.get_operations()[before:]:
      found = [value.shape.as_list() for value in op.inputs if value.shape.ndims is not None]
      if op.outputs and op.outputs[0].shape.ndims == 2 and found in (shapes, shapes[::-1]):
        raise UsageError(
            f'A function of KerasModel makes pairs of all labels, {labels.shape}, and all outputs, '
            f"{outputs.shape}, in {op.name}: take outputs[:, 0], or labels[:, None], as Keras's "
            'fit gives them.')
    return returned

  return compute


def _choose_output(name, metric, labels, outputs, names):
  """Returns the labels and the output that a metric of one output is of."""
  for output in names:
    if f'{name}_'.startswith(f'{output}_'):
      return [_by_name(kind, parts, names)[output]
              for kind, parts in (('labels', labels), ('outputs', outputs))]
  raise UsageError(
      f'The metric {name!r} of KerasModel, {metric.__name__}, is of one output, and the model has '
      f"{', '.join(names)}: begin its name with that of its output, as metrics={{"
      f"'{names[0]}_{name}': '{metric.__name__}'}}, or give a function of all labels and outputs.")


def _check_stateless(layers, inputs):
  """Refuses layers that keep a row of state for each example of a batch, where towers share it."""
  recurrent, num_towers = load_keras().layers.RNN, count_towers()
  kept = [layer.name for layer in (layers, *layers.submodules)
          if isinstance(layer, recurrent) and layer.stateful]
  if kept and num_towers > 1:
    share = tf.nest.flatten(inputs)[0].shape.as_list()[0] or 'some'
    raise UsageError(f'The layer {kept[0]} is stateful: it keeps a row for each example of the '
                     f'batch, of which each of {num_towers} towers has a share, the first {share} '
                     'rows: use num_towers=1, or make the layer with stateful=False.')


def _add_penalty(losses, penalty, outputs):
  """Returns losses with a mean over the batch, which is a loss by itself beside weighted ones."""
  if tf.is_tensor(losses):
    return losses + penalty
  first = tf.nest.flatten(outputs)[0]
  of_each = tf.fill([first.shape.as_list()[0] or tf.shape(first)[0]], penalty)
  if isinstance(losses, list):
    return [*losses, of_each]
  named = losses if isinstance(losses, dict) else {'data': losses}
  return {**named, 'penalty' if 'penalty' not in named else 'activity_penalty': of_each}


def _call(layers, inputs, is_training):
  """Returns the outputs; layers without `training` read the learning phase, which is replaced."""
  takes_training = 'training' in inspect.signature(layers.call).parameters
  outputs = layers(inputs, **(dict(training=is_training) if takes_training else {}))
  phase = load_keras().backend.learning_phase()
  if isinstance(phase, tf.Tensor) and phase.consumers():
    replace_tensor(phase, tf.convert_to_tensor(is_training))
  return outputs


def _collect(layers, inputs):
  """Adds the first tower's updates and penalties, which Keras keeps in layers, to collections."""
  updates = layers.get_updates_for(inputs) + layers.get_updates_for(None)
  if not updates and any('moving_' in variable.op.name for variable in layers.weights):
    # Averages that do not move are meant to stay: Keras forgets no update.
    updates = [tf.no_op('frozen')]
  for update in updates:
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
  for penalty in layers.get_losses_for(None):
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, penalty)
  # A layer that was frozen after it had been made has its variables among those that are trained.
  own = {id(variable) for variable in layers.weights}
  frozen = own - {id(variable) for variable in layers.trainable_weights}
  collection = tf.get_collection_ref(tf.GraphKeys.TRAINABLE_VARIABLES)
  collection[:] = [variable for variable in collection if id(variable) not in frozen]
