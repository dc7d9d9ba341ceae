"""Stand-ins: a function over the rows of a chunk, with a stand-in for each row on which it fails.

tf.data can ignore an error, but then the row is gone and all that follow move up. So a chunk is
mapped up to the first gap, and its rest row by row:

  rows ──► function ──► up to the first gap ──┬──► as many as there are rows
  rows from the gap on, each a data set of    │
  its own, whose error ends it alone ─────────┘

A data set for each row would cost a tenth of what decoding an image costs; few chunks, or none,
need it.
"""

from typing import Any, Callable, Tuple


def map_with_stand_ins(chunk: Tuple[Any, ...], function: Callable[..., Any],
                       stand_in: Callable[..., Any], *, name: str) -> Any:
  """Returns `function(*row)` of each row, in order, or `stand_in(*row)` where that fails.

  Args:
    chunk: tensors `[rows, ...]`.
    function: returns the element of a row.
    stand_in: returns an element of the same structure; must not fail.
    name: of the split, for messages.

  Returns:
    A tf.data.Dataset of exactly as many elements as there are rows.
  """
  from tensorflow_v1 import tf
  num_rows = tf.shape(chunk[0], out_type=tf.int64)[0]
  rows = tf.data.Dataset.from_tensor_slices(chunk)
  # No tensor of positions: TensorFlow 1.14 crashes on a tf.range here.
  rows = tf.data.Dataset.zip((tf.data.Dataset.range(num_rows), rows))

  def map_what_can_be(rows):
    mapped = rows.map(lambda position, row: (position, function(*row)))
    return mapped.apply(tf.data.experimental.ignore_errors())

  def map_alone(position, row):
    alone = tf.data.Dataset.from_tensors((position, row))
    substitute = alone.map(lambda position, row: (position, stand_in(*row)))
    return map_what_can_be(alone).concatenate(substitute).take(1).map(_second)

  def refuse(_, row):
    # A chunk with fewer rows would move all that follow, silently.
    message = f'{name}: a row of a chunk failed, and then did not: is memory short?'
    with tf.control_dependencies([tf.Assert(False, [message])]):
      return stand_in(*row)

  up_to_gap = tf.data.Dataset.zip((tf.data.Dataset.range(num_rows), map_what_can_be(rows)))
  up_to_gap = up_to_gap.apply(
      tf.data.experimental.take_while(lambda position, mapped: tf.equal(position, mapped[0])))
  up_to_gap = up_to_gap.map(lambda _, mapped: mapped[1])

  # Runs only if the rows above end early, which is rare. No reduce: TensorFlow 1.14 may crash
  # where a session that runs one is closed.
  positions = map_what_can_be(rows).map(lambda position, _: position)
  positions = positions.concatenate(tf.data.Dataset.from_tensors(tf.constant(-1, tf.int64)))
  gap = tf.data.Dataset.zip((tf.data.Dataset.range(num_rows), positions))
  gap = gap.filter(tf.not_equal).take(1)
  rest = gap.flat_map(lambda position, _: rows.skip(position).flat_map(map_alone))

  return up_to_gap.concatenate(rest).concatenate(rows.map(refuse)).take(num_rows)


def _second(_, element):
  return element
