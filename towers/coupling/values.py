"""Values: what a tensor is to the examples of a batch.

  Rows    one for each example, computed from this example alone
  Total   a sum over the examples, as a mean is
  Free    the same for every example, as a weight is
  Shape   the shape of rows, one element of which is the number of examples
  Length  an integer of all examples that gives a size, as the largest length does
  Picked  computed from the examples at some places of the batch alone, as x[0] is
  Grouped the rows of x, in groups by a reshape to [groups, -1, ...]
  Mixed   computed from several examples in another way, such as a difference from their mean
  None    not known: of an op without a rule

Powers of n, the number of examples, are counted: a mean over the examples is their sum times n to
the power of -1. A power is NaN where it is not known, as after a product with a constant that may
stand for n.
"""

from fractions import Fraction
from typing import Any, Collection, FrozenSet, Iterable, List, NamedTuple, Optional, Union

from tensorflow_v1 import Operation


class Rows(NamedTuple):
  """A value for each example, times n ** power.

  Attributes:
    axis: of the examples.
    power: of n.
    are_equal: whether all are the same, as in ones_like.
    fold: values per example along the axis, as after a reshape of `[n, time]` to `[n * time]`; None
      where it is not known.
    is_part: whether only some examples have values, by a condition, as after tf.boolean_mask.
    copies: how often all examples stand along the axis, one time after the other, as after
      `tf.concat([x, noisy_x], 0)`.
  """
  axis: int
  power: float = 0
  are_equal: bool = False
  fold: Optional[int] = 1
  is_part: bool = False
  copies: int = 1

  def insert(self, axis: int) -> 'Rows':
    """Returns the rows with a new axis at this place."""
    return self._replace(axis=self.axis + (axis <= self.axis))

  def drop(self, axes: Iterable[int]) -> 'Rows':
    """Returns the rows without these axes, none of which is that of the examples."""
    return self._replace(axis=self.axis - sum(axis < self.axis for axis in axes))


class Total(NamedTuple):
  """A sum over the examples, times n ** power; `op` took it."""
  power: float
  op: Operation


class Free(NamedTuple):
  """A value that no example changes, times n ** power.

  Attributes:
    power: of n.
    times: what n is multiplied by, if the value is nothing else; rounded if it is a fraction.
  """
  power: float = 0
  times: Optional[Fraction] = None


class Shape(NamedTuple):
  """The shape of rows, whose element `axis` is n * `fold` * `copies`; of some if `is_part`."""
  axis: int
  fold: Any = 1
  is_part: bool = False
  copies: int = 1


class Length(NamedTuple):
  """An integer that the examples have in common, such as the largest of their lengths."""


class Picked(NamedTuple):
  """A value of the examples at these places alone, `op` picked the first; a sum of several places.

  Attributes:
    places: each from one place up to another.
    op: that picked.
    rows: that it was picked from, as long as nothing is computed of it.
  """
  places: FrozenSet[Any]
  op: Operation
  rows: Optional[Rows] = None


class Grouped(NamedTuple):
  """Rows whose first axis is cut in two by `op`, a reshape; or sums over the first of both."""
  op: Operation
  is_summed: bool = False


class Mixed(NamedTuple):
  """A value computed from several examples; `op` was the first to."""
  op: Operation


Value = Union[Rows, Total, Free, Shape, Length, Picked, Grouped, Mixed, None]


class Source(NamedTuple):
  """The op whose gradient another op computes, with the values of its inputs and first output."""
  op: Operation
  inputs: List[Any]
  output: Any


class Operands(NamedTuple):
  """What a rule needs to tell the value of an op's outputs.

  Attributes:
    op: whose outputs are asked for.
    values: of its inputs.
    num_rows: of the batch, if it is static: then constants may stand for it.
    source: whose gradient it computes, or None.
    most_rows: of any batch; None to follow no rows that are taken by their place.
    needed: the ops that the targets need.
  """
  op: Operation
  values: List[Any]
  num_rows: Optional[int]
  source: Optional[Source] = None
  most_rows: Optional[int] = None
  needed: Collection[Operation] = ()

  def rank(self, index: int) -> Any:
    """Returns the rank of an input, or None if it is not known."""
    return self.op.inputs[index].shape.ndims
