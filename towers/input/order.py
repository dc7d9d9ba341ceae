"""Order: in which order a run takes the examples of an epoch, as its checkpoints record it.

A run that resumes in the middle of an epoch takes each example once if the rest of the epoch comes
in the order in which it began. Modes, towers, workers and micro-batches do not change that order;
the seed does, and so would another permutation in another version of towers.

Elements without an index have the order in which they are read. Whether that is the same each time
is found by reading the first ones twice.
"""

import contextlib
import sys
import threading
import time
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.output import write_line
from towers.base.splitmix import as_int64
from towers.base.usage_error import UsageError
from towers.data.composite import encode_dataset
from towers.data.examples import ENDLESS, Examples
from towers.input.plan import Plan, ResumePoint
from towers.tensorflow_v1 import RUN_ERRORS, plain_data_options, private_session, tf

# The name of a tensor in checkpoints that belongs to no variable.
ORDER_TENSOR = 'towers/order'
# The same; it is there where the rest of an epoch is carried.
CARRY_TENSOR = 'towers/carry'
# The same: the batch size, and epoch, position and cuts of the `ResumePoint`, int64 `[3 + …]`.
POINT_TENSOR = 'towers/point'
# Raise it with every change of `permutation`.
_VERSION = 1
# What is read again, whichever ends first: a start takes no longer, however slow the source is.
_MOST_READ = 16
_MOST_SECONDS = 3.0
_SECONDS_TO_WAIT = 0.003  # In which threads fill their buffers.


class Order(NamedTuple):
  """The order of all epochs.

  Attributes:
    seed: of the shuffling; None for the order of the examples.
    shuffle_buffer: elements that shuffle in a buffer; 0 where positions are permuted.
    version: of the way in which positions are permuted.
    window: examples that are sorted by length, or dealt by parts, together; 0 for any.
    lengths: the checksum of their lengths, or of the mixture; 0 without either.
  """
  seed: Optional[int]
  shuffle_buffer: int = 0
  version: int = _VERSION
  window: int = 0
  lengths: int = 0

  def to_array(self) -> np.ndarray:
    """Returns what a checkpoint holds, int64 `[4]`, or `[6]` with buckets or a mixture."""
    is_shuffled = self.seed is not None
    values = [self.version, is_shuffled, as_int64(self.seed or 0), self.shuffle_buffer]
    return np.array(values + ([self.window, self.lengths] if self.window or self.lengths else []),
                    np.int64)

  @staticmethod
  def from_array(values: Sequence[int]) -> 'Order':
    """Returns the order from the values of `to_array`."""
    version, is_shuffled, seed, shuffle_buffer, *buckets = (int(value) for value in values)
    return Order(seed if is_shuffled else None, shuffle_buffer, version, *buckets)

  def is_same(self, other: 'Order') -> bool:
    """Whether epochs come in the same order, whatever version permutes what is not shuffled."""
    grouped = self.window or self.lengths or other.window or other.lengths
    if not grouped and None in (self.seed, other.seed):
      return self.seed is other.seed
    return self.to_array().tolist() == other.to_array().tolist()

  def describe(self) -> str:
    """Returns the order in words."""
    sorted_in = (f', in windows of {self.window:,} examples by length or part'
                 if self.window else '')
    if self.lengths:
      sorted_in += f' (checksum {self.lengths})'
    if self.seed is None:
      return 'not shuffled' + sorted_in
    by = f' by a buffer of {self.shuffle_buffer:,}' if self.shuffle_buffer else ''
    return f'shuffled{by} with seed={self.seed}{sorted_in}'


def read_point(reader: Any, plan: Plan, step: int, examples: int) -> Tuple[ResumePoint, int]:
  """Returns where a checkpoint's data stood after so many steps and examples, and its batch size.

  One that does not record it is taken for one of the plan's batch size.
  """
  if not reader.has_tensor(POINT_TENSOR):
    return plan.point_of(step, examples), plan.batch_size
  batch_size, epoch, position, *cuts = reader.get_tensor(POINT_TENSOR).tolist()
  if position and not cuts:  # As before cuts were recorded.
    was = plan._replace(batch_size=batch_size, accumulate=1)
    cuts = [0, was.examples_per_epoch, batch_size]
  return ResumePoint(step, examples, epoch, position, cuts), batch_size


def explain_batch_size(was: int, plan: Plan) -> str:
  """Returns what it means that a plan resumes after steps `was` examples large; '' for no other."""
  if was == plan.batch_size:
    return ''
  step, examples, epoch, *_ = plan.since
  return (f'batch_size was {was} up to step {step} and is now {plan.batch_size}: epoch {epoch + 1} '
          f'goes on behind the {examples:,} examples seen, each once. What is given in steps, as a '
          f'schedule of global_step, gets {plan.batch_size / was:g} times the examples in each; '
          'what counts epochs or examples goes on with these.')


