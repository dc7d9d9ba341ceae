"""Data sets of your own: any tf.data.Dataset of single examples as a split.

A data set has no index, so every shard reads all of it, a resumed run reads what it skips, and
shuffling holds examples in memory. What its ops tell is checked at once; that shapes are equal, and
that it ends where it should, is checked while it is read.
"""

import contextlib
import itertools
import os
import sys
import threading
import time
from typing import Any, Callable, Iterator, Optional

import numpy as np

from towers.base.json_files import read_sealed, write_sealed
from towers.base.later import as_written, data_sets, private_session, tf
from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError, check_parameters
from towers.data.arrays import check_name
from towers.data.components import find_components, naming_errors
from towers.data.composite import encode_dataset
from towers.data.dataset_ops import check_ops
from towers.data.examples import BY_HAND, ENDLESS, Examples
from towers.process.threads import start_thread

_AS_FUNCTION = 'as from_dataset(lambda: tf.data.TextLineDataset(path))'
_FIX = 'crop or resize it in the data set, or give the split to towers.padded'
# What tf.data answers in place of a number.
_ENDLESS, _UNKNOWN = -1, -2
_COUNTED_AT_ONCE = 1024
_WINDOW = 16  # Elements that are read at a time, or a few more.
_SECONDS_BETWEEN_LINES = 5.0


def from_dataset(dataset: Any, num_examples: Optional[int] = None, *, shuffle_buffer: int = 10000,
                 count_file: Optional[str] = None, name: str = 'examples') -> Examples:
  """Makes a split of a tf.data.Dataset of single examples in a fixed order.

    examples = towers.from_dataset(lambda: tf.data.TextLineDataset('train.csv').map(parse))

  Args:
    dataset: a function that makes the data set in every graph that reads it; or a data set, which
      belongs to the graph in which it was made.
    num_examples: of one pass. None for what TensorFlow knows, or else a count by a first pass.
    shuffle_buffer: examples that each iterator holds in memory where a program shuffles; 0 for
      all.
    count_file: keeps the count of a first pass for later runs.
    name: of the split in messages and name scopes: letters, digits and underscores.

  Returns:
    Examples. Its batches have the structure of an element, each tensor `[batch, ...]`.

  Raises:
    UsageError: a data set that is batched, endless, shuffled anew at each pass, empty or of another
      graph; a number that it contradicts.
  """
  check_name(name)
  for setting, value, least in (('num_examples', num_examples, 1),
                                ('shuffle_buffer', shuffle_buffer, 0)):
    if value is not None and value < least:
      raise UsageError(f'{name}: {setting} is {value}; give at least {least}.')

  def copy() -> Any:
    return data_sets.copy_dataset(dataset) if _is_made(dataset, name) else _call(dataset, name)

  with tf.Graph().as_default():
    made = copy()
    check_ops(made, name)
    made = encode_dataset(made, name)
    components = find_components(made, name)
    known = _find_size(made, name)
    if _keeps_a_file(made):
      _read_all(made, name, 'writing the cache')
    is_static = all(part.is_of_rows or part.shape.is_fully_defined() for part in components.parts)
    if not is_static:
      with _explained(name):
        first = next(_take(made.take(1)), None)
      if first is None:
        known, num_examples = 0, None
      else:
        components = components.with_shapes_of(first)
    if known == _UNKNOWN:
      count = num_examples or _read_count(count_file, name) or _count(made, count_file, name)
    elif num_examples in (None, known):
      count = known
    else:
      raise UsageError(f'{name}: num_examples is {num_examples}, and the data set has {known}; '
                       'leave num_examples out.')
    if count == 0:
      raise UsageError(f'{name}: the data set is empty, so there is nothing to train on.')

  def elements() -> Any:
    made = encode_dataset(_make(dataset, name), name)
    return made if known == count else _end_after(made, count, name)

  def held() -> Any:
    return elements().map(as_written(lambda *example: components.hold(example, fix=_FIX)))

  examples = Examples(num_examples=count, elements=elements, shuffle_buffer=shuffle_buffer,
                      name=name, copy=copy)
  return examples if is_static else examples._replace(elements=held, unequal=examples)


