"""Epoch: the elements that one iterator takes in an epoch, in order, and cut into batches.

  positions ──► those of a shard ──► indices, permuted ──┐
                                                         ├─► parse one by one ──► batches
  elements ──► shuffled by a buffer ──► those of a shard ┘

All iterators see the same order of a whole epoch, by (seed, epoch), and take their own positions of
it. So an epoch has the same global batches whatever the input mode and the number of iterators.

With several shards, each takes from every global batch the examples that the plan deals to it.
Batches may then differ in size, and data sets are cut where `Dataset.batch` cannot cut them.

Where the rest of an epoch is carried, epochs are joined before they are cut into batches. A shard
then takes the same places of every batch, so that its batches are of one size.
"""

import functools
from typing import Any, List, NamedTuple, Optional

from tensorflow_v1 import as_written, tf, unbatch
from towers.data.composite import encode_dataset
from towers.data.examples import Examples
from towers.input.plan import Plan, dealt
from towers.input.rows import batch_rows, check_components, check_ranks, choose_padding, cut_rows

_BLOCK = 4096  # Positions that are ordered at a time: few cost as much as a thousand.
_ENDLESS = 2 ** 62


class Start(NamedTuple):
  """Where iterators start, scalar int64 tensors.

  Attributes:
    epoch: from 0.
    position: of the first example to take of that epoch, where a global batch begins.
  """
  epoch: Any
  position: Any


class Shard(NamedTuple):
  """What one iterator reads: every `num_shards`-th position of an epoch, from `position` on.

  Attributes:
    position: of the shard, from 0.
    num_shards: of all workers together.
  """
  position: int
  num_shards: int

  def dealt(self, count: Any) -> Any:
    """Returns how many of the first `count` examples are in the shard, an int or a tensor."""
    return dealt(count, self.position, self.num_shards)


class First(NamedTuple):
  """The first example that a shard takes of an epoch, scalar int64 tensors.

  Attributes:
    index: in the shard; where the rest is carried, in the epoch.
    behind: where the rest is carried, examples between it and the beginning of a batch before.
  """
  index: Any
  behind: Any = None


