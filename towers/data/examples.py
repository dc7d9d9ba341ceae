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
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from towers.base.short_repr import short_repr
from towers.data.bad_records import BadRecords

# Of a stream, which never ends an epoch; and of one whose batches `session.train(batch)` gives.
ENDLESS = 2 ** 50
BY_HAND = ENDLESS + 1


class Padding(NamedTuple):
  """How batches of examples of unequal sizes are padded; see `padded`."""
  pad_to: Union[int, str] = 'batch'
  values: Any = None


class Buckets(NamedTuple):
  """Which examples share a batch: their lengths, and the global batches to sort among."""
  lengths: np.ndarray
  window: int

  @property
  def checksum(self) -> int:
    """Of the lengths, below 2^32."""
    return zlib.crc32(np.ascontiguousarray(self.lengths, np.float64))


class Mixture(NamedTuple):
  """Parts that share the batches of an epoch by numbers, see `mixed`."""
  sizes: Tuple[int, ...]  # Of each part, in examples.
  counts: Tuple[int, ...]  # How many of each part an epoch takes.
  per_batch: bool  # Whether every batch has a part's share, and not only the epoch.
  # The examples of all parts, one part after the other, `[sum of sizes]`; None where they are
  # numbered so.
  members: Optional[np.ndarray] = None

  @property
  def num_examples(self) -> int:
    """Of an epoch."""
    return sum(self.counts)

  @property
  def window(self) -> int:
    """The global batches among which examples are dealt; 0 where batches do not matter."""
    return int(self.per_batch)

  @property
  def checksum(self) -> int:
    """Of all of it, below 2^32."""
    members = b'' if self.members is None else self.members.tobytes()
    return zlib.crc32(members, zlib.crc32(repr(self[:3]).encode()))


class Examples(NamedTuple):
  """One split of a data set.

  Functions run as written, without autograph: where a tensor decides, use `tf.cond`.

  Attributes:
    num_examples: elements of one epoch, exactly; of a stream `ENDLESS` or `BY_HAND`.
    elements: None where the elements are the indices 0 … num_examples - 1, int64. Without random
      access, `elements(*arrays) -> tf.data.Dataset` of `num_examples` cheap elements, each time in
      the same order.
    parse_example: `parse_example(*element) -> example`, mapped in parallel over elements; or None.
    parse_batch: `parse_batch(elements, *arrays) -> batch` of elements `[batch, ...]`, or None.
    arrays: fed once, when iterators are initialised, and shared by all towers: they are beyond the
      2 GB limit of a GraphDef. `elements`, `read` and `parse_batch` get them as tensors.
    shuffle_buffer: of `elements` held while shuffling, by every iterator; 0 for the whole split,
      which mixes best and is right wherever elements are small.
    name: of the split in messages and name scopes: letters, digits and underscores.
    read: `read(elements, *arrays, epoch=..., parallel_calls=...) -> tf.data.Dataset`, instead of
      parse_example: exactly one example for each element, in the same order. `epoch` is a scalar
      int64 tensor that counts from 0; `parallel_calls` examples are worked on at a time.
    takes_epoch: parse_batch also takes `epoch=...`.
    is_gathered: a batch is nothing but rows of `arrays`, so that making one is worth no threads. Of
      no effect beside parse_example, read or takes_epoch.
    padding: how batches of examples of unequal sizes are padded, see `padded`; None for one size.
    unequal: the same split where its examples need not have one shape, which `padded` takes; None
      if it is this one.
    buckets: which examples share a batch, see `padded` and `mixed`; None for any. Only if elements
      are indices; of a mixture they are distinct in an epoch, and the example is the index modulo
      the examples of all parts.
    num_bytes: of each example in its file, or of its rows of unequal length, `[num_examples]`; None
      where that is not known.
    marks_bad: batches are `(batch, is_good)` with is_good `[batch]` bool. Rows that are not good
      keep their place in the plan, and are left out of the towers' batches.
    bad_records: logs of the damaged records that reading meets, and the policy for them.
    digest_files: returns an int64 that stands for the files of encoded images; None elsewhere.
    copy: returns a data set of the elements, as an iterator would read it, in a graph beside the
      program's; None where `elements` does.
    augmentations: how many functions of `augmented` change it, each by other draws.
    is_untried: one of a user's own changes whole batches, whose rows may depend on each other.
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
  buckets: Union[Buckets, Mixture, None] = None
  num_bytes: Optional[np.ndarray] = None
  unequal: Any = None
  digest_files: Optional[Callable[[], int]] = None
  copy: Optional[Callable[[], Any]] = None
  augmentations: int = 0
  is_untried: bool = False
  bad_records: Tuple[BadRecords, ...] = ()

  def __repr__(self) -> str:
    return short_repr(self)

  def parse_singly(self, elements: Any, arrays: Sequence[Any], *, epoch: Any,
                   parallel_calls: int) -> Any:
    """Returns what `read` or `parse_example` make of a data set of elements."""
    if self.read is not None:
      return self.read(elements, *arrays, epoch=epoch, parallel_calls=parallel_calls)
    if self.parse_example is not None:
      return elements.map(self.parse_example, num_parallel_calls=parallel_calls)
    return elements

  def parse_together(self, elements: Sequence[Any], arrays: Sequence[Any], *, epoch: Any) -> Any:
    """Returns what `parse_batch` makes of the tensors of a batch of elements."""
    assert self.parse_batch is not None
    return self.parse_batch(*elements, *arrays, **dict(epoch=epoch) if self.takes_epoch else {})


class DataSet(NamedTuple):
  """Both splits, and what a model must know of them.

  Attributes:
    image_shape: `[height, width, channels]` of every image.
    num_classes: labels are 0 … num_classes - 1.
    source: where examples come from and how they are read, a sentence for the start, or ''.
    bad_records: the policy for damaged records and their log; None where there can be none.
  """
  train: Examples
  validation: Optional[Examples] = None
  image_shape: Tuple[int, ...] = ()
  num_classes: int = 0
  source: str = ''
  bad_records: Optional[BadRecords] = None
