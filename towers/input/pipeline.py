"""The three input modes: from the examples of one split to one batch per tower, all on the CPU.

  split    one iterator, one get_next of the global batch, tf.split over the towers
  next     one iterator over tower-sized batches, one get_next per tower
  shard    one iterator per tower over Dataset.shard, sharded before it is shuffled

With several workers, each of which builds the inputs of its own towers, all of this is done over
the worker's shard of the examples; `shard` divides that further.

In every mode step s of an epoch takes the same global batch (see `plan`), so the modes differ in
speed alone; only when a split is shuffled, `shard` draws each tower's examples from its own shard.
Epochs repeat for ever, each shuffled by (seed, epoch): a get_next never meets the end of the data,
and a resumed run enters at any step by skipping elements before they are parsed.

  examples = data.from_arrays(images, labels)
  inputs = build_inputs(examples, mode='split', plan=plan, shuffle=True, seed=0)
  batches = inputs.next_batches()                          # a list of `Batch`, one per tower
  session.run(inputs.initializer, inputs.feed_dict(step=0))
"""

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from tensorflow_v1 import (
  as_written,
  get_next_by_reader,
  map_by_reader,
  plain_data_options,
  tf,
  unbatch,
  with_own_thread,
)
from towers.base.cores import count_cores
from towers.base.usage_error import UsageError
from towers.data.examples import Examples
from towers.input.batch import Batch
from towers.input.plan import Plan, dealt
from towers.placement.host import HOST

INPUT_MODES = ('split', 'next', 'shard')

# The types of the ops that take an element from an iterator.
GET_NEXTS = ('IteratorGetNext', 'IteratorGetNextSync')
_PREFETCHED_BATCHES = 2
# Batches of rows that are no larger are gathered several at a time: to wake a thread takes longer
# than to copy one.
_SMALL_BYTES = 2 ** 16
_MOST_AT_ONCE = 16
_PARALLEL_BATCHES = 4  # Whole batches in the making at a time, at most: they take memory.
_ENDLESS = 2 ** 62


class Inputs(NamedTuple):
  """The iterators of one split.

  Attributes:
    name: of the split.
    plan: which examples each step takes.
    next_batches: builds the get_next ops where it is called (inside a branch of tf.cond, for
      instance) and returns one `Batch` per tower.
    initializer: the op that starts all iterators of the split, run with `feed_dict`.
    feed_dict: `feed_dict(step)` is the feed of `initializer` that makes `step` the next one.
    needs_threads: whether a batch is so much work that several threads should share it.
  """
  name: str
  plan: Plan
  next_batches: Callable[[], List[Batch]]
  initializer: Any
  feed_dict: Callable[..., Dict[Any, Any]]
  needs_threads: bool = True


