"""Rows: the sparse gradients of several workers, side by side in a tensor that an all-reduce sums.

                    slots of worker 0   slots of worker 1
  worker 0 sends    7  3  ·             ·  ·  ·
  worker 1 sends    ·  ·  ·             3  9  4
  all receive       7  3  ·             3  9  4       rows 7, 3 + 3, 9 and 4

A slot holds a row of the gradient and its index, and is 0 in all workers but one, since the
CollectiveGather of TensorFlow 1.14 fails. Where there would be as many slots as the variable has
rows, each row is a slot of its own: less is sent.

All workers have slots for the most rows that any of them touches. If that number follows from the
shapes of a batch, the slots are fused with other gradients. Otherwise each step first shares the
workers' numbers of rows, rounded up to one of a few sizes; then the hosts sum the slots.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

from towers.placement.collectives import sum_one_of_workers
from towers.placement.host import HOST
from towers.placement.workers import Workers, sum_over_workers
from towers.tensorflow_v1 import Gradient, Tensor, Variable, tf

# An index takes two columns, so that float32 holds it exactly up to 2 ** 36.
_LOW = 4096
_INDEX_COLUMNS = 2
_MERGED = 'towers/merged_rows'  # Collects the indices that `merge_rows` has made.


class RowSlots(NamedTuple):
  """The slots in which workers send the rows of the sparse gradient of a variable.

  `most` is the most rows that a worker touches in a step: an int, or an int32 scalar on the host
  that is found in the step, and `size_index` its index in `list_sizes`.
  """
  variable: Variable
  most: Union[int, Tensor]
  workers: Workers
  size_index: Optional[Tensor] = None

  @property
  def is_known(self) -> bool:
    """Whether `most` follows from shapes, so that slots are fused with other gradients."""
    return isinstance(self.most, int)

  @property
  def num_slots(self) -> Union[int, Tensor]:
    """The number of slots that a worker sends, its own and those of all others."""
    num_rows, num_slots = self.variable.shape.as_list()[0], self.most * self.workers.num_workers
    if self.is_known:
      return max(1, min(num_rows, num_slots))
    return tf.minimum(num_rows, num_slots)

  @property
  def is_whole(self) -> Union[bool, Tensor]:
    """Whether the slots are the rows of the variable."""
    return self.most * self.workers.num_workers >= self.variable.shape.as_list()[0]

  @property
  def row_bytes(self) -> int:
    """The size of a slot."""
    return self._num_columns() * self.variable.dtype.size

  def write(self, slices: tf.IndexedSlices) -> Tensor:
    """Returns what this worker sends, `[num_slots, columns]`: its rows, and 0 in all other slots.

    Where `most` follows from shapes, rows with the same index are sent apart: `read` adds them up.
    """
    if not self.is_known:
      slices = merge_rows(slices)
    dtype = slices.values.dtype
    indices = tf.cast(slices.indices, tf.int64)
    # The lower part is never 0 in a slot with a row, neither if several workers add theirs.
    parts = [tf.cast(part, dtype) for part in (indices // _LOW, indices % _LOW + 1)]
    width = self._num_columns() - _INDEX_COLUMNS
    columns = tf.concat([tf.reshape(slices.values, [-1, width]), tf.stack(parts, 1)], 1)
    first = tf.cast(self.workers.rank * self.most, tf.int64)
    own = first + tf.range(tf.size(indices, out_type=tf.int64))
    sent = tf.unsorted_segment_sum(columns, tf.where(self.is_whole, indices, own), self.num_slots)
    sent.set_shape([self.num_slots if self.is_known else None, self._num_columns()])
    return sent

  def part(self, sent: Tensor) -> Tuple[Tensor, Tensor]:
    """Returns the columns of what a worker sends: the values, and the indices, which stay exact."""
    return tf.split(sent, [self._num_columns() - _INDEX_COLUMNS, _INDEX_COLUMNS], 1)

  def sum(self, slices: tf.IndexedSlices) -> Tensor:
    """Returns the sum of what all workers send, where `most` is found in the step."""
    sizes = list_sizes(self.variable, self.workers)
    with tf.device(HOST):
      return sum_one_of_workers(self.write(slices), num_workers=self.workers.num_workers,
                                shape_index=self.size_index, num_shapes=len(sizes))

  def read(self, total: Tensor, like: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the rows that any worker touched, each once.

    Rows of one index are added up in the order of the workers. On GPUs the order would change, so
    that workers would differ: the host adds them. The gradient of this worker is `like` it.
    """
    with tf.device(total.device):
      slots = tf.reshape(tf.where(total[:, -1] > 0), [-1])
      found = tf.gather(total, slots)
    with tf.device(HOST):
      high, low = tf.unstack(tf.cast(found[:, -_INDEX_COLUMNS:], tf.int64), axis=1)
      indices = tf.where(self.is_whole, slots, high * _LOW + low - 1)
      values = tf.reshape(found[:, :-_INDEX_COLUMNS], [-1] + self.variable.shape.as_list()[1:])
      return merge_rows(tf.IndexedSlices(values, tf.cast(indices, like.indices.dtype),
                                         like.dense_shape))

  def _num_columns(self):
    return self.variable.shape[1:].num_elements() + _INDEX_COLUMNS


