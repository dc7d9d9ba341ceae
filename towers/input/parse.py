"""Parse: batches of elements become batches of examples, in one of three ways.

  by threads   several batches at a time, each on a thread of its own
  gathered     rows of arrays, copied by the thread that fetches ahead: to wake another takes longer
               than to gather most batches
  small        so are several batches of rows at a time, by a thread of the iterator's own
"""

import operator
from typing import Any, Callable, List, Tuple

from towers.data.examples import Examples
from towers.tensorflow_v1 import data_sets, tf

_PARALLEL_BATCHES = 4  # Whole batches in the making at a time, at most: they take memory.
# Batches of rows that are no larger are gathered several at a time.
_SMALL_BYTES = 2 ** 16
_MOST_AT_ONCE = 16


def is_gathered(examples: Examples) -> bool:
  """Returns whether a batch is nothing but rows of the split's arrays."""
  does_more = examples.parse_example or examples.read or examples.takes_epoch
  return examples.is_gathered and examples.parse_batch is not None and not does_more


def parse_batches(batches: Any, examples: Examples, arrays: List[Any], *, num_rows: int,
                  num_ahead: int, parallel_calls: int) -> Tuple[Any, Callable[[Any], Any]]:
  """Returns batches of examples as a tf.data.Dataset, and the function that builds their get_next.

  The batches of elements are those of all epochs: one epoch is begun while the last batches of the
  one before are parsed, by `parallel_calls` threads at most. `num_ahead` of them are prefetched.
  What is fed for `examples.arrays` are the `arrays`; a batch of all towers has `num_rows` examples.
  """
  def parse(*elements):
    epoch = None
    if examples.takes_epoch:
      elements, epoch = elements
      elements = elements if isinstance(elements, tuple) else (elements,)
    return examples.parse_together(elements, arrays, epoch=epoch)

  function = data_sets.as_written(parse)
  if is_gathered(examples):
    row_bytes = sum(array[:1].nbytes for array in examples.arrays)
    if row_bytes * num_rows <= _SMALL_BYTES:
      return _gather_small(batches, function, row_bytes, num_ahead), data_sets.get_next_by_reader
    batches = data_sets.map_by_reader(batches, function)
  elif examples.parse_batch is not None:
    batches = batches.map(function, num_parallel_calls=min(parallel_calls, _PARALLEL_BATCHES))
  if num_ahead:
    batches = batches.prefetch(num_ahead)
  return data_sets.plain(batches), operator.methodcaller('get_next')


def _gather_small(batches, function, row_bytes, num_ahead):
  size, = tf.data.get_output_shapes(batches).as_list()
  at_once = min(_MOST_AT_ONCE, _SMALL_BYTES // max(1, row_bytes * size)) if size else 1
  if at_once > 1:
    batches = batches.batch(at_once, drop_remainder=True)
  batches = data_sets.map_by_reader(batches, function).prefetch(num_ahead)
  if at_once > 1:
    batches = data_sets.unbatch(batches)
  return data_sets.with_own_thread(data_sets.plain(batches))
