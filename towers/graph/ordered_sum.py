"""Sums whose terms are added in the order in which they stand.

TensorFlow's `AddN` adds into the first of its inputs that nobody else holds at that moment, and
adds that one first. Terms that come from other devices, or that have other readers, are let go when
their thread gets to it; so three terms or more may be added in another order in every run, and the
last bit of the sum is a matter of timing. (Two terms give the same bits in both orders.) Forbidden
to reuse an input, the op adds from left to right.
"""

from typing import Any, Iterable, Sequence

from tensorflow_v1 import tf

# Pairs of an input and the output that takes its memory over; -2 is TensorFlow's number for none,
# ever.
_REUSE_NO_INPUT = tf.AttrValue(list=tf.AttrValue.ListValue(i=[-2, 0]))


def add_all(terms: Sequence[Any]) -> Any:
  """Returns the sum of tensors or IndexedSlices of one shape, from left to right; of one alone the
  term itself.
  """
  if len(terms) == 1:
    return terms[0]
  total = tf.add_n([tf.convert_to_tensor(term) for term in terms])
  keep_order([total.op])
  return total


def keep_order(ops: Iterable[Any]) -> None:
  """Makes those of the ops that sum add their inputs from left to right."""
  for op in ops:
    if op.type == 'AddN' and len(op.inputs) > 2:
      op._set_attr('_forward_input', _REUSE_NO_INPUT)
