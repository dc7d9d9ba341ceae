"""Joined norms: layers of others whose moments, with batch_norm=sync, are the global batch's.

While the model is called, what batch normalisation ends in is made of sums over all towers (see
`all_towers`), whichever layer asks for it:

  x ──► sum, count ──► all_sum ──► mean ──► squared differences ──► all_sum ──► variance

These are two sums, one after the other, as no moving average is at hand that a single one could
begin from. Where the layer asks within a branch of `tf.cond`, since `is_training` is a tensor, they
stand outside of it, behind its switch: dead, on all towers alike, where the branch is not taken.

Moments of what is no example, such as weights, and those that leave axis 0 out, stay TensorFlow's.
"""

import contextlib
from typing import Any, Iterator, List, Optional, Set, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.graph.source_lines import format_op
from towers.graph.walk import find_needed, list_branches
from towers.graph.writes import brings_values, find_step_writes
from towers.tensorflow_v1 import Operation, Tensor, other_norms, tf
from towers.tower.all_towers import all_sum, is_own, joins_norms
from towers.tower.batch_norm.moving_averages import is_moving_average
from towers.tower.tower import Tower

# What chooses the branches in which layers are.
_CHOICES = 'towers/choices_of_norms'
_FIX = ('use batch_norm=first, with which each tower takes its own, or '
        'towers.tower.batch_norm.layer.batch_norm.')


@contextlib.contextmanager
def joining_norms(tensors: Any, *, scope: str) -> Iterator[None]:
  """Opens a context for a call of the model on a tower's tensors, in its name scope.

  Raises:
    UsageError: moments over the batch that cannot be those of all towers.
  """
  if not joins_norms():
    yield
    return
  norms = _Norms(tensors, scope)
  with other_norms(norms.normalize, norms.average):
    yield
  # Not before, since AutoGraph, within layers, makes another error of it.
  if norms.refused:
    raise UsageError(norms.refused[0])


def check_joined(tower: Tower) -> None:
  """Refuses moving averages that a tower moves by moments of its own examples, and layers in a
  branch that it may take where another does not."""
  for choice in tf.get_collection(_CHOICES):
    if is_own(choice.op, tower.batch.tensors):
      raise UsageError(
          f'batch_norm=sync: batch normalisation is in a branch of tf.cond that '
          f'{format_op(choice.op)}, chooses by the examples of a tower, so that another tower may '
          f'not take it: choose by is_training alone, or {_FIX}')
  for write in find_step_writes([tower.loss], tower.update_ops).late:
    for variable in filter(is_moving_average, write.variables):
      if is_own(write.op, tower.batch.tensors):
        raise UsageError(
            f'batch_norm=sync: {variable.name} is moved by moments of each tower\'s own examples '
            f'({format_op(write.op)}), which are not those of tf.nn.moments or a fused kernel over '
            f'the batch: take them by tf.nn.moments, {_FIX}')


