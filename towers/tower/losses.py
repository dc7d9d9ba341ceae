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

import functools
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from tensorflow_v1 import Operation, Tensor, tf
from towers.base.usage_error import UsageError
from towers.graph.ordered_sum import add_all
from towers.input.batch import Batch
from towers.tower.all_towers import all_sum
from towers.whole import Whole


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


class Sums(NamedTuple):
  """The sums over a tower's examples, float32 scalars by name: 'loss' and every metric.

  Attributes:
    values: of the values, each times its weight if it has one.
    weights: of the weights, where there are any; the others divide by the number of examples.
    losses: the names of several losses, whose means add up to that of 'loss'; empty for one loss.
    wholes: metrics that are no sums, by name, with their rows of the tower's examples.
  """
  values: Dict[str, Tensor]
  weights: Dict[str, Tensor]
  losses: Sequence[str] = ()
  wholes: Mapping[str, Whole] = {}


def sum_returned(returned: Any, batch: Batch) -> Sums:
  """Returns the sums over a batch's examples.

  Args:
    returned: by a model: the loss, or the loss and a dict of metrics, see `Model`.
    batch: that the model computed them from.

  Raises:
    UsageError: other shapes, or another structure. Where only a run knows the shapes, it raises
      InvalidArgumentError, and for weights below 0.
  """
  @functools.lru_cache(maxsize=None)
  def count_rows():
    return (tf.shape(tf.nest.flatten(batch.tensors)[0])[0] if batch.has_filler else
            batch.num_examples)

  loss, metrics = split_returned(returned)
  sums = Sums({}, {})
  wholes = {}
  if isinstance(loss, dict):
    sums = _sum_losses(loss, batch, count_rows)
  elif isinstance(loss, Weighted):
    _add_weighted(sums, 'loss', 'The loss of the model', loss, batch, count_rows)
  else:
    sums.values['loss'] = _sum_loss(loss, batch, count_rows)
  for name, values in metrics.items():
    if name in sums.losses:
      raise UsageError(f'A metric is called {name!r}, which is the name of a loss, and each of '
                       'several losses is a metric already: choose another name.')
    if name == 'loss':
      raise UsageError('A metric is called "loss", which is the name of the model\'s loss: choose '
                       'another name.')
    if isinstance(values, Whole):
      wholes[name] = _take_rows(f'The metric {name}', values, batch, count_rows)
    elif isinstance(values, Weighted):
      _add_weighted(sums, name, f'The metric {name}', values, batch, count_rows)
    else:
      sums.values[name] = _sum_metric(name, values, batch, count_rows)
  return sums._replace(wholes=wholes)


def split_returned(returned) -> Tuple[Any, Dict[str, Any]]:
  """Returns the loss and the metrics; a pair of tensors is a loss with weights.

  Several losses are a dict by name; of a list 'loss_1' and so on.
  """
  loss: Any = returned
  metrics: Dict[str, Any] = {}
  if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
    loss, metrics = returned
  if isinstance(loss, tuple) and len(loss) == 2 and all(map(tf.is_tensor, loss)):
    loss = Weighted(*loss)
  losses = loss
  if isinstance(loss, list):
    losses = {f'loss_{number}': value for number, value in enumerate(loss, 1)}
  if isinstance(losses, dict) and losses and all(
      isinstance(value, Weighted) or tf.is_tensor(value) for value in losses.values()):
    return losses, metrics
  if not isinstance(loss, Weighted) and not tf.is_tensor(loss):
    what = f'a tuple of {len(loss)}' if isinstance(loss, tuple) else f'a {type(loss).__name__}'
    raise UsageError(f'The model returned {what} for its loss: return losses, or '
                     'towers.Weighted(losses, weights), or a list or dict of these for several '
                     'losses, or any of them and a dict of metrics.')
  return loss, metrics