def plan_slots(gradients: Sequence[Tuple[Gradient, Variable]],
               workers: Workers) -> List[Optional[RowSlots]]:
  """Returns the slots of each sparse gradient of this worker, and None for each dense one.

  All workers have as many, of the same static shapes.
  """
  sizes = [gradient.indices.shape.num_elements() if isinstance(gradient, tf.IndexedSlices) else 0
           for gradient, _ in gradients]
  found = iter(_find_most([pair for pair, size in zip(gradients, sizes) if size is None], workers))
  return [None if isinstance(gradient, tf.Tensor) else
          next(found) if size is None else RowSlots(variable, size, workers)
          for (gradient, variable), size in zip(gradients, sizes)]


def _find_most(gradients, workers):
  """Returns the slots of sparse gradients whose numbers of rows differ from step to step."""
  if not gradients:
    return []
  with tf.device(HOST), tf.name_scope('numbers_of_rows'):
    own = tf.stack([tf.size(tf.unique(gradient.indices)[0]) for gradient, _ in gradients])
    # Each worker writes its numbers into a row of its own.
    ranks = tf.one_hot(workers.rank, workers.num_workers, dtype=tf.float64)
    numbers = sum_over_workers(ranks[:, None] * tf.cast(own, tf.float64), workers)
    numbers = tf.unstack(tf.cast(tf.reduce_max(numbers, 0), tf.int32), len(gradients))
    slots = []
    for (_, variable), number in zip(gradients, numbers):
      sizes = tf.constant(list_sizes(variable, workers))
      index = tf.reduce_sum(tf.cast(number > sizes[:-1], tf.int32))
      slots.append(RowSlots(variable, tf.gather(sizes, index), workers, index))
    return slots


def list_sizes(variable: Variable, workers: Workers) -> List[int]:
  """Returns the numbers of slots of a worker that a step may choose: each at most an eighth more.

  They end with the first that is enough for the whole variable.
  """
  end, sizes, size = -(-variable.shape.as_list()[0] // workers.num_workers), [], 1
  while size < end:
    sizes.append(size)
    size += max(1, size // 8)
  return sizes + [end]


def has_each_once(indices: Tensor) -> bool:
  """Whether indices are known to differ from each other, since `merge_rows` has made them."""
  return any(indices is merged for merged in tf.get_collection(_MERGED))


def merge_rows(gradient: Gradient) -> Gradient:
  """Adds up rows with the same index, so that the norm is that of a dense gradient, which stays."""
  if not isinstance(gradient, tf.IndexedSlices) or has_each_once(gradient.indices):
    return gradient
  indices, positions = tf.unique(gradient.indices)
  tf.add_to_collection(_MERGED, indices)
  values = tf.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
  return tf.IndexedSlices(values, indices, gradient.dense_shape)