def from_stream(make: Optional[Callable[[], Iterator[Any]]] = None, like: Any = None, *,
                name: str = 'stream') -> Examples:
  """Makes a split of examples without a known number or an end.

    def simulate():
      while True:
        yield np.float32([…]), np.int32(1)

    program = towers.Program(model, train=towers.from_stream(simulate), …)

  It has no epochs and is not shuffled, and a run that resumes begins it anew. An example is made
  `staging_depth` steps before the one that takes it: with 0, within that step.

  Args:
    make: a function without arguments, as a generator is, that returns an iterator of examples,
      each an array or number, or a tuple or dict of these, of the same shapes. An iterator that
      waits, as for a queue, lets the step wait. Each of several workers calls it, and takes its
      share. None where `session.train(batch)` gives each batch.
    like: an example; None to make one, which is dropped.
    name: of the split in messages and name scopes.

  Raises:
    UsageError: `make` is no such function.
  """
  check_name(name)
  try:
    first = next(iter(make())) if like is None else like  # type: ignore[misc]
  except (TypeError, StopIteration) as error:
    raise UsageError(f'{name}: towers.from_stream takes a function that returns an iterator of '
                     f'examples, as a generator does, or like=example, for session.train(batch), '
                     f'and got {make!r:.80}: {error!r}.') from None
  arrays = tf.nest.map_structure(np.asarray, first)
  types = tf.nest.map_structure(lambda array: tf.as_dtype(array.dtype), arrays)
  shapes = tf.nest.map_structure(lambda array: tf.TensorShape(array.shape), arrays)

  def elements() -> Any:
    if make is None:  # Its types and shapes alone are asked for.
      return tf.data.Dataset.from_tensors(arrays)
    return _make(lambda: tf.data.Dataset.from_generator(make, types, shapes), name)

  return Examples(BY_HAND if make is None else ENDLESS, elements=elements, name=name)


def _make(dataset: Any, name: str) -> Any:
  """Returns the data set in the program's graph, outside of any function of another data set."""
  with tf.init_scope(), tf.device('/cpu:0'):
    if not _is_made(dataset, name):
      return _call(dataset, name)
    if data_sets.find_last_op(dataset).graph is not tf.get_default_graph():
      raise UsageError(f'{name}: the data set was made in another graph than the program: make it '
                       f'in the same one, or give a function that makes it, {_AS_FUNCTION}.')
    return dataset


def _is_made(dataset: Any, name: str) -> bool:
  """Returns whether this is a data set, and not a function that makes one."""
  from towers.graph.walk import find_needed
  if not data_sets.is_dataset(dataset):
    if not callable(dataset):
      raise UsageError(f'{name}: from_dataset takes a tf.data.Dataset, or a function without '
                       f'arguments that makes one, and not a {type(dataset).__name__}.')
    return False
  op = data_sets.find_last_op(dataset)
  if op is None:
    raise UsageError(f'{name}: the data set was made in eager mode, and programs are graphs: give '
                     f'a function that makes it, {_AS_FUNCTION}.')
  for needed in find_needed([op]):
    if needed.type == 'Placeholder':
      raise UsageError(f"{name}: the data set needs the placeholder '{needed.name}', which nothing "
                       'feeds: give arrays to towers.from_arrays instead.')
  return True


def _call(function: Callable[[], Any], name: str) -> Any:
  check_parameters(function, f'{name}: the function given to from_dataset',
                   fix='let it make the data set by itself')
  with naming_errors((), f'{name}: the function given to from_dataset'):
    made = function()
  if not data_sets.is_dataset(made):
    raise UsageError(f'{name}: the function given to from_dataset returns a {type(made).__name__}; '
                     'it must return a tf.data.Dataset, without an iterator.')
  last_op = data_sets.find_last_op(made)
  if last_op is not None and last_op.graph is not tf.get_default_graph():
    raise UsageError(f'{name}: the function given to from_dataset goes on from a data set that was '
                     'made outside of it, in another graph: make that inside too.')
  return made


def _find_size(dataset: Any, name: str) -> int:
  """Returns how many elements TensorFlow knows a data set to have, or _UNKNOWN."""
  with _explained(name):
    [size] = _take(tf.data.Dataset.from_tensors(tf.data.experimental.cardinality(dataset)))
  if size == _ENDLESS:
    raise UsageError(f'{name}: the data set is endless, and the program repeats it by itself: '
                     'leave .repeat() out, or cut it with .take(n), or give the Python generator '
                     'of a stream to towers.from_stream.')
  return int(size)


def _take(dataset: Any) -> Iterator[Any]:
  """Yields the elements of a data set of the default graph."""
  iterator = tf.data.make_initializable_iterator(data_sets.plain(dataset))
  element = iterator.get_next()
  with private_session(tf.get_default_graph()) as session:
    session.run(iterator.initializer)
    while True:
      try:
        yield session.run(element)
      except tf.errors.OutOfRangeError:
        return


