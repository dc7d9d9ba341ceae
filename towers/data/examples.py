"""Examples: one split of a data set, as the input modes need it.

A pipeline orders *elements*, which are cheap (an index, a serialized record), and only then turns
them into *examples* (a decoded image). So a resumed run skips without decoding, and every shard
reads only its own part.

  indices 0 … n-1   ──► permuted ────────────┐
                                             ├─► parse_example ──► batch ──► parse_batch
  elements ──► shuffled by a buffer ──► skip ┘   (one by one)               (a whole batch)
                                              or ► read
                                                   (in order, in any way)
"""

import zlib
from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

import numpy as np

from towers.data.bad_records import BadRecords


class Padding(NamedTuple):
  """How batches of examples of unequal sizes are padded.

  Attributes:
    pad_to: 'batch' for the largest size in the batch, or a number, for each dimension of an example
      whose size is not known.
    values: a number or string for each component, in the structure of an example, each may be None;
      None for 0, False or '' in all.
  """
  pad_to: Union[int, str] = 'batch'
  values: Any = None


class Buckets(NamedTuple):
  """Which examples share a batch, by their lengths.

  Attributes:
    lengths: of each example, in any unit, `[num_examples]`.
    window: global batches of a shuffled epoch among which examples are sorted.
  """
  lengths: np.ndarray
  window: int

  @property
  def checksum(self) -> int:
    """Of the lengths, below 2^32."""
    return zlib.crc32(np.ascontiguousarray(self.lengths, np.float64))


class Examples(NamedTuple):
  """One split of a data set.

  Functions run as written, without autograph, on 2.x as on 1.14: where a tensor decides, use
  `tf.cond` or `tf.where`.

  Attributes:
    num_examples: elements of one epoch, exactly.
    elements: None where the elements are the indices 0 … num_examples - 1, int64: any position of
      a shuffled epoch is then known at once. Without random access, `elements(*arrays) ->
      tf.data.Dataset` of `num_examples` cheap elements, each time in the same order.
    parse_example: `parse_example(*element) -> example`, or None where an element is an example
      already. Mapped in parallel over single elements, before they are batched.
    parse_batch: `parse_batch(elements, *arrays) -> batch` of elements `[batch, ...]`, or None.
    arrays: fed once, when iterators are initialised, and shared by all towers. They never become
      constants of the graph, so that arrays beyond the 2 GB limit of a GraphDef train. `elements`,
      `read` and `parse_batch` get tensors of the same shapes and dtypes in the same order.
    shuffle_buffer: of `elements` held while shuffling, by every iterator (`shard` has one for each
      tower); 0 for the whole split, which mixes best and is right wherever elements are small.
      Indices need no buffer.
    name: of the split in messages and name scopes: letters, digits and underscores.
    read: `read(elements, *arrays, epoch=..., parallel_calls=...) -> tf.data.Dataset`, instead of
      parse_example: exactly one example for each element, in the same order. `epoch` is a scalar
      int64 tensor that counts from 0, for what differs between epochs; `parallel_calls` the number
      of examples to work on at a time.
    takes_epoch: parse_batch also takes `epoch=...`.
    is_gathered: a batch is nothing but rows of `arrays`, so that making one is worth no threads.
      parse_batch then takes indices of any shape, and returns rows of that shape. Of no effect
      beside parse_example, read or takes_epoch.
    padding: how batches of examples of unequal sizes are padded, see `padded`; None for examples of
      one size.
    hold: `hold(*element) -> element`, which fails for an element of another shape than the others.
    read_unequal: the `read` of examples that need not have one shape, in place of `read` and `hold`
      where the split is padded; None if these are the same.
    buckets: which examples share a batch, see `padded`; None for any. Only where the elements are
      indices.
    num_bytes: of each example in its file, or of its rows of unequal length, `[num_examples]`; None
      where that is not known.
    marks_bad: batches are `(batch, is_good)` with is_good `[batch]` bool. Rows that are not good
      keep their place in the plan, and are left out of the towers' batches.
    source: where encoded images are, an `encoded_images.ImageSource`; None elsewhere.
  """
  num_examples: int
  elements: Optional[Callable[..., Any]] = None
  parse_example: Optional[Callable[..., Any]] = None
  parse_batch: Optional[Callable[..., Any]] = None
  arrays: Tuple[np.ndarray, ...] = ()
  shuffle_buffer: int = 0
  name: str = 'examples'
  read: Optional[Callable[..., Any]] = None
  takes_epoch: bool = False
  is_gathered: bool = False
  marks_bad: bool = False
  padding: Optional[Padding] = None
  buckets: Optional[Buckets] = None
  num_bytes: Optional[np.ndarray] = None
  hold: Optional[Callable[..., Any]] = None
  read_unequal: Optional[Callable[..., Any]] = None
  source: Any = None


class DataSet(NamedTuple):
  """Both splits, and what a model must know of them.

  Attributes:
    train: the split to learn from.
    validation: the split to measure on, if there is one.
    image_shape: `[height, width, channels]` of every image.
    num_classes: labels are 0 … num_classes - 1.
    source: where the examples come from and how they are read, a sentence for the start of a run,
      or ''.
    bad_records: the policy for damaged records and their log; None where there can be none.
  """
  train: Examples
  validation: Optional[Examples] = None
  image_shape: Tuple[int, ...] = ()
  num_classes: int = 0
  source: str = ''
  bad_records: Optional[BadRecords] = None
