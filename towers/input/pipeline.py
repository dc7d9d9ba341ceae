"""The three input modes: from the examples of one split to one batch per tower, all on the CPU.

  split    one iterator, one get_next of the global batch, tf.split over the towers
  next     one iterator over tower-sized batches, one get_next per tower
  shard    one iterator per tower over its shard: every N-th place of each batch

Each of several workers builds the inputs of its own towers over the worker's shard of the
positions; `shard` divides that further.

In every mode step s of an epoch takes the same global batch (see `plan`), shuffled or not, so the
modes differ in speed alone. Epochs repeat without end, each shuffled by (seed, epoch), and a run
enters at any step.
"""

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np

from towers.base.cores import count_cores
from towers.base.usage_error import UsageError, check_choice
from towers.data.examples import Examples
from towers.input.batch import Batch
from towers.input.cut import leading_size
from towers.input.epoch_dataset import build_epochs
from towers.input.parse import is_gathered, parse_batches
from towers.input.plan import Plan, Shard, dealt
from towers.input.resume_point import Order
from towers.input.row_offsets import build_sharding
from towers.placement.host import HOST
from towers.tensorflow_v1 import tf

INPUT_MODES = ('split', 'next', 'shard')

# The types of the ops that take an element from an iterator.
GET_NEXTS = ('IteratorGetNext', 'IteratorGetNextSync')
_PREFETCHED_BATCHES = 2


class Inputs(NamedTuple):
  """The iterators of one split.

  Attributes:
    next_batches: builds the get_next ops where it is called (inside a branch of tf.cond, for
      instance) and returns one `Batch` per tower.
    initializer: the op that starts all iterators of the split, run with `feed_dict`.
    feed_dict: `feed_dict(step, resumed=None)` is the feed of `initializer` that makes `step` the
      next one, by the plan of a run that has resumed.
    shards: of the iterators.
    needs_threads: whether a batch is so much work that several threads should share it.
  """
  name: str
  plan: Plan
  next_batches: Callable[[], List[Batch]]
  initializer: Any
  feed_dict: Callable[..., Dict[Any, Any]]
  order: Order
  shards: List[Shard]
  needs_threads: bool = True

  @property
  def num_iterators(self) -> int:
    """How many iterators read the split, those of all workers."""
    return len(self.shards) * self.plan.num_workers


def build_inputs(examples: Examples, *, plan: Plan, mode: str = 'split', shuffle: bool = False,
                 seed: int = 0, parallel_calls: Optional[int] = None) -> Inputs:
  """Builds the pipeline of one split in one of `INPUT_MODES`.

  With `shuffle` every epoch is shuffled anew, by (seed, epoch). All iterators together parse
  `parallel_calls` examples at a time; None for one on each core.
  """
  _check(examples, plan, mode)
  if plan.is_by_hand:
    return _build_by_hand(examples, plan)
  order_seed = seed if shuffle and not plan.is_endless else None
  with tf.device(HOST), tf.name_scope(f'inputs_{examples.name}'):
    arrays = [tf.placeholder(array.dtype, array.shape, 'array') for array in examples.arrays]
    start = tf.placeholder(tf.int64, [None], 'start')
    shards = _choose_shards(plan, mode)
    shardings = [build_sharding(plan, shard, is_shared=mode != 'shard') for shard in shards]
    if mode != 'shard':
      shardings *= plan.num_towers
    calls = -(-(parallel_calls or count_cores()) // len(shards))
    num_ahead = _PREFETCHED_BATCHES * (plan.num_towers if mode == 'next' else 1)
    if plan.is_endless:  # What is made later may know more.
      num_ahead = 0

    get_nexts: List[Callable[[], Any]] = []
    initializers: List[Any] = []
    for shard in shards:
      epochs = build_epochs(examples, arrays, start, plan=plan, shard=shard,
                            seed=order_seed, parallel_calls=calls)
      batches, get_next = parse_batches(epochs, examples, arrays, parallel_calls=calls,
                                        num_rows=plan.micro_batch_size, num_ahead=num_ahead)
      iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(batches),
                                                 tf.data.get_output_shapes(batches))
      get_nexts.append(functools.partial(get_next, iterator))
      # One after another: starting an iterator anew blocks a thread until its prefetching has
      # stopped, which needs threads itself. Two at once hang on two cores of 1.14.
      with tf.control_dependencies(initializers[-1:]):
        initializers.append(iterator.make_initializer(batches))

  def next_batches():
    # Sizes that differ between batches would be compiled anew.
    with tf.device(HOST), tf.name_scope(f'next_{examples.name}'), \
        tf.xla.experimental.jit_scope(compile_ops=False):
      batches = _build_batches(_take(mode, get_nexts, plan), plan, examples.marks_bad)
    return [batch._replace(sharding=sharding) for batch, sharding in zip(batches, shardings)]

  def feed_dict(step, resumed=None):
    by = resumed or plan
    begun = by.resumed_at(by.point_at(step))
    return {**dict(zip(arrays, examples.arrays)), start: begun.start}

  return Inputs(name=examples.name, plan=plan, next_batches=next_batches,
                initializer=initializers[-1], feed_dict=feed_dict,
                order=_choose_order(examples, plan, order_seed),
                shards=shards, needs_threads=not is_gathered(examples))