def _sum_losses(losses, batch, count_rows):
  """Returns the sums of several losses, and of the loss that they add up to.

  The loss is a sum over examples like any other: each mean is multiplied by the number of examples
  of the global batch, by which the loss is divided later.
  """
  sums = Sums({}, {}, list(losses))
  for name, values in losses.items():
    what = f'The loss {name!r} of the model'
    if isinstance(values, Weighted):
      _add_weighted(sums, name, what, values, batch, count_rows)
    elif values.shape.ndims == 1:
      fix = 'return one value per example, [batch], or towers.Weighted(values, weights)'
      sums.values[name] = _sum_examples(what, values, batch, count_rows, fix)
    else:
      raise UsageError(f'{what} has the shape {values.shape}: of several losses, each is one value '
                       'per example, [batch], or towers.Weighted(values, weights).')
  weighted = list(sums.weights)
  total = add_all([value for name, value in sums.values.items() if name not in weighted] or
                  [tf.constant(0.0)])
  if weighted:
    # One sum over all towers: examples and weights.
    own = [tf.cast(batch.num_examples, tf.float32), *(sums.weights[name] for name in weighted)]
    examples, *weights = tf.unstack(all_sum(tf.stop_gradient(tf.stack(own))))
    for name, weight in zip(weighted, weights):
      share = examples / tf.where(weight > 0, weight, tf.ones_like(weight))
      total += share * sums.values[name]
  return sums._replace(values={'loss': total, **sums.values})


def _sum_loss(loss, batch, count_rows):
  if loss.shape.ndims == 1:
    fix = 'return one value per example, [batch], or the mean over the batch, a scalar'
    if loss.shape.as_list() == [1]:
      fix += ', as tf.reshape(loss, [])'
    return _sum_examples('The loss of the model', loss, batch, count_rows, fix)
  if loss.shape.ndims == 0:
    if batch.is_padded:
      raise UsageError('The model\'s loss is a scalar, the mean over a batch, and last_batch=pad '
                       'fills batches up with rows that must not count: return one loss per '
                       'example, [batch], or use last_batch=keep or drop.')
    loss = tf.cast(loss, tf.float32)
    return batch.zero_if_empty([loss * tf.cast(batch.num_examples, loss.dtype)])[0]
  hint = ''
  if loss.shape.ndims and loss.shape.as_list()[0] == 1:
    hint = (' Its first axis of 1 may come from a batch of one array, which is a tuple of one: '
            'unpack it, as in `images, = batch`.')
  raise UsageError(f'The model\'s loss has the shape {loss.shape}: return one loss per example, '
                   '[batch], or the scalar mean over the batch; or towers.Weighted(losses, '
                   f'weights) for more values, such as one per token.{hint}')


def _take_rows(what, whole, batch, count_rows):
  """Returns `whole` with the rows of the examples, without those that fill a batch up."""
  fix = 'give towers.Whole tensors with a row for each example, [batch, ...]'
  rows: List[Tensor] = []
  for values in map(tf.convert_to_tensor, whole.rows):
    if not values.shape.ndims:
      raise UsageError(f'{what} has the shape {values.shape}: {fix}.')
    check = _check_size(what, values, batch, count_rows, fix)
    with tf.control_dependencies([check] if check else []):
      rows.append(values[:batch.num_examples] if batch.has_filler else tf.identity(values))
  return Whole(whole.function, rows)


def _sum_metric(name, values, batch, count_rows):
  fix = 'return one value per example, [batch]; they are averaged over all towers and steps'
  if values.shape.ndims != 1:
    raise UsageError(f'The metric {name!r} has the shape {values.shape}: {fix}. For more values, '
                     'such as one per token, return towers.Weighted(values, weights).')
  return _sum_examples(f'The metric {name}', values, batch, count_rows, fix)