def build_inputs(examples: Examples, *, plan: Plan, mode: str = 'split', shuffle: bool = False,
                 seed: int = 0, parallel_calls: Optional[int] = None) -> Inputs:
  """Builds the pipeline of one split.

  Args:
    examples: the split; its arrays are fed once when the iterators start, never part of the graph.
    plan: how examples are dealt out to steps and towers.
    mode: 'split', 'next' or 'shard'.
    shuffle: shuffle every epoch anew, by (seed, epoch).
    seed: of the shuffling.
    parallel_calls: examples that are parsed at a time, by all iterators together; None for one on
      each core.

  Raises:
    UsageError: an unknown mode.
  """
  if mode not in INPUT_MODES:
    raise UsageError(f"input_mode is {mode!r}: choose one of {', '.join(INPUT_MODES)}.")
  with tf.device(HOST), tf.name_scope(f'inputs_{examples.name}'):
    arrays = [tf.placeholder(array.dtype, array.shape, 'array') for array in examples.arrays]
    start_epoch = tf.placeholder(tf.int64, [], 'start_epoch')
    start_micro_batch = tf.placeholder(tf.int64, [], 'start_micro_batch')

    num_iterators = plan.num_towers if mode == 'shard' else 1
    num_shards = plan.num_workers * num_iterators
    calls = -(-(parallel_calls or count_cores()) // num_iterators)
    cuts_evenly = (mode == 'next' and num_shards == 1 and plan.is_even and
                   plan.micro_batch_size % plan.num_towers == 0)
    is_gathered = examples.is_gathered and not (examples.parse_example or examples.read or
                                                examples.takes_epoch)
    is_small = is_gathered and _count_bytes(examples.arrays, plan.micro_batch_size) <= _SMALL_BYTES
    get_nexts = []
    initializer = None
    # Sharded by worker, then by tower.
    for shard in range(plan.rank, num_shards, plan.num_workers):
      def epoch(number, shard=shard):
        first_micro_batch = tf.where(tf.equal(number, start_epoch), start_micro_batch,
                                     tf.zeros_like(start_micro_batch))
        elements = _order_elements(examples.elements(*arrays), plan, name=examples.name,
                                   shard=shard, num_shards=num_shards,
                                   first_micro_batch=first_micro_batch,
                                   buffer_size=examples.shuffle_buffer,
                                   seed=_epoch_seed(seed, shard, number) if shuffle else None)
        if examples.read:
          elements = examples.read(elements, epoch=number, parallel_calls=calls)
        elif examples.parse_example:
          elements = elements.map(examples.parse_example, num_parallel_calls=calls)
        if num_shards > 1:
          batches = _deal_batches(elements, plan, shard, num_shards, first_micro_batch)
        elif cuts_evenly:
          # A data set for each batch, which cutting takes, would cost more than gathering small
          # examples does.
          batches = elements.batch(plan.micro_batch_size // plan.num_towers, drop_remainder=True)
        else:
          batches = elements.batch(plan.micro_batch_size, drop_remainder=plan.is_even)
        if mode == 'next' and not cuts_evenly:
          batches = _share_batches(batches, plan.num_towers)
        if examples.takes_epoch:
          batches = tf.data.Dataset.zip((batches, tf.data.Dataset.from_tensors(number).repeat()))
        return batches

      dataset = tf.data.Dataset.range(start_epoch, _ENDLESS).flat_map(as_written(epoch))
      at_once = _count_at_once(dataset, examples.arrays) if is_small else 1
      if at_once > 1:
        dataset = dataset.batch(at_once, drop_remainder=True)
      if examples.parse_batch:
        # Behind the epochs, so that one is begun while the last batches of the one before are
        # parsed.
        parse = as_written(_parse_batch_with(examples, arrays))
        # Gathering is left to the thread that fetches ahead: to wake another for it takes longer
        # than most batches do.
        dataset = (map_by_reader(dataset, parse) if is_gathered
                   else dataset.map(parse, num_parallel_calls=min(calls, _PARALLEL_BATCHES)))
      dataset = dataset.prefetch(_PREFETCHED_BATCHES * (plan.num_towers if mode == 'next' else 1))
      if at_once > 1:
        dataset = unbatch(dataset)
      dataset = dataset.with_options(plain_data_options())
      if is_small:
        dataset = with_own_thread(dataset)
      iterator = tf.data.Iterator.from_structure(
          tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
      get_nexts.append(
          functools.partial(get_next_by_reader, iterator) if is_small else iterator.get_next)
      # One after another: starting an iterator anew blocks a thread until its prefetching has
      # stopped, which needs threads itself. Two at once hang on two cores (seen on TensorFlow
      # 1.14).
      with tf.control_dependencies([initializer] if initializer is not None else []):
        initializer = iterator.make_initializer(dataset)

  def next_batches():
    with tf.device(HOST), tf.name_scope(f'next_{examples.name}'):
      return [_count_examples(tensors, plan, mode, tower, marks_bad=examples.marks_bad)
              for tower, tensors in enumerate(_TAKE[mode](get_nexts, plan))]

  def feed_dict(step):
    epoch_number, step_in_epoch = plan.position(step)
    micro_batch_in_epoch = step_in_epoch * plan.accumulate
    return {
        **dict(zip(arrays, examples.arrays)), start_epoch: epoch_number,
        start_micro_batch: micro_batch_in_epoch
    }

  return Inputs(name=examples.name, plan=plan, next_batches=next_batches, initializer=initializer,
                feed_dict=feed_dict, needs_threads=not is_gathered)


def _parse_batch_with(examples, arrays):
  """Returns the function that makes a batch of a batch of elements, whose structure it is handed
  taken apart.
  """
  if not examples.takes_epoch:
    return lambda *elements: examples.parse_batch(*elements, *arrays)

  def parse(elements, epoch):
    return examples.parse_batch(*(elements if isinstance(elements, tuple) else [elements]), *arrays,
                                epoch=epoch)

  return parse


def _count_bytes(arrays, num_rows):
  """Returns how much memory a batch of rows of all arrays takes."""
  return sum(array[:1].nbytes for array in arrays) * num_rows


def _count_at_once(batches, arrays):
  """Returns how many batches of indices shall be gathered at a time: of one size, since they are
  put together.
  """
  size, = tf.data.get_output_shapes(batches).as_list()
  return min(_MOST_AT_ONCE, _SMALL_BYTES // max(1, _count_bytes(arrays, size))) if size else 1


def _epoch_seed(seed, shard, epoch):
  """Returns the shuffle seed of one shard's epoch, an int64 tensor; distinct for the first billions
  of epochs.
  """
  return (epoch * 1000003 + shard * 7919 + seed * 104729 + 1) % (2 ** 31 - 1)


def _order_elements(elements, plan, *, name, shard, num_shards, first_micro_batch, buffer_size,
                    seed):
  """Returns the elements that one iterator takes in one epoch from `first_micro_batch` on: sharded,
  shuffled, then skipped.
  """
  elements = elements.concatenate(_missing_elements(elements, plan, name)).take(plan.num_examples)
  if num_shards > 1:
    elements = elements.shard(num_shards, shard)
  if seed is not None:
    elements = elements.shuffle(buffer_size or dealt(plan.num_examples, shard, num_shards),
                                seed=seed, reshuffle_each_iteration=False)
  elements = elements.take(dealt(plan.examples_per_epoch, shard, num_shards))
  return elements.skip(dealt(first_micro_batch * plan.micro_batch_size, shard, num_shards))


def _missing_elements(elements, plan, name):
  """Returns what follows the elements, of the same structure: an error whenever there were fewer
  than promised.

  An epoch that ends early would put all modes and staging areas out of step, and take examples
  twice, silently.
  """
  def fail(_):
    message = (f'{name} promised num_examples={plan.num_examples}, but its elements ended before '
               'that.')
    with tf.control_dependencies([tf.Assert(False, [message])]):
      return _zeros(elements, first_size=None)

  return tf.data.Dataset.range(1).map(fail)


def _zeros(data_set, first_size):
  """Returns an element of a data set's structure, all zeros, whose first dimension is `first_size`
  unless None.
  """
  def zeros(dtype, shape):
    sizes = [size or 0 for size in shape.as_list()]
    return tf.zeros(sizes if first_size is None else [first_size] + sizes[1:], dtype)

  return tf.nest.map_structure(zeros, tf.data.get_output_types(data_set),
                               tf.data.get_output_shapes(data_set))


def _cut_batches(batches, boundaries):
  """Cuts every batch into several: element i of `boundaries(size)` to element i + 1, for all of
  them in order.
  """
  is_tuple = isinstance(tf.data.get_output_types(batches), tuple)

  def cut(*batch):
    batch = batch if is_tuple else batch[0]
    edges = boundaries(_leading_size(batch, tf.int64))
    return tf.data.Dataset.from_tensor_slices((edges[:-1], edges[1:])).map(
        lambda begin, end: tf.nest.map_structure(lambda tensor: tensor[begin:end], batch))

  return batches.flat_map(cut)


def _share_batches(batches, num_towers):
  """Cuts batches for `next` in shares, one per tower, so that no example is lost at the end."""
  def boundaries(size):
    share, larger = _share_sizes(size, num_towers)
    towers = tf.range(num_towers + 1, dtype=tf.int64)
    return towers * share + tf.minimum(towers, larger)

  return _cut_batches(batches, boundaries)


def _deal_batches(elements, plan, shard, num_shards, first_micro_batch):
  """Batches a shard so that its step s holds the examples dealt to it from global batch s, in step
  with all shards.
  """
  batch_size = plan.micro_batch_size
  if batch_size % num_shards == 0:
    batches = elements.batch(batch_size // num_shards, drop_remainder=plan.is_even)
  else:
    # 8 examples over 3 shards are 3, 3 and 2 in one step and 3, 2 and 3 in the next. What is dealt
    # to a shard in as many steps as there are shards is one global batch, whatever the first of
    # those steps is.
    runs = first_micro_batch + tf.range(num_shards + 1, dtype=tf.int64)
    dealt_before = dealt(runs * batch_size, shard, num_shards)
    edges = dealt_before - dealt_before[0]
    batches = _cut_batches(elements.batch(batch_size), lambda size: tf.minimum(edges, size))

  # The last step of an epoch may deal nothing to a shard, which must not end before the others.
  batches = batches.concatenate(_empty_batch(batches))
  return batches.take(plan.micro_batches_per_epoch - first_micro_batch)


def _empty_batch(batches):
  """Returns a data set of one batch without examples, of the same structure as `batches`."""
  return tf.data.Dataset.from_tensors(_zeros(batches, first_size=0))


def _split_one_batch(get_nexts, plan):
  """`split`: one get_next, then tf.split over the towers."""
  batch = get_nexts[0]()
  if plan.num_towers == 1:
    return [batch]
  if plan.is_even and plan.micro_batch_size % plan.num_workers == 0:
    sizes = plan.shares(plan.micro_batch_size)
  else:
    share, larger = _share_sizes(_leading_size(batch, tf.int32), plan.num_towers)
    sizes = share + tf.cast(tf.range(plan.num_towers) < larger, tf.int32)
  runs = [tf.split(tensor, sizes, num=plan.num_towers) for tensor in tf.nest.flatten(batch)]
  return [tf.nest.pack_sequence_as(batch, tensors) for tensors in zip(*runs)]


def _get_one_batch_per_tower(get_nexts, plan):
  """`next`: as many get_next as towers, in a fixed order, so that a tower's batch does not depend
  on timing.

  The iterator serves one get_next at a time anyhow: the order costs nothing and makes runs
  repeatable.
  """
  batches: List[Any] = []
  for _ in range(plan.num_towers):
    with tf.control_dependencies(tf.nest.flatten(batches[-1]) if batches else []):
      batches.append(get_nexts[0]())
  return batches


def _get_from_every_shard(get_nexts, plan):
  """`shard`: one get_next from each tower's own iterator."""
  del plan  # Every shard already is in step with the others.
  return [get_next() for get_next in get_nexts]


_TAKE = {
    'split': _split_one_batch, 'next': _get_one_batch_per_tower, 'shard': _get_from_every_shard
}


def _count_examples(tensors, plan, mode, tower, marks_bad):
  """Returns a tower's tensors as a `Batch`: counted, of static shape where sizes are even, never
  without a row.
  """
  may_be_empty = plan.may_leave_a_tower_empty or marks_bad
  if marks_bad:
    tensors, is_good = tensors
    tensors = tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, is_good), tensors)
  elif plan.is_even and plan.micro_batch_size % (plan.num_workers *
                                                 (plan.num_towers if mode == 'shard' else 1)) == 0:
    size = plan.shares(plan.micro_batch_size)[tower]
    for tensor in tf.nest.flatten(tensors):
      tensor.set_shape(tensor.shape.merge_with([size] + tensor.shape.as_list()[1:]))
    return Batch(tensors, size)

  num_examples = _leading_size(tensors, tf.int32)
  if may_be_empty:
    num_missing = tf.cast(tf.equal(num_examples, 0), tf.int32)

    def fill(tensor):
      row_shape = tf.shape(tensor)[1:]
      filled = tf.concat(
          [tensor, tf.zeros(tf.concat([[num_missing], row_shape], 0), tensor.dtype)], 0)
      filled.set_shape([None] + tensor.shape.as_list()[1:])
      return filled

    tensors = tf.nest.map_structure(fill, tensors)
  return Batch(tensors, num_examples, may_be_empty=may_be_empty)


def _leading_size(batch, dtype):
  return tf.shape(tf.nest.flatten(batch)[0], out_type=dtype)[0]


def _share_sizes(size, num_towers):
  """Returns the smaller run of a batch cut over the towers, and how many towers get one example
  more.
  """
  return size // num_towers, size % num_towers