def _build_by_hand(examples, plan):
  """Returns inputs of batches that are fed: the defaults stand in where a run validates."""
  with tf.device(HOST), tf.name_scope(f'inputs_{examples.name}'):
    elements = examples.elements()
    shard = Shard(plan.rank, plan.num_workers, plan.micro_batch_size)
    # Towers may begin at any place.
    sharding = build_sharding(plan, shard, is_shared=True)._replace(multiple=1)

    def build_batch(size):
      def build_placeholder(dtype, shape):
        rows = [size or 1, *shape.as_list()]
        return tf.placeholder_with_default(tf.zeros(rows, dtype), [size, *rows[1:]])

      tensors = tf.nest.map_structure(build_placeholder, tf.data.get_output_types(elements),
                                      tf.data.get_output_shapes(elements))
      count = size or tf.placeholder_with_default(0, [], 'num_examples')
      return Batch(tensors, count, may_be_empty=not size, sharding=sharding)

    batches = list(map(build_batch, plan.shares(plan.micro_batch_size) if plan.is_static
                       else [None] * plan.num_towers))
    return Inputs(name=examples.name, plan=plan, next_batches=lambda: batches,
                  initializer=tf.no_op('start'), feed_dict=lambda step, resumed=None: {},
                  order=Order(None), shards=[shard])


def _check(examples, plan, mode):
  if plan.carries and examples.buckets is not None and examples.buckets.window:
    raise UsageError(f'last_batch=carry cuts batches across the ends of epochs, and {examples.name}'
                     ' sorts those of an epoch by length or deals them by parts: use '
                     'last_batch=keep.')
  if plan.carries and examples.marks_bad:
    raise UsageError('last_batch=carry takes full batches, and on_bad_record=skip leaves damaged '
                     'records out of them: use last_batch=keep, or on_bad_record=fail.')
  check_choice('input_mode', mode, INPUT_MODES)
  if plan.is_endless and mode == 'shard':
    raise UsageError(f'input_mode=shard would begin the stream {examples.name} once for each '
                     'tower: use input_mode=split.')


def _choose_order(examples, plan, seed):
  """Returns the order of a split, shuffled by a seed or, for None, not."""
  if examples.buckets is not None:
    return Order(seed, window=examples.buckets.window * plan.batch_size,
                 lengths=examples.buckets.checksum)
  if examples.elements is None or seed is None:
    return Order(seed)
  return Order(seed, examples.shuffle_buffer or examples.num_examples)


def _choose_shards(plan, mode):
  """Returns the shard of each of this worker's iterators: by worker, then by tower."""
  num_iterators = plan.num_towers if mode == 'shard' else 1
  num_shards = plan.num_workers * num_iterators
  return [Shard(position, num_shards, plan.micro_batch_size, takes_turns=mode == 'next')
          for position in range(plan.rank, num_shards, plan.num_workers)]