def _add_weighted(sums: Sums, name: str, what: str, weighted: Weighted, batch: Batch,
                  count_rows: Callable[[], Tensor]) -> None:
  """Adds the sum of weights times values, and that of the weights, to `sums`."""
  with tf.name_scope('weigh'):
    values, weights = [tf.cast(tf.convert_to_tensor(part), tf.float32) for part in weighted]
    weights = tf.stop_gradient(weights)
    _check_weights(what, values, weights)
    if None in values.shape.as_list()[1:] + weights.shape.as_list()[1:]:
      with tf.control_dependencies([_build_shape_check(what, values, weights)]):
        weights = tf.identity(weights)
    fix = 'return a value and a weight for each example, [batch], or for each token, [batch, time]'
    sums.weights[name] = _sum_examples(what, weights, batch, count_rows, fix)
    sums.values[name] = _sum_examples(what, weights * values, batch, count_rows, fix)
    sign = _build_sign_check(what, weights)
    for total in (sums.values[name], sums.weights[name]):
      total.op._add_control_input(sign)


def _check_weights(what, values, weights):
  """Refuses static shapes that are not those of one weight for each value."""
  if values.shape.ndims == 0:
    raise UsageError(f'{what} has weights, which need one value per example, and it is a scalar: '
                     'return one value and one weight per example or token.')
  if values.shape.ndims is None or weights.shape.ndims is None:
    raise UsageError(f'{what} has weights, and the number of dimensions of the shapes '
                     f'{values.shape} and {weights.shape} is unknown: set_shape helps.')
  if not values.shape.is_compatible_with(weights.shape):
    raise UsageError(f'{what} has weights of the shape {weights.shape} for values of the shape '
                     f'{values.shape}: return one weight for each value; tf.broadcast_to repeats '
                     'weights. A constant weight cancels: to scale a loss, multiply its values.')


def _build_sign_check(what, weights):
  """Returns the op that fails for a weight below 0; NaN is left to the guard."""
  smallest = tf.reduce_min(weights)
  return tf.raw_ops.Assert(condition=tf.logical_not(smallest < 0), data=[
      f'{what} has a weight below 0: weights count values, so leave them at 0 or above. The '
      'smallest:', smallest])


def _build_shape_check(what, values, weights):
  """Returns the op that fails where weights would be broadcast to the values, or the reverse."""
  shapes = tf.shape(values), tf.shape(weights)
  return tf.raw_ops.Assert(condition=tf.reduce_all(tf.equal(*shapes)), data=[
      f'{what} does not have one weight for each value. The two shapes:', *shapes])


def _sum_examples(what: str, values: Tensor, batch: Batch, count_rows: Callable[[], Tensor],
                  fix: str) -> Tensor:
  """Returns the float32 sum of the values of the examples, `[batch, ...]`.

  Rows that fill a batch up are left out.
  """
  numbers = tf.cast(values, tf.float32)
  total = tf.reduce_sum(numbers[:batch.num_examples] if batch.has_filler else numbers)
  check = _check_size(what, values, batch, count_rows, fix)
  if check is not None:
    # An update waits for the loss, and so for this check.
    total.op._add_control_input(check)
  return total


def _check_size(what, values, batch, count_rows, fix) -> Optional[Operation]:
  """Refuses another number of values than of examples; returns the op that does if a run knows."""
  size = values.shape.as_list()[0]
  rows = batch.num_rows
  if size is not None and rows is None:
    raise UsageError(f'{what} has {size} values for every batch, but only a run knows how many '
                     f'examples a batch has: {fix}.')
  if size is not None and size != rows:
    raise UsageError(f'{what} has {size} values for a batch of {rows} examples: {fix}.')
  if size is not None:
    return None
  return _build_check(what, values, count_rows() if rows is None else rows, fix)


def _build_check(what, values, rows, fix):
  """Returns the op that fails where there are more or fewer values than rows."""
  size = tf.size(values) if values.shape.ndims == 1 else tf.shape(values)[0]
  return tf.raw_ops.Assert(condition=tf.equal(size, rows), data=[
      f'{what} does not have one value for each example of its batch: {fix}. The two numbers:',
      size, rows])