def build_epochs(examples: Examples, arrays: List[Any], *, plan: Plan, mode: str, shard: Shard,
                 start: Start, seed: Optional[int], parallel_calls: int) -> Any:
  """Returns the batches of all epochs from `start` on, without end, as a tf.data.Dataset.

  Batches are of elements, or of examples where these are read or parsed one by one; with the epoch
  beside them where the split `takes_epoch`.

  Args:
    examples: the split.
    arrays: what is fed for `examples.arrays`.
    plan: how examples are dealt out.
    mode: one of `pipeline.INPUT_MODES`.
    shard: which of the elements to read.
    start: where to start.
    seed: of the shuffling; None for the order of the elements.
    parallel_calls: examples that are parsed at a time.
  """
  def build_elements(epoch, first):
    if examples.elements is None:
      elements = _order_indices(examples.buckets, plan, shard, first, seed=seed, epoch=epoch)
    else:
      elements = examples.elements(*arrays)
      if not (examples.read or examples.parse_example):
        elements = _encode_examples(elements, examples)
      if examples.hold:
        elements = elements.map(as_written(examples.hold))
      elements = _order_elements(elements, examples, plan, shard, first,
                                 seed=None if seed is None else _epoch_seed(seed, epoch))
    if examples.read:
      elements = examples.read(elements, *arrays, epoch=epoch, parallel_calls=parallel_calls)
    elif examples.parse_example:
      elements = elements.map(examples.parse_example, num_parallel_calls=parallel_calls)
    return _encode_examples(elements, examples)

  def prepare(elements):
    check_components(elements, examples.name)
    return examples._replace(padding=choose_padding(elements, examples.padding, examples.name))

  def build_epoch(epoch):
    is_first = tf.equal(epoch, start.epoch)
    position = tf.where(is_first, start.position, tf.zeros_like(start.position))
    elements = build_elements(epoch, First(shard.dealt(position)))
    batches = _batch_elements(elements, prepare(elements), plan, mode, shard,
                              position // plan.micro_batch_size)
    return _with_epoch(batches, epoch) if examples.takes_epoch else batches

  def build_carried(epoch):
    # How far the epoch's first example is behind the first of all.
    behind = (epoch - start.epoch) * plan.num_examples - start.position
    elements = build_elements(epoch, First(tf.maximum(-behind, 0), tf.maximum(behind, 0)))
    return _with_epoch(elements, epoch) if examples.takes_epoch else elements

  epochs = tf.data.Dataset.range(start.epoch, _ENDLESS)
  if not plan.carries:
    return epochs.flat_map(as_written(build_epoch))
  elements = epochs.flat_map(as_written(build_carried))
  return _batch_carried(elements, prepare(elements), plan, mode, shard)


def _with_epoch(data_set, epoch):
  return tf.data.Dataset.zip((data_set, tf.data.Dataset.from_tensors(epoch).repeat()))


def _encode_examples(elements, examples):
  """Returns examples with `composite.ROWS`, unless a function takes batches of them."""
  return elements if examples.parse_batch else encode_dataset(elements, examples.name)


def leading_size(batch: Any, dtype: Any) -> Any:
  """Returns the number of rows of a batch of any structure, a scalar tensor."""
  tensors = tf.nest.flatten(batch)
  for tensor in tensors:
    if tensor.shape.ndims == 1:
      return tf.size(tensor, out_type=dtype)  # One op, where a shape and its first take five.
  return tf.shape(tensors[0], out_type=dtype)[0]


def share_sizes(size: Any, num_towers: int) -> Any:
  """Returns the sizes of the shares of a batch cut over the towers, the larger ones first."""
  return (size + list(range(num_towers - 1, -1, -1))) // num_towers


def _order_indices(buckets, plan, shard, first, *, seed, epoch):
  """Returns the indices that a shard takes in an epoch, from `first` on, as a data set.

  A thread of the input runs Python for their order. Ops would permute as fast, but take eight
  iterators two seconds to build and as long to start.
  """
  order = plan.order(seed=seed, buckets=buckets)
  if plan.carries:
    begin, end, block_size = first.index, plan.num_examples, _BLOCK * shard.num_shards
  elif seed is None and buckets is None:
    return tf.data.Dataset.range(shard.position + first.index * shard.num_shards,
                                 plan.examples_per_epoch, shard.num_shards)
  else:
    begin, end, block_size = first.index, shard.dealt(plan.examples_per_epoch), _BLOCK

  def order_block(begin):
    block = tf.range(begin, tf.minimum(begin + block_size, end))
    if plan.carries:
      places = (block - first.index + first.behind) % plan.micro_batch_size
      positions = tf.boolean_mask(block, tf.equal(places % shard.num_shards, shard.position))
    else:
      positions = shard.position + block * shard.num_shards
    indices = tf.numpy_function(order, [positions, epoch], tf.int64)
    indices.set_shape(positions.shape)
    return indices

  return unbatch(tf.data.Dataset.range(begin, end, block_size).map(as_written(order_block)))


def _order_elements(elements, examples, plan, shard, first, *, seed):
  """Returns the elements that a shard takes in an epoch, from its `first` on.

  Every shard shuffles all elements, and alike: if each shuffled its own, another number of shards
  would take other elements in the same steps.
  """
  check_components(elements, examples.name)
  check_ranks(elements, examples.name)
  missing = _missing_elements(elements, plan, examples.name)
  elements = elements.concatenate(missing).take(plan.num_examples)
  if seed is not None:
    elements = elements.shuffle(examples.shuffle_buffer or plan.num_examples, seed=seed,
                                reshuffle_each_iteration=False)
  if plan.carries:
    return _take_places(elements.skip(first.index), plan, shard, first.behind)
  if shard.num_shards > 1:
    elements = elements.shard(shard.num_shards, shard.position)
  return elements.take(shard.dealt(plan.examples_per_epoch)).skip(first.index)


def _take_places(elements, plan, shard, behind):
  """Returns the elements at a shard's places of every batch; the first is `behind` a batch."""
  if shard.num_shards == 1:
    return elements
  places = tf.data.Dataset.range(behind, _ENDLESS)
  dealt_to_it = tf.data.Dataset.zip((elements, places)).filter(as_written(
      lambda _, place: tf.equal(place % plan.micro_batch_size % shard.num_shards, shard.position)))
  return dealt_to_it.map(as_written(lambda element, _: element))


def _epoch_seed(seed, epoch):
  """Returns the seed of an epoch's shuffle buffer, int64; distinct for billions of epochs."""
  return (epoch * 1000003 + seed * 104729 + 1) % (2 ** 31 - 1)


def _missing_elements(elements, plan, name):
  """Returns a data set that follows the elements: an error if there are fewer than promised.

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
  """Returns zeros in the structure of an element; `first_size` replaces the first dimension."""
  def zeros(dtype, shape):
    if first_size is None:
      return tf.zeros([size or 0 for size in shape.as_list()], dtype)
    # A row that fills an empty batch of padded examples has this shape: few kernels take size 0.
    sizes = [1 if size is None else size for size in shape.as_list()[1:]]
    return tf.zeros([first_size] + sizes, dtype)

  return tf.nest.map_structure(zeros, tf.data.get_output_types(data_set),
                               tf.data.get_output_shapes(data_set))


def _batch_elements(elements, examples, plan, mode, shard, first_micro_batch):
  """Returns batches: of a tower in the modes `next` and `shard`, of this worker in `split`."""
  make_batches = functools.partial(batch_rows, padding=examples.padding, name=examples.name,
                                   marks_bad=examples.marks_bad)
  if (mode == 'next' and shard.num_shards == 1 and plan.is_even and examples.padding is None and
      plan.micro_batch_size % plan.num_towers == 0):
    # Cutting takes a data set for each batch, which costs more than gathering small examples. But
    # batches that are padded one by one differ in size.
    return elements.batch(plan.micro_batch_size // plan.num_towers, drop_remainder=True)

  if shard.num_shards > 1:
    batches = _deal_batches(elements, examples.padding, make_batches, plan, shard,
                            first_micro_batch)
  else:
    batches = make_batches(elements, plan.micro_batch_size, drop_remainder=plan.is_even)
  return _share_batches(batches, plan.num_towers) if mode == 'next' else batches


def _batch_carried(elements, examples, plan, mode, shard):
  """Returns the same as `_batch_elements` of epochs that have been joined."""
  size = shard.dealt(plan.micro_batch_size)
  # Workers whose sizes differ would build graphs of other shapes.
  settings = dict(drop_remainder=plan.micro_batch_size % plan.num_workers == 0)
  if mode == 'next' and examples.padding is None and size % plan.num_towers == 0:
    return elements.batch(size // plan.num_towers, **settings)
  batches = batch_rows(elements, size, padding=examples.padding, name=examples.name,
                       marks_bad=examples.marks_bad, **settings)
  return _share_batches(batches, plan.num_towers) if mode == 'next' else batches


def _deal_batches(elements, padding, make_batches, plan, shard, first_micro_batch):
  """Batches a shard so that its batch i holds what micro-batch i deals to it, as in all shards."""
  batch_size = plan.micro_batch_size
  if batch_size % shard.num_shards == 0:
    batches = make_batches(elements, batch_size // shard.num_shards, drop_remainder=plan.is_even)
  else:
    # 8 examples over 3 shards are 3, 3 and 2 in one micro-batch and 3, 2 and 3 in the next. As many
    # micro-batches as there are shards deal 8 to each shard, whichever of them comes first.
    indices = first_micro_batch + tf.range(shard.num_shards + 1, dtype=tf.int64)
    dealt_before = shard.dealt(indices * batch_size)
    edges = dealt_before - dealt_before[0]
    if padding is None:
      batches = _cut_batches(elements.batch(batch_size), lambda size: tf.minimum(edges, size))
    else:
      batches = cut_rows(elements, batch_size, edges, make_batches)

  # The last micro-batch may deal nothing to a shard, which must not end before the others.
  batches = batches.concatenate(_empty_batch(batches))
  return batches.take(plan.micro_batches_per_epoch - first_micro_batch)


def _empty_batch(batches):
  """Returns a data set of one batch without examples, of the same structure as `batches`."""
  return tf.data.Dataset.from_tensors(_zeros(batches, first_size=0))


def _share_batches(batches, num_towers):
  """Cuts each batch into a share for every tower, which loses no example at the end."""
  def boundaries(size):
    return tf.concat([[0], tf.cumsum(share_sizes(size, num_towers))], 0)

  return _cut_batches(batches, boundaries)


def _cut_batches(batches, boundaries):
  """Cuts each batch of n rows into slices, between neighbours of the tensor `boundaries(n)`."""
  is_tuple = isinstance(tf.data.get_output_types(batches), tuple)

  def cut(*batch):
    batch = batch if is_tuple else batch[0]
    edges = boundaries(leading_size(batch, tf.int64))
    slices = tf.data.Dataset.from_tensor_slices((edges[:-1], edges[1:]))
    return slices.map(
        lambda begin, end: tf.nest.map_structure(lambda tensor: tensor[begin:end], batch))

  return batches.flat_map(cut)
