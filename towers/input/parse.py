"""Parse: batches of elements become batches of examples, in one of three ways.

  by threads   several batches at a time, each on a thread of its own
  gathered     rows of arrays, copied by the thread that fetches ahead
  small        so are several batches of rows at a time, by a thread of the iterator's own

To wake another thread takes longer than to gather most batches.
"""

from typing import Any, Callable, List, NamedTuple

from tensorflow_v1 import (
  as_written,
  get_next_by_reader,
  map_by_reader,
  plain_data_options,
  tf,
  unbatch,
  with_own_thread,
)
from towers.data.examples import Examples

# Batches of rows that are no larger are gathered several at a time.
_SMALL_BYTES = 2 ** 16
_MOST_AT_ONCE = 16
_PARALLEL_BATCHES = 4  # Whole batches in the making at a time, at most: they take memory.


class Parsed(NamedTuple):
  """Batches of examples, and how to take one.

  Attributes:
    dataset: a tf.data.Dataset.
    get_next: `get_next(iterator)` builds the op that takes a batch from an iterator of it.
  """
  dataset: Any
  get_next: Callable[[Any], Any]


def is_gathered(examples: Examples) -> bool:
  """Returns whether a batch is nothing but rows of the split's arrays."""
  does_more = examples.parse_example or examples.read or examples.takes_epoch
  return examples.is_gathered and examples.parse_batch is not None and not does_more


def parse_batches(batches: Any, examples: Examples, arrays: List[Any], *, num_rows: int,
                  num_ahead: int, parallel_calls: int) -> Parsed:
  """Returns batches of examples in the way that suits the split.

  Args:
    batches: of elements, all epochs one after another: one is begun while the last batches of the
      one before are parsed.
    examples: the split.
    arrays: what is fed for `examples.arrays`.
    num_rows: examples in a batch of all towers.
    num_ahead: batches to prefetch.
    parallel_calls: the most threads to use.
  """
  if not is_gathered(examples):
    return _parse_by_threads(batches, examples, arrays, num_ahead, parallel_calls)
  if _count_bytes(examples.arrays, num_rows) > _SMALL_BYTES:
    return _gather(batches, examples, arrays, num_ahead)
  return _gather_small(batches, examples, arrays, num_ahead)


def _parse_by_threads(batches, examples, arrays, num_ahead, parallel_calls):
  if examples.parse_batch:
    batches = batches.map(_parser(examples, arrays),
                          num_parallel_calls=min(parallel_calls, _PARALLEL_BATCHES))
  return Parsed(batches.prefetch(num_ahead).with_options(plain_data_options()), _get_next)


def _gather(batches, examples, arrays, num_ahead):
  batches = map_by_reader(batches, _parser(examples, arrays)).prefetch(num_ahead)
  return Parsed(batches.with_options(plain_data_options()), _get_next)


def _gather_small(batches, examples, arrays, num_ahead):
  at_once = _count_at_once(batches, examples.arrays)
  if at_once > 1:
    batches = batches.batch(at_once, drop_remainder=True)
  batches = map_by_reader(batches, _parser(examples, arrays)).prefetch(num_ahead)
  if at_once > 1:
    batches = unbatch(batches)
  batches = batches.with_options(plain_data_options())
  return Parsed(with_own_thread(batches), get_next_by_reader)


def _get_next(iterator):
  return iterator.get_next()


def _parser(examples, arrays):
  """Returns the function from a batch of elements, its tuple taken apart, to one of examples."""
  def parse(*elements):
    return examples.parse_batch(*elements, *arrays)

  def parse_with_epoch(elements, epoch):
    elements = elements if isinstance(elements, tuple) else (elements,)
    return examples.parse_batch(*elements, *arrays, epoch=epoch)

  return as_written(parse_with_epoch if examples.takes_epoch else parse)


def _count_bytes(arrays, num_rows):
  """Returns how much memory a batch of rows of all arrays takes."""
  return sum(array[:1].nbytes for array in arrays) * num_rows


def _count_at_once(batches, arrays):
  """Returns how many batches of indices to gather at a time; 1 unless all are of one size."""
  size, = tf.data.get_output_shapes(batches).as_list()
  return min(_MOST_AT_ONCE, _SMALL_BYTES // max(1, _count_bytes(arrays, size))) if size else 1
