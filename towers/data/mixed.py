"""Mixtures: several splits, or the classes of one, in given shares of each batch.

  numbers of examples ──► split by part ──► read or gathered, each by its own ──► in their order

Which numbers, and in which order, says `towers.input.epoch_order.mixing`.
"""

import functools
from fractions import Fraction
from typing import Any, List, Mapping, Optional, Sequence, Union

import numpy as np

from towers.base.later import as_written, tf
from towers.base.usage_error import UsageError, check_same_number
from towers.data.arrays import check_name
from towers.data.augmented import make_singly
from towers.data.digest import digest_all
from towers.data.examples import Examples, Mixture


def mixed(parts: Union[Mapping[Any, Examples], Examples],
          shares: Optional[Mapping[Any, float]] = None, *, by: Any = None, epoch_of: Any = None,
          per_batch: bool = True, name: str = 'mixed') -> Examples:
  """Returns a split of several ones in given shares, or of the classes of one.

    towers.mixed({'web': web, 'books': books, 'code': code}, {'web': 5, 'books': 2, 'code': 1})
    towers.mixed(towers.from_arrays(images, labels), by=labels)    # as many of each class

  Every global batch, on any towers, holds a number of each part that is less than one away from its
  share, and so does every epoch up to any batch. A part that ends before the epoch does begins
  again, shuffled anew. The shares are those of an epoch, in whole examples.

  Args:
    parts: splits of one structure by name, whose examples can be read by number; or one split.
    shares: by name, in any unit; None for equal ones.
    by: of one split, to which part each example belongs, `[num_examples]`, such as its label.
    epoch_of: the part that an epoch takes once; None for the one that lasts longest, so that an
      epoch takes every example.
    per_batch: whether batches have the shares too; False for epochs alone, shuffled as a whole.
    name: of the split in messages and name scopes.

  Raises:
    UsageError: parts that do not fit together, or shares that are not theirs.
  """
  check_name(name)
  members = None
  if isinstance(parts, Mapping) and parts and by is None:
    splits = list(parts.values())
    sizes = {key: _check(part, name).num_examples for key, part in parts.items()}
  elif isinstance(parts, Examples) and np.shape(by) == (parts.num_examples,):
    splits = [_check(parts, name)]
    keys, found = np.unique(by, return_counts=True)
    sizes, members = dict(zip(keys.tolist(), found.tolist())), np.argsort(by, kind='stable')
  else:
    if isinstance(parts, Examples) and np.ndim(by) == 1:
      check_same_number(len(by), f'entries in by= of {name}', parts.num_examples, 'examples',
                        fix='give the part of each example, as by=labels.')
    raise UsageError(f'{name}: towers.mixed takes splits by name, as {{"large": large, "small": '
                     'small}, or one split with the part of each example, as by=labels.')
  counts = _count(sizes, dict.fromkeys(sizes, 1) if shares is None else shares, epoch_of, name)
  mixture = Mixture(tuple(sizes.values()), counts, per_batch, members)

  def join(splits):
    return _join(splits, name)._replace(num_examples=mixture.num_examples, buckets=mixture)

  joined = join(splits)
  if any(split.unequal for split in splits):
    joined = joined._replace(unequal=join([split.unequal or split for split in splits]))
  return joined


def _count(sizes, shares, epoch_of, name):
  """Returns how many examples of each part an epoch takes, all of `epoch_of`."""
  if set(shares) != set(sizes) or not all(
      isinstance(share, (int, float, np.number)) and 0 < share < np.inf
      for share in shares.values()):
    raise UsageError(f'{name}: the shares are {shares!r:.200}: give a number above 0 for each of '
                     f'{list(sizes)!r:.200}.')
  exact = {key: Fraction(str(shares[key])) for key in sizes}
  if epoch_of is None:
    epoch_of = max(sizes, key=lambda key: sizes[key] / exact[key])
  if epoch_of not in sizes:
    raise UsageError(f'{name}: epoch_of is {epoch_of!r}: choose one of {list(sizes)!r:.200}.')
  part, whole = exact[epoch_of], sum(exact.values())
  total = round(sizes[epoch_of] * whole / part)
  wanted = {key: total * share / whole for key, share in exact.items()}
  counts = {key: int(number) for key, number in wanted.items()}
  counts[epoch_of] = sizes[epoch_of]
  others = sorted((key for key in sizes if key != epoch_of), reverse=True,
                  key=lambda key: wanted[key] - counts[key])
  for key in others[:total - sum(counts.values())]:
    counts[key] += 1
  missing = [key for key, count in counts.items() if count == 0]
  if missing:
    raise UsageError(f'{name}: an epoch of {epoch_of!r} takes {total:,} examples, and none of '
                     f'{missing!r:.200}: give these larger shares, or another epoch_of.')
  return tuple(counts[key] for key in sizes)


