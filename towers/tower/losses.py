"""Losses: the sums of a model's loss and metrics over a tower's examples.

A sum over too few values is wrong and looks right: a loss of shape [1], such as some means over a
batch, counts as one example. So the number of values must equal the number of examples. Where
static shapes are known, that is checked while the graph is built, else in every run, before the
loss is computed and so before anything is updated.
"""

import functools
from typing import Callable, Dict, Union

from tensorflow_v1 import Tensor, tf
from towers.base.usage_error import UsageError
from towers.input.batch import Batch


def sum_values(loss: Tensor, metrics: Dict[str, Tensor], batch: Batch) -> Dict[str, Tensor]:
  """Returns the sums over a batch's examples, float32 scalars: 'loss' and every metric.

  Args:
    loss: `[batch]`, one value per example, or their mean, a scalar.
    metrics: by name, each `[batch]`.
    batch: that the model computed them from.

  Raises:
    UsageError: other shapes. Where only a run knows them, it raises InvalidArgumentError.
  """
  @functools.lru_cache(maxsize=None)
  def count_rows():
    return tf.shape(tf.nest.flatten(batch.tensors)[0])[0]

  sums = {'loss': _sum_loss(loss, batch, count_rows)}
  for name, values in metrics.items():
    sums[name] = _sum_metric(name, values, batch, count_rows)
  return sums


def get_divisor(num_examples: Union[int, Tensor]) -> Union[float, Tensor]:
  """Returns the float32 divisor of a batch's sum; never 0, though all its examples may be damaged.
  """
  if isinstance(num_examples, int):
    return float(num_examples)
  return tf.cast(tf.maximum(num_examples, 1), tf.float32)


def _sum_loss(loss, batch, count_rows):
  if loss.shape.ndims == 1:
    fix = 'return one value per example, [batch], or the mean over the batch, a scalar'
    if loss.shape.as_list() == [1]:
      fix += ', as tf.reshape(loss, [])'
    return _sum_examples('The loss of the model', loss, batch, count_rows, fix)
  if loss.shape.ndims == 0:
    loss = tf.cast(loss, tf.float32)
    return batch.zero_if_empty(loss * tf.cast(batch.num_examples, loss.dtype))
  raise UsageError(f'The model\'s loss has the shape {loss.shape}: return one loss per example, '
                   '[batch], or the scalar mean over the batch.')


def _sum_metric(name, values, batch, count_rows):
  if name == 'loss':
    raise UsageError('A metric is called "loss", which is the name of the model\'s loss: choose '
                     'another name.')
  fix = 'return one value per example, [batch]; they are averaged over all towers and steps'
  if values.shape.ndims != 1:
    raise UsageError(f'The metric {name!r} has the shape {values.shape}: {fix}.')
  return _sum_examples(f'The metric {name}', values, batch, count_rows, fix)


def _sum_examples(what: str, values: Tensor, batch: Batch, count_rows: Callable[[], Tensor],
                  fix: str) -> Tensor:
  """Returns the float32 sum of one value per example, without the row that fills an empty batch."""
  [size] = values.shape.as_list()
  rows = batch.num_rows
  if size is not None and rows is None:
    raise UsageError(f'{what} has {size} values for every batch, but only a run knows how many '
                     f'examples a batch has: {fix}.')
  if size is not None and size != rows:
    raise UsageError(f'{what} has {size} values for a batch of {rows} examples: {fix}.')
  numbers = tf.cast(values, tf.float32)
  total = tf.reduce_sum(numbers if batch.is_static else numbers[:batch.num_examples])
  if size is None:
    # An update waits for the loss, and so for this check.
    rows = count_rows() if rows is None else rows
    total.op._add_control_input(_build_check(what, values, rows, fix))
  return total


def _build_check(what, values, rows, fix):
  """Returns the op that fails where there are more or fewer values than rows."""
  size = tf.size(values)
  return tf.raw_ops.Assert(condition=tf.equal(size, rows), data=[
      f'{what} does not have one value for each example of its batch: {fix}. The two numbers:',
      size, rows])
