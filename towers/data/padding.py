"""Padding: examples of unequal sizes, such as sentences, are padded where they become a batch."""

from typing import Any, Optional, Union

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.examples import Buckets, Examples, Padding

_WINDOW = 100
_BY_BYTES = 'bytes'


def padded(examples: Examples, pad_to: Union[int, str] = 'batch', values: Any = None, *,
           bucket_by: Any = None, bucket_window: Optional[int] = None) -> Examples:
  """Returns the split with batches that are padded at the end of each dimension of unknown size.

  With 'batch' a batch is as large as its largest example, whose size differs between micro-batches,
  workers and, in the mode `shard`, towers. Then the model's result must not depend on the padding:
  return `towers.Weighted` with weights of 0 there.

  Args:
    examples: whose tensors have unknown sizes.
    pad_to: 'batch', or a number from 1 on; an example that is larger is an error.
    values: of the padding, in the structure of an example, each may be None; None for 0, False or
      '' in all.
    bucket_by: the length of each example, `[num_examples]`, in any unit, or 'bytes' for the sizes
      of records and of the unequal rows of arrays: examples of similar lengths share a batch. None
      for the epoch's own order.
    bucket_window: global batches among which examples are sorted, by default 100. More save more
      padding, and mix less.

  Raises:
    UsageError: another pad_to, lengths that are not one for each example, or buckets of examples
      that have no index.
  """
  if pad_to != 'batch' and (not isinstance(pad_to, int) or isinstance(pad_to, bool) or pad_to < 1):
    raise UsageError(f"pad_to is {pad_to!r}: choose 'batch', or a number from 1 on.")
  examples = examples.unequal or examples
  buckets = _build_buckets(examples, pad_to, bucket_by, bucket_window)
  if buckets and examples.buckets:
    raise UsageError(f'{examples.name}: bucket_by sorts examples by length among batches that '
                     'towers.mixed has dealt by parts: leave bucket_by out.')
  return examples._replace(padding=Padding(pad_to, values), buckets=buckets or examples.buckets)


def _build_buckets(examples, pad_to, bucket_by, window):
  name = examples.name
  if bucket_by is None:
    if window is not None:
      raise UsageError(f'{name}: bucket_window is {window}, but bucket_by is not given: give the '
                       'length of each example, or leave bucket_window out.')
    return None
  window = _WINDOW if window is None else window
  if not isinstance(window, int) or isinstance(window, bool) or window < 1:
    raise UsageError(f'{name}: bucket_window is {window!r}: give at least 1 global batch.')
  if pad_to != 'batch':
    raise UsageError(f'{name}: bucket_by saves nothing where pad_to={pad_to} pads all batches to '
                     "one size: use pad_to='batch', or leave bucket_by out.")
  if examples.elements is not None:
    raise UsageError(f'{name}: bucket_by needs examples that can be read in any order, and a data '
                     'set is read from its start to its end: write TFRecords and use '
                     'towers.from_tfrecords, or put similar lengths together in the data set and '
                     'do not shuffle.')
  return Buckets(_read_lengths(examples, bucket_by), window)


def _read_lengths(examples, bucket_by) -> np.ndarray:
  name, num_examples = examples.name, examples.num_examples
  if isinstance(bucket_by, str):
    if bucket_by != _BY_BYTES or examples.num_bytes is None:
      raise UsageError(f"{name}: bucket_by is '{bucket_by}': give the length of each example, an "
                       "array of numbers, or 'bytes' for a split of TFRecords or of "
                       "arrays with rows of unequal length.")
    return examples.num_bytes
  lengths = np.asarray(bucket_by)
  if lengths.shape != (num_examples,) or lengths.dtype.kind not in 'iuf' or (
      not np.isfinite(lengths).all()):
    raise UsageError(f'{name}: bucket_by is of shape {lengths.shape} and dtype {lengths.dtype}: '
                     f'give a finite number for each of the {num_examples} examples.')
  return lengths