def _join(parts: List[Examples], name: str) -> Examples:
  """Returns a split of all examples of the parts, one part after the other, each by number."""
  if len({part.marks_bad for part in parts}) > 1:
    raise UsageError(f'{name}: some parts leave out damaged records and some have none to leave '
                     'out: write on_bad_record=fail.')
  sizes = [part.num_examples for part in parts]
  joined = Examples(
      sum(sizes), arrays=tuple(array for part in parts for array in part.arrays), name=name,
      marks_bad=parts[0].marks_bad, digest_files=functools.partial(digest_all, parts),
      bad_records=tuple(log for part in parts for log in part.bad_records))
  join = _Join(parts, np.cumsum(sizes), name)
  if all(part.parse_batch and not (part.read or part.parse_example) for part in parts):
    return joined._replace(parse_batch=join.gather,
                           is_gathered=all(part.is_gathered for part in parts))
  return joined._replace(read=join.read)


def _check(part, name):
  """Returns a part, if it is one."""
  if not isinstance(part, Examples):
    raise UsageError(f'{name}: a part is {part!r:.60}: give towers.Examples, as those of '
                     'towers.from_arrays.')
  why = None
  if part.elements is not None:
    why = ('cannot be read by number, as a mixture reads its parts: write TFRecords and use '
           'towers.from_tfrecords, or give arrays to towers.from_arrays')
  elif part.augmentations or part.takes_epoch:
    why = ('is augmented, by draws that would be the same where an example comes twice in an '
           'epoch: write towers.augmented(towers.mixed(…), function)')
  elif part.padding is not None or part.buckets is not None:
    why = 'is padded, sorted or mixed: write towers.padded(towers.mixed(…)), of plain splits'
  if why:
    raise UsageError(f'{name}: the part {part.name} {why}.')
  return part


class _Join:
  """Takes examples of several parts by number; the number beyond the last begins again."""

  def __init__(self, parts: Sequence[Examples], ends: np.ndarray, name: str):
    self._parts, self._ends, self._name = parts, ends, name

  def gather(self, numbers: Any, *arrays: Any) -> Any:
    """Returns the batch of these numbers, of any shape, of parts that gather batches."""
    with tf.device('/cpu:0'):
      numbers, parts = self._find(numbers)
      if len(self._parts) == 1:
        return self._parts[0].parse_together([numbers], arrays, epoch=None)
      own = tf.dynamic_partition(numbers, parts, len(self._parts))
      places = tf.reshape(tf.range(tf.size(numbers)), tf.shape(numbers))
      rows = tf.dynamic_partition(places, parts, len(self._parts))
      batches = [part.parse_together([mine], given, epoch=None)
                 for part, mine, given in zip(self._parts, own, self._share(arrays))]

      def stitch(*tensors):
        flat = tf.dynamic_stitch(rows, list(tensors))
        found = tf.reshape(flat, tf.concat([tf.shape(numbers), tf.shape(flat)[1:]], 0))
        found.set_shape(numbers.shape.concatenate(flat.shape[1:]))
        return found

      return self._alike(lambda: tf.nest.map_structure(stitch, *batches))

  def read(self, numbers: Any, *arrays: Any, epoch: Any, parallel_calls: int) -> Any:
    """Returns a data set of the examples of a data set of numbers, in their order."""
    found = numbers.map(as_written(self._find))

    def make(index, part, given):
      own = found.filter(as_written(lambda _, part: tf.equal(part, index))).map(
          as_written(lambda number, _: number))
      return make_singly(part, own, given, epoch, parallel_calls)

    made = [make(index, part, given)
            for index, (part, given) in enumerate(zip(self._parts, self._share(arrays)))]
    if len(made) == 1:
      return made[0]
    choices = found.map(as_written(lambda _, part: tf.cast(part, tf.int64)))
    return self._alike(lambda: tf.data.experimental.choose_from_datasets(made, choices))

  def _find(self, numbers):
    """Returns the own numbers of examples in their parts, and these."""
    numbers %= self._ends[-1]
    parts = tf.reduce_sum(tf.cast(numbers[..., None] >= self._ends[:-1], tf.int32), -1)
    return numbers - tf.gather(np.append(0, self._ends[:-1]), parts), parts

  def _share(self, arrays):
    """Returns for each part its own of all arrays."""
    given = iter(arrays)
    return [[next(given) for _ in part.arrays] for part in self._parts]

  def _alike(self, function):
    try:
      return function()
    except (TypeError, ValueError) as error:
      raise UsageError(f'{self._name}: the parts of towers.mixed differ in structure, dtypes or '
                       f'shapes: give all the same. TensorFlow says: {error}') from None
