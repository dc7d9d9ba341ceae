"""Filler: rows that do not count, of a tower without an example, or for batches of one shape."""

from typing import Any, List

from towers.tensorflow_v1 import tf


def fill_empty(towers: List[Any], counts: List[Any]) -> List[Any]:
  """Returns the towers' tensors, of which none is without a row, since few kernels take no row.

  The row of a tower without an example is one of another tower in the same micro-batch, which does
  not count. So a model may ask of a row whatever holds for all examples: that a length is above 0,
  or a string is a JPEG.

  These are of one structure, and may be padded to other sizes; `counts` are the towers' numbers of
  examples. Where all towers of this worker are empty, as only several workers or bad records can
  leave them, the row is of zeros.
  """
  batches = [tf.nest.flatten(tensors) for tensors in towers]
  any_batch = [tf.zeros(tf.concat([[1], tf.shape(tensor)[1:]], 0), tensor.dtype)
               for tensor in batches[0]]
  for batch, count in zip(batches, counts):
    any_batch = _choose(count > 0, batch, any_batch)
  row = [tensor[:1] for tensor in any_batch]
  return [tf.nest.pack_sequence_as(tensors, _choose(count > 0, batch, row))
          for tensors, batch, count in zip(towers, batches, counts)]


def _choose(is_first, first, second):
  """Returns one of two lists of tensors, without a copy; their shapes may differ."""
  return tf.cond(is_first, lambda: first, lambda: second, strict=True)


def repeat_last(tensors: Any, num_examples: Any, num_rows: int) -> Any:
  """Returns a tower's tensors, with as many rows in every batch.

  What a real row leads to is finite if a step is, and its rows of sparse gradients move anyway.
  """
  rows = tf.minimum(tf.range(num_rows), tf.maximum(num_examples, 1) - 1)
  return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)