def _take(mode, get_nexts, plan):
  """Returns the next batch of each tower, by the get_next of the iterator, or of each tower's."""
  if mode == 'shard':
    batches = []
    for index, get_next in enumerate(get_nexts):
      with tf.name_scope(f'iterator_{index}'):  # A failure names it.
        batches.append(get_next())
    return batches
  [get_next] = get_nexts
  batches = [get_next()]
  if mode == 'split':
    return _split(batches[0], plan) if plan.num_towers > 1 else batches
  for _ in range(1, plan.num_towers):
    # In a fixed order, so that runs repeat. It costs nothing: an iterator serves one at a time.
    with tf.control_dependencies(tf.nest.flatten(batches[-1])):
      batches.append(get_next())
  return batches


def _split(batch, plan):
  if plan.is_static:
    sizes = plan.shares(plan.micro_batch_size)
  else:
    size = leading_size(batch, tf.int32)
    sizes = dealt(size, np.arange(plan.num_towers), plan.num_towers)
  splits = [tf.split(tensor, sizes, num=plan.num_towers) for tensor in tf.nest.flatten(batch)]
  return [tf.nest.pack_sequence_as(batch, tensors) for tensors in zip(*splits)]


def _build_batches(taken, plan, marks_bad):
  """Returns the towers' batches, none without a row.

  They are of static shape where sizes are even, or where the last row is repeated to fill them up.
  """
  if marks_bad:
    taken = [tf.nest.map_structure(functools.partial(tf.boolean_mask, mask=is_good), tensors)
             for tensors, is_good in taken]
  elif plan.is_static:
    sizes = plan.shares(plan.micro_batch_size)
    for tensors, size in zip(taken, sizes):
      for tensor in tf.nest.flatten(tensors):
        tensor.set_shape(tensor.shape.merge_with([size] + tensor.shape.as_list()[1:]))
    return [Batch(tensors, size) for tensors, size in zip(taken, sizes)]

  counts = [leading_size(tensors, tf.int32) for tensors in taken]
  may_be_empty = plan.may_leave_a_tower_empty or marks_bad
  if may_be_empty:
    taken = fill_empty(taken, counts)
  is_padded = plan.last_batch == 'pad'
  if is_padded:
    taken = [repeat_last(tensors, count, plan.num_rows) for tensors, count in zip(taken, counts)]
  return [Batch(tensors, count, may_be_empty=may_be_empty, is_padded=is_padded)
          for tensors, count in zip(taken, counts)]


def fill_empty(towers: List[Any], counts: List[Any]) -> List[Any]:
  """Returns the towers' tensors, of which none is without a row, since few kernels take no row.

  The row of a tower without an example is one of another tower in the same micro-batch, which does
  not count. So a model may ask of a row whatever holds for all examples: that a length is above 0,
  or a string is a JPEG.

  These are of one structure, and may be padded to other sizes; `counts` are the towers' numbers of
  examples. Where all towers of this worker are empty, as only several workers or bad records can
  leave them, the row is of zeros.
  """
  batches = [tf.nest.flatten(tensors) for tensors in towers]
  any_batch = [tf.zeros(tf.concat([[1], tf.shape(tensor)[1:]], 0), tensor.dtype)
               for tensor in batches[0]]
  for batch, count in zip(batches, counts):
    any_batch = _choose(count > 0, batch, any_batch)
  row = [tensor[:1] for tensor in any_batch]
  return [tf.nest.pack_sequence_as(tensors, _choose(count > 0, batch, row))
          for tensors, batch, count in zip(towers, batches, counts)]


def _choose(is_first, first, second):
  """Returns one of two lists of tensors, without a copy; their shapes may differ."""
  return tf.cond(is_first, lambda: first, lambda: second, strict=True)


def repeat_last(tensors: Any, num_examples: Any, num_rows: int) -> Any:
  """Returns a tower's tensors, with as many rows in every batch.

  What a real row leads to is finite if a step is, and its rows of sparse gradients move anyway.
  """
  rows = tf.minimum(tf.range(num_rows), tf.maximum(num_examples, 1) - 1)
  return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)
