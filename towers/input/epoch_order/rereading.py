"""Rereading: whether elements without an index come in the same order each time they are read, and
whether a function of batches makes the same rows in other batches.

It is found by reading the first ones twice.
"""

import contextlib
import hashlib
import sys
import time
from typing import Any, List, Optional, Tuple

import numpy as np

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.data.composite import encode_dataset
from towers.data.dataset_ops import read_states
from towers.data.digest import to_int64
from towers.data.examples import ENDLESS, Examples
from towers.process.threads import start_thread
from towers.tensorflow_v1 import RUN_ERRORS, data_sets, private_session, tf

# What is read again, whichever ends first: a start takes no longer, however slow the source is.
_MOST_READ = 16
_MOST_SECONDS = 3.0
_SECONDS_TO_WAIT = 0.003  # In which threads fill their buffers.
_TRIED_ROWS = 4  # Of a function of batches.


def check_rereading(examples: Examples, num_iterators: int, *, is_trained: bool) -> int:
  """Refuses elements that come otherwise each time they are read, if several iterators share them.

  A single one takes each of them once in an epoch; where it trains, a warning says what is lost.
  The iterators are those of all workers. Of a split with an index, or a stream, nothing is read.

  Returns:
    `Order.first`.
  """
  if examples.is_untried and examples.parse_batch is not None:
    _check_rows(examples)
  is_stream = examples.num_examples >= ENDLESS
  if examples.elements is None or is_stream or num_iterators == 1 and not is_trained:
    return 0
  differing, first = _read_twice(examples, are_made_twice=num_iterators > 1)
  if differing is None:
    return to_int64(hashlib.sha256(repr(first).encode())) if first else 0
  found = f'{examples.name}: element {differing} is another one when it is made or read again'
  fix = ('Give the order a seed, as by np.random.RandomState(0) in place of np.random, seed=0 in '
         'sample_from_datasets, or sloppy=False (deterministic=True) in an interleave; or leave it '
         'to the program, which shuffles by itself')
  if num_iterators > 1:
    raise UsageError(f'{found}, so that {num_iterators} iterators would take some examples twice '
                     f'and miss others. {fix}; or use input_mode=split, and one worker.')
  write_line(f'WARNING: {found}: no run repeats, and one that resumes within an epoch takes some '
             f'examples twice and misses others. {fix}.', sys.stderr)
  return 0


def _check_rows(examples):
  """Refuses a function that makes other rows of the first examples than of each half of them."""
  indices = np.arange(min(examples.num_examples, _TRIED_ROWS))
  with tf.Graph().as_default() as graph:
    fed = [tf.placeholder(array.dtype, array.shape) for array in examples.arrays]
    made = [tf.nest.flatten(examples.parse_together(
        [tf.constant(rows)], fed, epoch=tf.constant(0, tf.int64)))
            for rows in (indices, *np.array_split(indices, 2)) if len(rows)]
  whole: List[np.ndarray] = []
  with contextlib.suppress(*RUN_ERRORS), private_session(graph) as session:  # As those of a run.
    whole, *halves = session.run(made, dict(zip(fed, examples.arrays)))
  for index, rows in enumerate(whole):
    others = np.concatenate([half[index] for half in halves])
    is_same = (np.allclose(rows, others, 1e-4, 1e-5, equal_nan=True) if rows.dtype.kind == 'f'
               else np.array_equal(rows, others))
    if not is_same:
      raise UsageError(
          f'{examples.name}: the function of towers.augmented makes other rows of component '
          f'{index} in other batches, and its batch is what one tower takes, by the input mode: '
          'leave of_batches=True out if it mixes examples by mistake, or mix them in the model, by '
          'towers.all_rows.')


def _read_twice(examples: Examples, *, are_made_twice: bool) -> Tuple[Optional[int], Any]:
  """Returns the number of the first element that is another one when it is read again, or None.

  Behind it comes the first element that is read, or None.

  Two iterators read side by side, so that a source that can be read only once, such as a pipe,
  gives each a single element. Then, for threads that race, one waits and another reads ahead.

  `are_made_twice` is whether each reads a data set of its own, as iterators of the program would.
  """
  seed = tf.get_default_graph().seed  # Of ops without a seed of their own.
  with tf.Graph().as_default() as graph:
    tf.set_random_seed(seed)
    fed = [tf.placeholder(array.dtype, array.shape) for array in examples.arrays]
    copy: Any = examples.copy or examples.elements
    states = read_states()
    try:
      first, second = [
          data_sets.plain(encode_dataset(copy(*fed), examples.name))
          for _ in range(2)]
    except Exception:  # It needs the program's graph, where an error of its own is raised too.
      return None, None
    if not are_made_twice and states == read_states():  # Else each run would make another.
      second = first
    waiting, beside, ahead = [tf.data.make_initializable_iterator(dataset) for dataset in (
        first, second, second.prefetch(_MOST_READ))]
    elements = {iterator: tf.nest.flatten(iterator.get_next())
                for iterator in (waiting, beside, ahead)}
  found: List[int] = []
  elements_read: List[Any] = []

  def read(session, other):
    for iterator in (waiting, other):
      session.run(iterator.initializer, dict(zip(fed, examples.arrays)))
    for number in range(min(examples.num_examples, _MOST_READ)):
      taken = _take(session, elements[waiting])
      elements_read.append(taken)
      if other is ahead and not number:
        time.sleep(_SECONDS_TO_WAIT)
      if taken != _take(session, elements[other]):
        found.append(number)
      if found or time.monotonic() > ends_at:
        return

  def read_all():
    with contextlib.suppress(*RUN_ERRORS), private_session(graph) as session:
      for other in (beside, ahead, ahead):
        if not found and time.monotonic() < ends_at:
          read(session, other)

  ends_at = time.monotonic() + _MOST_SECONDS
  reading = start_thread(read_all, 'rereading')
  reading.join(_MOST_SECONDS)  # A source that does not answer is left waiting.
  return next(iter(found), None), next(iter(elements_read), None)


def _take(session: Any, element: Any) -> Any:
  """Returns an iterator's next element as what can be compared, also if a part is NaN."""
  try:
    parts = [np.asarray(part) for part in session.run(element)]
  except tf.errors.OutOfRangeError:
    return None
  return [(part.shape, part.tolist() if part.dtype.hasobject else part.tobytes()) for part in parts]
