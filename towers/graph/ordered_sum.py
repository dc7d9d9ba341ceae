"""Sums with a fixed order of their terms.

TensorFlow's `AddN` adds into the first input whose buffer nobody else holds at that moment, and so
starts with this input. When a buffer of another device, or with other readers, becomes free is a
matter of timing. So three or more terms may be added in another order in every run, and the last
bit of the sum changes. (Two terms give the same bits in either order.) An op that must not reuse an
input adds from left to right.
"""

from typing import Iterable, Sequence

from towers.tensorflow_v1 import Gradient, Operation, tf

# Pairs of an input and the output that takes over its memory. -2 is TensorFlow's number for never.
_REUSE_NO_INPUT = tf.AttrValue(list=tf.AttrValue.ListValue(i=[-2, 0]))


def add_all(terms: Sequence[Gradient]) -> Gradient:
  """Returns the sum of tensors or IndexedSlices from left to right; a single term as it is."""
  if len(terms) == 1:
    return terms[0]
  total = tf.add_n([tf.convert_to_tensor(term) for term in terms])
  keep_order([total.op])
  return total


def keep_order(ops: Iterable[Operation]) -> None:
  """Makes each `AddN` among the ops add its inputs from left to right."""
  for op in ops:
    if op.type == 'AddN' and len(op.inputs) > 2:
      op._set_attr('_forward_input', _REUSE_NO_INPUT)
