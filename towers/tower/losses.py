"""Losses: the sums of a model's loss and metrics over a tower's examples.

A sum over too few values is wrong and looks right: a loss of shape [1], such as some means over a
batch, counts as one example. So the number of values must equal the number of examples. Where
static shapes are known, that is checked while the graph is built, else in every run, before the
loss is computed and so before anything is updated.

Values with weights, as of tokens behind a mask, are summed as weight times value. The sums of
weights go along with them: only the sum over the global batch may divide.

Several losses are each a mean by weights of their own, and the step's loss is their sum. Each one's
share of it, examples over weights of the global batch, is known in the forward pass (see
`all_towers`), so that one backward pass serves all.
"""

from typing import Any, Dict, NamedTuple, Optional, Sequence

from towers.base.usage_error import UsageError, check_parameters
from towers.graph.ordered_sum import add_all
from towers.input.batch import Batch
from towers.tensorflow_v1 import Operation, Tensor, tf
from towers.tower.all_towers import all_sum
from towers.whole import Whole

_FIX_LOSS = 'return one value per example, [batch], or the mean over the batch, a scalar'
_FIX_METRIC = ('return one value per example, [batch]; they are averaged over all towers and '
               'steps, so no totals with updates, as those of tf.metrics; what is no mean, as a '
               'perplexity, is a towers.Whole')
_FIX_WEIGHTED = ('return a value and a weight for each example, [batch], or for each token, '
                 '[batch, time]')
_FIX_WHOLE = 'give towers.Whole tensors with a row for each example, [batch, ...]'


class ScalarLoss(UsageError):
  """A mean over a batch, of which rows that fill it up cannot be left out."""


# By results, histories and curves, for what is no metric.
_TAKEN = ('loss', 'step', 'examples', 'learning_rate', 'gradient_norm', 'examples_per_second',
          'input_wait')


class Weighted(NamedTuple):
  """A loss or metric whose values count by weights: sum(weights * values) / sum(weights).

  Both sums are over the global batch: all towers, micro-batches and workers, and in validation the
  whole split. No gradient goes through the weights. If all weights of a batch are 0, its loss and
  gradient are 0.

  Attributes:
    values: `[batch, ...]`, such as one per example or `[batch, time]`, one per token.
    weights: of the same shape, of any real dtype or bool; none below 0.
  """
  values: Any
  weights: Any

  def __add__(self, other):
    # A tuple would append the other's parts.
    raise UsageError('Losses with weights are divided by different sums, so they cannot be added '
                     'to others here: return a list, as [towers.Weighted(words, mask), pairs], '
                     'whose means towers adds up.')

  def __radd__(self, other):
    return self + other

  def __mul__(self, factor):
    # A tuple would repeat its parts.
    return self._replace(values=self.values * factor)

  def __rmul__(self, factor):
    return self * factor

  def __truediv__(self, divisor):
    return self._replace(values=self.values / divisor)


class _NoTensor(UsageError, TypeError):  # By a TypeError an operator of a tensor asks the other.
  pass


def _refuse_tensor(weighted: Weighted, *_: Any, **__: Any) -> None:
  """Refuses what TensorFlow would make of the two parts: a tensor with one more axis."""
  raise _NoTensor('The model computes with a towers.Weighted as if it was a tensor: return it as '
                  'it is, for its mean is over the weights of all towers; or compute with its '
                  'values before.')


tf.register_tensor_conversion_function(Weighted, _refuse_tensor, 0)
Weighted.__array_ufunc__ = None  # type: ignore[attr-defined] # So do numbers of NumPy.


def sum_returned(returned: Any, batch: Batch) -> 'Sums':
  """Returns the sums over a batch's examples of what a model has returned for it, see `Model`.

  Raises:
    UsageError: other shapes, or another structure. Where only a run knows the shapes, it raises
      InvalidArgumentError, and for weights below 0.
  """
  loss: Any = returned
  metrics: Dict[str, Any] = {}
  if has_metrics(returned):
    loss, metrics = returned
  elif isinstance(returned, tuple) and len(returned) == 2 and type(returned[1]) in (list, tuple):
    raise UsageError(f'The model returned its metrics as a {type(returned[1]).__name__} of '
                     f'{len(returned[1])}, and each needs a name: return a dict of them, as '
                     "losses, {'hits': hits}.")
  losses = _name_losses(loss)
  sums, are_several = Sums(batch), list(losses) != ['loss']
  for name in [*metrics, *(losses if are_several else ())]:
    if name in _TAKEN or name in metrics and name in losses:
      raise UsageError(f'A metric or one of several losses is called {name!r}, which is the name '
                       "of another, or of a run's own number: choose another name.")
  for name, value in losses.items():
    which = f'The loss {name!r}' if are_several else 'The loss'
    sums.add(name, f'{which} of the model', value, _FIX_LOSS, may_be_mean=True)
  if are_several:
    sums.losses = list(losses)
    sums.values = {'loss': sums.add_up(), **sums.values}
  for name, value in metrics.items():
    sums.add(name, f'The metric {name}', value, _FIX_METRIC)
  return sums