@contextlib.contextmanager
def _explained(name: str, find_place: Callable[[], str] = str) -> Iterator[None]:
  """Raises what TensorFlow raises as a UsageError, with the place where it did."""
  from towers.tensorflow_v1 import RUN_ERRORS
  try:
    yield
  except RUN_ERRORS as error:
    raise UsageError(
        f'{name}: a first look at the data set fails{find_place()}: {find_reason(error)}. '
        'If it needs a table that this look does not have, make that in a function, which makes '
        'the data set too; if variables of the program, give num_examples and set all shapes: then '
        'nothing is read before the program starts.') from None


def _count(dataset: Any, count_file: Optional[str], name: str) -> int:
  """Returns the number of elements by a pass over all of them, says so, and keeps it."""
  began = time.monotonic()
  count = _read_all(dataset, name, 'counting the examples')
  hint = f'; num_examples={count} or a count_file spares the next run this pass'
  write_line(f'{name}: counted {count:,} examples in {time.monotonic() - began:.1f} s'
             f"{'' if count_file else hint}", sys.stderr)
  if count_file and count:
    try:
      write_sealed(count_file, {'num_examples': count})
    except OSError as error:
      write_line(f"{name}: the count is not kept in count_file '{count_file}': {error.strerror}",
                 sys.stderr)
  return count


def _read_all(dataset: Any, name: str, what: str) -> int:
  """Returns the number of elements by a pass over all of them; says now and then `what` it does."""
  count, is_over = 0, threading.Event()

  def tell():
    while not is_over.wait(_SECONDS_BETWEEN_LINES):
      write_line(f'{name}: {what} of the data set, at least {count:,} so far; num_examples=… '
                 'spares this pass, and what has no end goes to towers.from_stream', sys.stderr)

  start_thread(tell, 'counting')
  ones = dataset.map(as_written(lambda *_: tf.constant(0, tf.uint8))).batch(_COUNTED_AT_ONCE)
  try:
    with _explained(name, lambda: _find_place(dataset, count)):
      for batch in _take(ones):
        count += len(batch)
  finally:
    is_over.set()
  return count


def _find_place(dataset: Any, begin: int) -> str:
  """Returns in words which example behind the first `begin` cannot be read; '' if all can."""
  from towers.tensorflow_v1 import RUN_ERRORS
  if _keeps_a_file(dataset):  # Half of it is there now, over which a second pass fails.
    return ''
  number = begin + 1
  try:
    for _ in _take(dataset.skip(begin)):
      number += 1
  except RUN_ERRORS:
    return f' at example {number:,}, as counted from 1, which is the line of a text file'
  return ''


def _keeps_a_file(dataset: Any) -> bool:
  """Whether a data set has a `.cache(file)` that is not whole yet.

  It is written before the towers read it: TensorFlow lets one iterator write it, from the first
  element to past the last one, which those of a program never ask for.
  """
  from towers.graph.walk import find_needed
  caches = [op for op in find_needed([data_sets.find_last_op(dataset)])
            if op.type.startswith('CacheDataset')]
  files = [data_sets.get_constant(op.inputs[1]) for op in caches]
  return any(file and not os.path.exists(os.fsdecode(file) + '.index') for file in files)


def _read_count(count_file: Optional[str], name: str) -> Optional[int]:
  """Returns the count that an earlier run kept, or None."""
  if count_file is None or not os.path.exists(count_file):
    return None
  try:
    return read_sealed(count_file, dict(num_examples=int))['num_examples']
  except (OSError, ValueError) as error:
    raise UsageError(f"{name}: count_file '{count_file}' holds no count ({error}): remove "
                     'it.') from None


def _end_after(dataset: Any, count: int, name: str) -> Any:
  """Returns a data set that fails before its last element if more would follow.

  Nobody asks for an element after the last one. So elements are read in windows, of a size with
  which the last one and the one after it, if there is any, are in the same window.
  """
  size = next(size for size in itertools.count(_WINDOW) if count % size)
  message = (f'{name} promised num_examples={count}, but its data set has more elements: correct '
             'the number, or remove the count_file.')

  def refuse(*_):
    with tf.control_dependencies([tf.Assert(False, [message])]):
      return tf.constant(False)

  def check(begin, window):
    elements, left = tf.data.Dataset.zip(window), count - begin
    # What lies beyond comes first.
    return elements.skip(left).filter(as_written(refuse)).concatenate(elements.take(left))

  begins = tf.data.Dataset.range(0, count + size, size)
  windows = dataset.take(count + 1).window(size)
  return tf.data.Dataset.zip((begins, windows)).flat_map(as_written(check))
