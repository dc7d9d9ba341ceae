"""Parse: batches of elements become batches of examples, in one of two ways.

  by threads   several batches at a time, each on a thread of its own
  gathered     rows of arrays, copied by the thread that fetches ahead: to wake another takes longer
               than to gather most batches
"""

from typing import Any, List

from tensorflow_v1 import as_written, map_by_reader, plain_data_options
from towers.data.examples import Examples

_PARALLEL_BATCHES = 4  # Whole batches in the making at a time, at most: they take memory.


def is_gathered(examples: Examples) -> bool:
  """Returns whether a batch is nothing but rows of the split's arrays."""
  does_more = examples.parse_example or examples.read or examples.takes_epoch
  return examples.is_gathered and examples.parse_batch is not None and not does_more


def parse_batches(batches: Any, examples: Examples, arrays: List[Any], *, num_ahead: int,
                  parallel_calls: int) -> Any:
  """Returns batches of examples, of which `num_ahead` are prefetched.

  The batches of elements are those of all epochs: one epoch is begun while the last batches of the
  one before are parsed. `arrays` is what is fed for `examples.arrays`.
  """
  make_batch: Any = examples.parse_batch

  def parse(*elements):
    return make_batch(*elements, *arrays)

  def parse_with_epoch(elements, epoch):
    elements = elements if isinstance(elements, tuple) else (elements,)
    return make_batch(*elements, *arrays, epoch=epoch)

  function = as_written(parse_with_epoch if examples.takes_epoch else parse)
  if is_gathered(examples):
    batches = map_by_reader(batches, function)
  elif make_batch is not None:
    batches = batches.map(function, num_parallel_calls=min(parallel_calls, _PARALLEL_BATCHES))
  return batches.prefetch(num_ahead).with_options(plain_data_options())
