"""A tower's batch: the tensors of its examples, and how many of them count.

The number of examples is a Python int where every batch has the same size; otherwise it is a scalar
tensor that goes through switch and staging area with the batch.
"""

from typing import Any, List, NamedTuple, Optional, Sequence, Union

from towers.base.short_repr import short_repr
from towers.input.row_offsets import RowOffset, Sharding
from towers.tensorflow_v1 import tf


class Batch(NamedTuple):
  """The examples of one tower in one micro-batch.

  Attributes:
    tensors: the data set's own structure (a tensor, tuple or dict), each tensor `[batch, ...]`.
      Sparse and ragged components are `composite.ROWS`; the model gets `decode_batch(tensors)`.
    num_examples: the number of leading rows that are real, an int or a scalar int32 tensor. A tower
      without an example holds one row all the same (see `fill_empty`), and counts 0.
    may_be_empty: whether the number of examples can be 0.
    is_padded: whether rows that are not real may follow, so that all batches have one shape.
    pads_validation: whether they may in validation alone.
    put_op: puts the tower's next training batch into its staging area; None without staging.
    sharding: how its rows are taken out of an epoch; None for a batch that no plan has dealt.
    row_offset: of its rows in the global batch; None if it is the global batch, or not known yet.
  """
  tensors: Any
  num_examples: Union[int, Any]
  may_be_empty: bool = False
  is_padded: bool = False
  pads_validation: bool = False
  put_op: Any = None
  sharding: Optional[Sharding] = None
  row_offset: Optional[RowOffset] = None

  def __repr__(self) -> str:
    return short_repr(self)

  @property
  def is_static(self) -> bool:
    """Whether the number of examples is known while the graph is built."""
    return isinstance(self.num_examples, int)

  @property
  def has_filler(self) -> bool:
    """Whether rows that are not real may follow the examples."""
    return self.may_be_empty or self.is_padded or self.pads_validation

  @property
  def num_rows(self) -> Optional[int]:
    """The number of rows, filler included; None where it is not static."""
    if self.is_static:
      return self.num_examples
    shape = tf.nest.flatten(self.tensors)[0].shape
    return None if shape.ndims is None else shape.as_list()[0]

  def zero_if_empty(self, values: Sequence[Any]) -> List[Any]:
    """Returns tensors, IndexedSlices and None as they are, or zeros if the batch is empty.

    The row that fills an empty tower's batch may have led to NaN.
    """
    if not self.may_be_empty or all(value is None for value in values):
      return list(values)
    # One predicate for all: it is on the host, and each would be sent to a GPU.
    has_examples = self.num_examples > 0

    def zero(value):
      if isinstance(value, tf.IndexedSlices):
        # No rows rather than rows of zeros: an optimizer with slots moves every row it is given.
        num_rows = tf.where(has_examples, tf.size(value.indices), 0)
        return tf.IndexedSlices(value.values[:num_rows], value.indices[:num_rows],
                                value.dense_shape)
      return value if value is None else tf.where(has_examples, value, tf.zeros_like(value))

    return [zero(value) for value in values]

  def flatten(self) -> List[Any]:
    """Returns the tensors as a flat list, the number of examples last."""
    return list(tf.nest.flatten(self.tensors)) + [self.num_examples]

  def replace(self, flat: List[Any]) -> 'Batch':
    """Returns a batch of the same structure from values in the order of `flatten`."""
    return self._replace(tensors=tf.nest.pack_sequence_as(self.tensors, flat[:-1]),
                         num_examples=flat[-1])