class _Norms:
  """Stands in for kernels and means while a tower's model is called."""

  def __init__(self, tensors, scope):
    flat = tf.nest.flatten(tensors)
    # Ops that are known to depend on the tower's examples, where a walk back ends.
    self._of_examples: Set[Operation] = {tensor.op for tensor in flat}
    self._num_rows: Optional[int] = flat[0].shape.as_list()[0] if flat[0].shape.ndims else None
    self._scope = scope
    self.refused: List[str] = []

  def normalize(self, kernel, x, scale, offset, mean, variance, *, epsilon, data_format='NHWC',
                is_training=True, exponential_avg_factor=None, name=None):
    """Stands in for a fused kernel; what it reserves for its gradient is None."""
    share = 1.0 if exponential_avg_factor is None else exponential_avg_factor
    is_first, rank = data_format.startswith('NC'), x.shape.ndims
    channel = 1 if is_first else rank - 1
    axes = [axis for axis in range(rank) if axis != channel]
    if not is_training or not self._joins(x, axes):
      others = {} if share == 1.0 else dict(exponential_avg_factor=share)
      y, *rest = kernel(x, scale, offset, mean, variance, epsilon=epsilon, is_training=is_training,
                        data_format=data_format, name=name, **others)
      # Averages that it has got it returns, but in a graph as if they came from x.
      return [y, *(rest if is_training else [mean, variance, *rest[2:]])]

    def per_channel(vector):
      return tf.reshape(vector, [-1] + [1] * (rank - 2)) if is_first else vector

    with tf.name_scope(name, 'FusedBatchNorm'):
      values = tf.cast(x, tf.float32)
      center, count = self._average(values, axes)
      spread, _ = self._average(tf.squared_difference(values, center), axes)
      y = tf.cast(tf.nn.batch_normalization(
          values, center, spread, per_channel(offset), per_channel(scale), epsilon), x.dtype)
      moments = [tf.reshape(moment, [-1]) for moment in (
          center, spread * (count / tf.maximum(count - 1, 1)))]
      if share != 1.0:
        moments = [old + share * (new - old) for old, new in zip((mean, variance), moments)]
    return [y, *moments, *[None] * (3 if kernel.__name__.endswith('_v3') else 2)]

  def average(self, reduce_mean, x, axis=None, keepdims=None, name=None):
    """Stands in for a mean of `tf.nn.moments`."""
    axes = _list_axes(x, axis)
    if not self._joins(x, axes):
      return reduce_mean(x, axis, keepdims=keepdims, name=name)
    with tf.name_scope(name, 'mean'):
      values = tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x
      return tf.cast(self._average(values, axes)[0], x.dtype)

  def _joins(self, x, axes):
    """Returns whether moments are of examples; notes why they cannot be those of all towers."""
    if axes is not None and 0 not in axes or not self._is_of_examples(x):
      return False
    shape, context = x.shape.as_list() if x.shape.ndims else [], x.graph._get_control_flow_context()
    kept = [size for axis, size in enumerate(shape) if axis not in (axes or [])]
    reason = ''
    if context is not None and context.GetWhileContext() is not None:
      reason = 'they are in a loop, whose turns another tower may not take'
    elif axes is None:
      reason = 'only a run knows the axes'
    elif None in kept:
      reason = 'they keep an axis of which only a run knows the size'
    elif shape[0] is not None and (self._num_rows is None or shape[0] % self._num_rows):
      reason = (f'axis 0 has {shape[0]} entries, and a tower '
                f'{self._num_rows or "any number of"} examples')
    elif self._num_rows and any(size == 1 or size % self._num_rows == 0 for size in kept[:-1]):
      reason = (f'they keep an axis of {kept[:-1]}, which may be that of the {self._num_rows} '
                'examples of a tower, or of groups of them')
    if reason:
      self.refused.append(
          f'batch_norm=sync: the moments of {format_op(x.op)}, of the shape {x.shape}, over the '
          f'axes {axes} cannot be those of all towers, since {reason}: take them over the whole '
          f'batch, which is axis 0, {_FIX}')
    return not reason

  def _is_of_examples(self, x):
    """Returns whether a tensor depends on anything but variables and constants."""
    known = self._of_examples
    if any(brings_values(op) or any(tensor.op in known for tensor in op.inputs)
           for op in find_needed([x.op], by_control=False, without=known)):
      known.add(x.op)
    return x.op in known

  def _average(self, x, axes) -> Tuple[Tensor, Tensor]:
    """Returns the mean over the axes, which are kept, of all towers, and how many values it has."""
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape.as_list())]
    num_kept = tf.TensorShape(kept).num_elements()
    # A layer that is kept from call to call names its ops after the tower of the first.
    with _outside_of_branches(x) as x, tf.name_scope(self._scope), tf.name_scope('joined_mean'):
      # Its gradient is for one axis that is kept.
      override = {'Sum': 'BatchNormSum'} if len(axes) == len(kept) - 1 else {}
      with x.graph.gradient_override_map(override):
        total = tf.reduce_sum(x, axes)
      count = tf.cast(tf.size(x) // num_kept, x.dtype)
      sums = all_sum(tf.concat([tf.reshape(total, [-1]), [count]], 0), name='sums')
      count = sums[num_kept]
      mean = tf.reshape(sums[:num_kept] / count, kept)
    self._of_examples.add(mean.op)
    return mean, count


@contextlib.contextmanager
def _outside_of_branches(x: Tensor) -> Iterator[Tensor]:
  """Builds outside of branches of `tf.cond`; yields the tensor as it is within."""
  context = x.graph._get_control_flow_context()
  if context is None:
    yield x
    return
  x = context.AddValue(x)
  for branch in list_branches(context):
    tf.add_to_collection(_CHOICES, branch.pred)
  with tf.control_dependencies(None):
    yield x


def _list_axes(x, axis) -> Optional[List[int]]:
  """Returns the axes as numbers from 0 in order; None where only a run knows them."""
  axis = tf.get_static_value(axis) if tf.is_tensor(axis) else axis
  if axis is None or x.shape.ndims is None:
    return None
  return sorted(int(each) % x.shape.ndims for each in np.ravel(axis))