def explain_order(path: str, *, plan: Plan, order: Order, saved: Optional[Order]) -> str:
  """Returns why a plan that has resumed would miss examples, or '' where it takes each once.

  `order` is of this run, `saved` of the checkpoint: None if it records none, as from versions that
  shuffled every shard on its own.
  """
  done = plan.since.position
  is_same = (saved or Order(None)).is_same(order)
  if done == 0 or is_same:
    return ''
  if saved is None:
    was = 'in an order that it does not record, as those of earlier versions of towers'
    fix = 'resume with the version that wrote it until the epoch ends'
  else:
    was, fix = saved.describe(), 'resume with the settings that it was written with'
    if saved.version != order.version:
      was, fix = f'{was}, by another version of towers', 'resume with that version'
  return (f'{path} was written in the middle of an epoch, after {done:,} of its '
          f'{plan.num_examples:,} examples, {was}; this run is {order.describe()}. The rest of the '
          'epoch takes some examples twice and misses others; later epochs take each once. To lose '
          f'none, {fix}.')


def check_rereading(examples: Examples, num_iterators: int, *, is_trained: bool) -> None:
  """Refuses elements that come otherwise each time they are read, if several iterators share them.

  A single one takes each of them once in an epoch; where it trains, a warning says what is lost.

  Args:
    examples: a split; of one with an index, or a stream, nothing is read.
    num_iterators: of all workers.
    is_trained: whether a run trains on it.

  Raises:
    UsageError: names the first element that differs, and what to write.
  """
  is_stream = examples.num_examples >= ENDLESS
  if examples.elements is None or is_stream or num_iterators == 1 and not is_trained:
    return
  differing = _read_twice(examples, are_made_twice=num_iterators > 1)
  if differing is None:
    return
  found = f'{examples.name}: element {differing} is another one when it is read again'
  fix = ('Give the order a seed, as by np.random.RandomState(0) in a generator, seed=0 in '
         'sample_from_datasets, or sloppy=False (deterministic=True) in an interleave; or leave it '
         'to the program, which shuffles by itself')
  if num_iterators > 1:
    raise UsageError(f'{found}, so that {num_iterators} iterators would take some examples twice '
                     f'and miss others. {fix}; or use input_mode=split, and one worker.')
  write_line(f'WARNING: {found}: no run repeats, and one that resumes within an epoch takes some '
             f'examples twice and misses others. {fix}.', sys.stderr)


def _read_twice(examples: Examples, *, are_made_twice: bool) -> Optional[int]:
  """Returns the number of the first element that is another one when it is read again, or None.

  Two iterators read side by side, so that a source that can be read only once, such as a pipe,
  gives each a single element. Then, for threads that race, one waits and another reads ahead.

  `are_made_twice` is whether each reads a data set of its own, as iterators of the program would.
  """
  seed = tf.get_default_graph().seed  # Of ops without a seed of their own.
  with tf.Graph().as_default() as graph:
    tf.set_random_seed(seed)
    fed = [tf.placeholder(array.dtype, array.shape) for array in examples.arrays]
    assert examples.elements is not None
    try:
      first, second = [encode_dataset(dataset, examples.name).with_options(plain_data_options())
                       for dataset in (examples.copies() if examples.copies else (
                           examples.elements(*fed), examples.elements(*fed)))]
    except Exception:  # It needs the program's graph, where an error of its own is raised too.
      return None
    if not are_made_twice:
      second = first
    waiting, beside, ahead = [tf.data.make_initializable_iterator(dataset) for dataset in (
        first, second, second.prefetch(_MOST_READ))]
    elements = {iterator: tf.nest.flatten(iterator.get_next())
                for iterator in (waiting, beside, ahead)}
    tables = tf.tables_initializer()
  found: List[int] = []

  def read(session, other):
    for iterator in (waiting, other):
      session.run(iterator.initializer, dict(zip(fed, examples.arrays)))
    for number in range(min(examples.num_examples, _MOST_READ)):
      taken = _take(session, elements[waiting])
      if other is ahead and not number:
        time.sleep(_SECONDS_TO_WAIT)
      if taken != _take(session, elements[other]):
        found.append(number)
      if found or time.monotonic() > ends_at:
        return

  def read_all():
    with private_session(graph) as session, contextlib.suppress(*RUN_ERRORS):
      session.run(tables)
      for other in (beside, ahead, ahead):
        if not found and time.monotonic() < ends_at:
          read(session, other)

  ends_at = time.monotonic() + _MOST_SECONDS
  reading = threading.Thread(target=read_all, daemon=True)
  reading.start()
  reading.join(_MOST_SECONDS)  # A source that does not answer is left waiting.
  return found[0] if found else None


def _take(session: Any, element: Any) -> Any:
  """Returns an iterator's next element as what can be compared, also if a part is NaN."""
  try:
    parts = [np.asarray(part) for part in session.run(element)]
  except tf.errors.OutOfRangeError:
    return None
  return [(part.shape, part.tolist() if part.dtype.hasobject else part.tobytes()) for part in parts]
