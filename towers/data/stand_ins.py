"""Stand-ins: records read in chunks become examples, with a blank one for each that cannot.

tf.data can ignore an error, but then the row is gone and all that follow move up. So a chunk is
mapped up to the first gap, and its rest row by row:

  rows ──► function ──► up to the first gap ──┬──► as many as there are rows
  rows from the gap on, each a data set of    │
  its own, whose error ends it alone ─────────┘

A data set for each row would cost a tenth of what decoding an image costs.
"""

from typing import Any, Callable, Tuple

import numpy as np

from towers.base.later import tf
from towers.data.bad_records import BadRecords

_CHUNK = 32
_PARALLEL_CHUNKS = 2


def map_chunks(indices: Any, read_chunk: Callable[[Any], Any], function: Callable[..., Any], *,
               blank: Callable[[], Any], explain: Callable[[bytes], str],
               place: Callable[[int], Tuple[str, int, int]], bad_records: BadRecords, name: str,
               parallel_calls: int) -> Any:
  """Returns the examples of a data set of indices, in its order; 32 at a time are read.

  Under the policy 'skip' each is `(example, is_good)`.

  Args:
    read_chunk: makes of indices `[rows]` columns: these, records, whether each could be read, which
      it reports if not, and what else `function` takes.
    function: returns the example of a record.
    blank: returns an example of the same structure, for a record on which `function` fails.
    explain: returns why it fails on a record, in words.
    place: returns where the record of an index is, as `BadRecords.report` takes it.
    parallel_calls: rows that are worked on at a time.
  """
  def mark(example, is_good):
    return (example, is_good) if bad_records.skips else example

  def make(index, record, is_read, *more):
    del index
    return mark(function(record, *more), is_read)

  def stand_in(index, record, *_):
    def report(index, record):
      bad_records.report(*place(index), explain(bytes(record)))
      return np.False_

    is_good = tf.numpy_function(report, [index, record], tf.bool)
    is_good.set_shape([])
    return mark(blank(), is_good)

  chunks = indices.batch(_CHUNK)
  chunks = chunks.map(read_chunk, num_parallel_calls=min(_PARALLEL_CHUNKS, parallel_calls))
  return chunks.prefetch(1).interleave(
      lambda *chunk: _map_with_stand_ins(chunk, make, stand_in, name),
      cycle_length=parallel_calls, block_length=_CHUNK, num_parallel_calls=parallel_calls)


def _map_with_stand_ins(chunk, function, stand_in, name):
  """Returns a data set of what becomes of each row of `chunk`, tensors `[rows, ...]`, in order."""
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
    return map_what_can_be(alone).concatenate(substitute).take(1).map(lambda _, element: element)

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
