"""Records: TFRecord files of any schema, as a split whose elements are indices.

  indices ──► 32 at a time: read by the files' index, checksums checked
          ──► one by one: parse, your function from a record to an example

Nothing but the index stays in memory. The first record is parsed at once, so that a function that
does not fit the files fails before a graph is built; unknown shapes become those of one example.
"""

import glob
import os
from typing import Any, Callable, List, Mapping, NamedTuple, Sequence, Tuple, Union

import numpy as np

from towers.base.later import as_written, private_session, tf
from towers.base.paths import check_local_path
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError, find_own_line
from towers.data.arrays import check_name
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.components import Components, describe_shapes, find_components
from towers.data.composite import encode_example
from towers.data.dataset_ops import check_draws, find_parsing, no_python_draws
from towers.data.examples import Examples
from towers.data.formats.example import make_quotable, read_example
from towers.data.formats.tfrecord import FileIndex, Records, load_index
from towers.data.stand_ins import map_chunks
from towers.process.threads import Threads

_THREADS = 16
# Records in a row that cannot be parsed, at the start of a split.
_MOST_TRIED = 20
_FIX = ('pad or resize it in parse, crop it at random where towers.augmented decodes it, or give '
        'the split to towers.padded')


def from_tfrecords(paths: Union[str, 'os.PathLike[str]', Sequence[Any]],
                   parse: Callable[[Any], Any], *, name: str = 'examples',
                   on_bad_record: str = 'fail') -> Examples:
  """Makes a split of TFRecord files of your own schema.

    def parse(record):
      features = tf.io.parse_single_example(record, {
          'x': tf.io.FixedLenFeature([5], tf.float32), 'y': tf.io.FixedLenFeature([], tf.int64)})
      return features['x'], features['y']

    examples = towers.from_tfrecords('data/train-*.tfrecord', parse, name='train')

  Args:
    paths: a file, a pattern as 'data/train-*', or a list of these, whose order counts.
    parse: a function from a record, a scalar string tensor, to an example: a tensor, or tensors in
      a tuple or dict, of the same shapes for all records unless the split is `padded`.
    name: of the split in messages and name scopes: letters, digits and underscores.
    on_bad_record: 'fail' ends a run at a record that is damaged or that `parse` fails on, with
      file, offset and index; 'skip' leaves it out and logs these.

  Returns:
    Examples. Its batches have the structure of what `parse` returns, each tensor `[batch, ...]`.

  Raises:
    UsageError: no such files, compressed files, damage by the policy, or a function that fails on
      the first record or returns tensors that cannot be batched.
  """
  check_name(name)
  bad_records = BadRecords(on_bad_record, name=name)
  return record_examples(open_records(find_files(paths, name), bad_records), parse, name=name,
                         bad_records=bad_records)


def find_files(paths: Any, name: str) -> List[str]:
  """Returns the files that paths and patterns name, in order."""
  found: List[str] = []
  for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
    path = os.fspath(path)
    check_local_path('paths', path)
    if os.path.isdir(path):
      raise UsageError(f"{name}: '{path}' is a folder: name its files, as in "
                       f"'{os.path.join(path, '*.tfrecord')}'.")
    matches = [path] if os.path.exists(path) else sorted(filter(os.path.isfile, glob.glob(path)))
    if not matches:
      raise UsageError(f"{name}: '{path}' names no file (from {os.getcwd()}): check the path, or "
                       'the pattern.')
    found += matches
  if len(set(map(os.path.realpath, found))) < len(found):
    raise UsageError(f'{name}: a file is named twice among {len(found)}: its records would count '
                     'twice; name each once.')
  if not found:
    raise UsageError(f'{name}: no paths: name at least one file.')
  return found


def open_records(paths: Sequence[str], bad_records: BadRecords, *, counts: Mapping[str, int] = {},
                 counted_by: str = '') -> Records:
  """Returns the records of files, read by index.

  `counts` are how many records a file should have, by its name, as the file `counted_by` says.
  """
  with Threads(_THREADS) as threads:
    indexes = list(threads.map(load_index, paths))
  for index in indexes:
    check_damage(index, bad_records)
    count = counts.get(os.path.basename(index.path))
    if count is not None and count != len(index.lengths):
      bad_records.report(index.path, 0, None, f'the file has {len(index.lengths):,} records, and '
                         f'{counted_by} counts {count:,}')
  records = Records(indexes)
  if not len(records):
    raise UsageError(f'{os.path.dirname(paths[0])}: no record in {len(paths):,} files, so there is '
                     'nothing to read.')
  return records


def check_damage(index: FileIndex, bad_records: BadRecords) -> None:
  """Reports a damaged length, which loses the rest of its file, or an empty file.

  Raises:
    UsageError: under the policy 'fail'.
  """
  damage = index.damage
  if damage is not None:
    bad_records.report(
        index.path, damage.offset, damage.record,
        f'{damage.reason}; the rest of the file, {damage.num_bytes:,} bytes, is lost')
  elif not len(index.lengths):
    bad_records.report(index.path, 0, None, 'the file is empty')