def has_metrics(returned: Any) -> bool:
  """Returns whether what a model has returned is its loss and a dict of metrics."""
  return isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)


def _name_losses(loss) -> Dict[str, Any]:
  """Returns a model's losses by name: one is called 'loss', those of a list 'loss_1' and so on."""
  losses = loss if isinstance(loss, dict) else {'loss': loss}
  if isinstance(loss, list):
    losses = {f'loss_{number}': value for number, value in enumerate(loss, 1)}
  if not losses or not all(isinstance(value, Weighted) or tf.is_tensor(value)
                           for value in losses.values()):
    what = f'a tuple of {len(loss)}' if isinstance(loss, tuple) else f'a {type(loss).__name__}'
    raise UsageError(f'The model returned {what} for its loss: return losses, of an EstimatorSpec '
                     'its .loss, or towers.Weighted(losses, weights), or a list or dict of these '
                     "for several losses, or any of them and metrics, as losses, {'hits': hits}.")
  return losses


class Sums:
  """What a tower's losses and metrics come to, without rows that only fill its batch up.

  Its attributes are those of `Tower`, whose `sums` are the `values` here.
  """

  def __init__(self, batch: Batch):
    self._batch = batch
    self._num_rows: Any = batch.num_rows
    self._is_real: Optional[Tensor] = None
    self.values: Dict[str, Tensor] = {}
    self.weights: Dict[str, Tensor] = {}
    self.losses: Sequence[str] = ()
    self.wholes: Dict[str, Whole] = {}

  def add(self, name: str, what: str, value: Any, fix: str, may_be_mean: bool = False) -> None:
    """Adds a value by name; `what` it is, and the `fix` for another shape, are for messages."""
    for part in filter(tf.is_tensor, tf.nest.flatten(value)):
      for sizes in part.op.inputs[2::3] if part.op.type == 'EditDistance' else ():
        if sizes.shape.is_fully_defined():  # TensorFlow knows this of constants alone.
          part.set_shape([None] * (sizes.shape.num_elements() - 1))
      if part.shape.ndims is None:
        raise UsageError(f'{what} has {part.name} of an unknown number of dimensions, as are '
                         'those of tf.py_func: write value.set_shape([None]) for one value per '
                         'example, or [None, None] for one per token.')
    if isinstance(value, Whole):
      if not callable(value.function) or not isinstance(value.rows, (list, tuple)):
        given = ', '.join(type(part).__name__ for part in value)
        raise UsageError(f'{what} is towers.Whole({given}): give it a function, and a list of its '
                         'tensors, as towers.Whole(roc_auc_score, [labels, scores]).')
      check_parameters(value.function, f'{what}: its function', *['array'] * len(value.rows),
                       fix='give it a parameter for each tensor')
      self.wholes[name] = Whole(value.function, [
          self._take_rows(what, tf.convert_to_tensor(row)) for row in value.rows])
    elif isinstance(value, Weighted):
      self._add_weighted(name, what, value)
    elif not tf.is_tensor(value):
      raise UsageError(f'{what} is a {type(value).__name__}: {fix}.')
    elif value.dtype == tf.string:
      raise UsageError(f'{what} has texts, which have no mean: {fix}.')
    elif may_be_mean and value.shape.ndims == 0:
      self.values[name] = self._spread(value)
    elif value.shape.ndims == 1:
      if may_be_mean and value.shape.as_list() == [1]:
        fix += ', as tf.reshape(loss, [])'
      self.values[name] = self._sum(what, value, fix)
    else:
      hint = ''
      if may_be_mean and value.shape.ndims and value.shape.as_list()[0] == 1:
        hint = (' Its first axis of 1 may come from a batch of one array, which is a tuple of one: '
                'unpack it, as in `images, = batch`.')
      elif value.shape.ndims == 2 and len(set(value.shape.as_list())) == 1:
        hint = (' Where [batch, 1] and [batch] have been broadcast to [batch, batch], take x[:, 0] '
                'of the former.')
      raise UsageError(f'{what} has the shape {value.shape}: {fix}. For more values, such as one '
                       f'per token, return towers.Weighted(values, weights).{hint}')

  def add_up(self) -> Tensor:
    """Returns the loss that several losses add up to.

    It is a sum over examples like any other: each mean is multiplied by the number of examples of
    the global batch, by which the loss is divided later.
    """
    weighted = list(self.weights)
    total = add_all([value for name, value in self.values.items() if name not in weighted] or
                    [tf.constant(0.0)])
    if weighted:
      # One sum over all towers: examples and weights.
      own = [tf.cast(self._batch.num_examples, tf.float32), *self.weights.values()]
      examples, *weights = tf.unstack(all_sum(tf.stop_gradient(tf.stack(own))))
      for name, weight in zip(weighted, weights):
        share = examples / tf.where(weight > 0, weight, tf.ones_like(weight))
        total += share * self.values[name]
    return total

  def _spread(self, mean):
    """Returns the sum of a loss that is the mean over the batch."""
    if self._batch.is_padded or self._batch.pads_validation:
      which = ('pad fills batches' if self._batch.is_padded else
               'pad and carry fill those of validation')
      raise ScalarLoss(
          f'The model\'s loss is a scalar, the mean over a batch, and last_batch={which} up with '
          'rows that must not count: return one loss per example, [batch], or use last_batch=keep '
          'or drop.')
    mean = tf.cast(mean, tf.float32)
    return self._batch.zero_if_empty([mean * tf.cast(self._batch.num_examples, mean.dtype)])[0]

  def _add_weighted(self, name, what, weighted):
    with tf.name_scope('weigh'):
      values, weights = [tf.cast(tf.convert_to_tensor(part), tf.float32) for part in weighted]
      weights = tf.stop_gradient(weights)
      _check_weights(what, values, weights)
      if None in values.shape.as_list()[1:] + weights.shape.as_list()[1:]:
        # Weights would be broadcast to the values, or the reverse.
        shapes = tf.shape(values), tf.shape(weights)
        with tf.control_dependencies([tf.raw_ops.Assert(
            condition=tf.reduce_all(tf.equal(*shapes)), data=[
                f'{what} does not have one weight for each value. The two shapes:', *shapes])]):
          weights = tf.identity(weights)
      self.weights[name] = self._sum(what, weights, _FIX_WEIGHTED)
      self.values[name] = self._sum(what, weights * values, _FIX_WEIGHTED)
      smallest = tf.reduce_min(weights)
      # NaN is left to the guard.
      sign = tf.raw_ops.Assert(condition=tf.logical_not(smallest < 0), data=[
          f'{what} has a weight below 0: weights count values, so leave them at 0 or above. The '
          'smallest:', smallest])
      for total in (self.values[name], self.weights[name]):
        total.op._add_control_input(sign)

  def _take_rows(self, what, values):
    if not values.shape.ndims:
      raise UsageError(f'{what} has the shape {values.shape}: {_FIX_WHOLE}.')
    check = self._check_size(what, values, _FIX_WHOLE)
    with tf.control_dependencies([check] if check else []):
      if not self._batch.has_filler:
        return tf.identity(values)
      with tf.xla.experimental.jit_scope(compile_ops=False):
        return values[:self._batch.num_examples]

  def _sum(self, what, values, fix):
    """Returns the float32 sum of the values of the examples, `[batch, ...]`."""
    numbers, check = tf.cast(values, tf.float32), self._check_size(what, values, fix)
    if self._batch.has_filler:
      if self._is_real is None:
        # Not a slice: its size would be part of what XLA compiles. Integers stay on the host.
        self._is_real = tf.range(self._find_num_rows()) < self._batch.num_examples
      numbers = tf.where(self._is_real, numbers, tf.zeros_like(numbers))
      if check is not None:
        numbers.op._add_control_input(check)  # It says what is wrong with another number of rows.
    total = tf.reduce_sum(numbers)
    if check is not None:
      # An update waits for the loss, and so for this check.
      total.op._add_control_input(check)
    return total

  def _check_size(self, what, values, fix) -> Optional[Operation]:
    """Refuses another number of values than of rows; returns the op that does if a run knows."""
    batch, size = self._batch, values.shape.as_list()[0]
    if size is not None:
      if size == batch.num_rows:
        return None
      of_batch = (f'a batch of {batch.num_rows} examples' if batch.num_rows is not None else
                  'every batch, but only a run knows how many examples a batch has')
      raise UsageError(f'{what} has {size} values for {of_batch}: {fix}.')
    size = tf.size(values) if values.shape.ndims == 1 else tf.shape(values)[0]
    num_rows = self._find_num_rows()
    return tf.raw_ops.Assert(condition=tf.equal(size, num_rows), data=[
        f'{what} does not have one value for each example of its batch: {fix}. The two numbers:',
        size, num_rows])

  def _find_num_rows(self):
    """Returns the number of rows, an int or a scalar int32 tensor."""
    if self._num_rows is None:
      self._num_rows = (tf.shape(tf.nest.flatten(self._batch.tensors)[0])[0]
                        if self._batch.has_filler else self._batch.num_examples)
    return self._num_rows


def _check_weights(what, values, weights):
  """Refuses static shapes that are not those of one weight for each value."""
  if values.shape.ndims == 0:
    raise UsageError(f'{what} has weights, which need one value per example, and it is a scalar: '
                     'return one value and one weight per example or token.')
  if not values.shape.is_compatible_with(weights.shape):
    raise UsageError(f'{what} has weights of the shape {weights.shape} for values of the shape '
                     f'{values.shape}: return one weight for each value; tf.broadcast_to repeats '
                     'weights. A constant weight cancels: to scale a loss, multiply its values.')