def record_examples(records: Records, parse: Callable[[Any], Any], *, name: str,
                    bad_records: BadRecords) -> Examples:
  """Makes a split of records; see `from_tfrecords`."""
  def parse_to_dense(record):
    with no_python_draws(f'{name}: parse'):
      return encode_example(parse(record), name)

  payload, first = _parse_first(records, parse_to_dense, name, bad_records)
  reader = _Reader(records, parse_to_dense, first.one_shape, payload, first.kind,
                   np.zeros(len(records), bool), bad_records)
  unequal = Examples(num_examples=len(records), num_bytes=records.lengths, name=name,
                     read=reader._replace(components=first.any_sizes).read,
                     marks_bad=bad_records.skips, bad_records=(bad_records,))
  return unequal._replace(read=reader.read, unequal=unequal)


class _Parsed(NamedTuple):
  """A record that was parsed alone."""
  one_shape: Components  # Of its example, with their shapes.
  any_sizes: Components  # The same with sizes that may differ.
  kind: str  # 'Example' or 'SequenceExample' if `parse` takes all of a record as one; else ''.


def _parse_alone(parse, payload: bytes, name: str) -> _Parsed:
  """Parses a record in a graph and a session of its own.

  Raises:
    BadRecordError: it is not what `parse` takes, or `parse` fails on it.
    UsageError: `parse` fails on any record, or returns what cannot be batched.
  """
  with tf.Graph().as_default() as graph:
    record = tf.placeholder(tf.string, [], 'record')
    try:
      dataset = tf.data.Dataset.from_tensors(record).map(as_written(parse))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
      line = find_own_line(error.__traceback__)
      text = (f'{name}: parse cannot be built: {type(error).__name__}, {error}'
              f'{line and ", at "}{line}')
      if '[<tf.Tensor' in str(error):
        text += ' A list is one tensor: for several write a tuple.'
      raise UsageError(text) from error
    check_draws(dataset, name)
    components = find_components(dataset, name)
    kind, quotes = find_parsing(dataset)
    if kind:
      read_example(payload, kind)
    # First without its error, of which Python may not be told.
    silent, loud = (tf.data.make_initializable_iterator(made) for made in (
        dataset.apply(tf.data.experimental.ignore_errors()), dataset))
    example, fails = silent.get_next(), loud.get_next()
    with private_session(graph) as session:
      try:
        session.run(silent.initializer, {record: payload})
        example = session.run(example)
      except tf.errors.OutOfRangeError:
        reason = 'where its texts are not ASCII'
        try:
          session.run(loud.initializer, {record: make_quotable(payload, kind, quotes=quotes)})
          session.run(fails)
        except tf.errors.OpError as error:
          reason = find_reason(error)
        raise BadRecordError(f'parse fails: {reason}') from None
  return _Parsed(components.with_shapes_of(example), components.with_ranks_of(example), kind)


def _parse_first(records, parse, name, bad_records) -> Tuple[bytes, _Parsed]:
  """Returns the first record that can be parsed, as it is and parsed; reports those before it."""
  for index in range(min(len(records), _MOST_TRIED)):
    [payload] = records.read([index])
    try:
      if isinstance(payload, BadRecordError):
        raise payload
      return payload, _parse_alone(parse, payload, name)
    except BadRecordError as error:
      bad_records.report(*records.place(index), str(error))
  raise UsageError(f'{name}: none of the first {index + 1} records can be parsed: compare parse '
                   'with what wrote the files.')


class _Reader(NamedTuple):
  """Reads a split: from indices to examples."""
  records: Records
  parse: Callable[[Any], Any]
  components: Components  # Of every example, with the shapes to which it is held.
  substitute: bytes  # A record that can be parsed, in place of those that cannot be read.
  kind: str  # What `parse` takes all of a record as, see `_Parsed`.
  is_known: np.ndarray  # Of each record, whether it was seen to be of that kind.
  bad_records: BadRecords

  def read(self, indices: Any, *, epoch: Any, parallel_calls: int) -> Any:
    """Returns the examples of a data set of indices, in its order."""
    del epoch
    return map_chunks(
        indices, self._read_chunk,
        lambda record: self.components.hold(self.parse(record), fix=_FIX),
        blank=self.components.zeros, explain=self._explain, place=self.records.place,
        bad_records=self.bad_records, name=self.components.name, parallel_calls=parallel_calls)

  def _read_chunk(self, indices):
    """Returns a column each of indices, records, and whether they could be read."""
    payloads, is_read = tf.numpy_function(self._read, [indices], [tf.string, tf.bool])
    for column in (payloads, is_read):
      column.set_shape([None])
    return indices, payloads, is_read

  def _read(self, indices):
    payloads, is_read = self.records.read(indices), np.ones(len(indices), bool)
    for row, (payload, is_known) in enumerate(zip(payloads, self.is_known[indices].tolist())):
      try:
        if isinstance(payload, BadRecordError):
          raise payload
        if self.kind and not is_known:
          read_example(payload, self.kind)  # An op may be given no other.
      except BadRecordError as error:
        self.bad_records.report(*self.records.place(indices[row]), str(error))
        payloads[row], is_read[row] = self.substitute, False
    self.is_known[indices[is_read]] = True
    return np.array(payloads, object), is_read

  def _explain(self, record: bytes) -> str:
    """Returns why a record that was read cannot be parsed."""
    try:
      components = _parse_alone(self.parse, record, self.components.name).one_shape
    except BadRecordError as error:
      return str(error)
    for part, found in zip(self.components.parts, components.parts):
      if not found.shape.is_compatible_with(part.shape):
        return describe_shapes(part, found.shape.as_list(), _FIX)
    return 'parse fails, and then does not: it must do the same each time'
