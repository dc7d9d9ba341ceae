"""Epoch: the elements that one iterator takes in an epoch, in order, and parsed one by one.

  positions ──► those of a shard ──► indices, permuted ──┐
                                                         ├─► parse one by one ──► batches (see cut)
  elements ──► shuffled by a buffer ──► those of a shard ┘

All iterators see the same order of a whole epoch, by (seed, epoch), and take their own positions of
it. So an epoch has the same global batches whatever the input mode and the number of iterators.

Where the rest of an epoch is carried, epochs are joined before they are cut into batches. A shard
then takes the same places of every batch, so that its batches are of one size.
"""

from typing import Any, List, NamedTuple, Optional

from tensorflow_v1 import as_written, tf, unbatch
from towers.data.composite import encode_dataset
from towers.data.examples import Examples
from towers.input.cut import batch_carried, batch_elements, build_zeros
from towers.input.plan import Plan, Shard
from towers.input.rows import check_ranks, choose_padding

_BLOCK = 4096  # Positions that are ordered at a time: few cost as much as a thousand.
_ENDLESS = 2 ** 62


class Fed(NamedTuple):
  """What is fed to start iterators.

  Attributes:
    arrays: those of the split, tensors.
    epoch: where to start, from 0, a scalar int64 tensor.
    position: of the first example to take of that epoch, where a global batch begins; the same.
  """
  arrays: List[Any]
  epoch: Any
  position: Any


class First(NamedTuple):
  """The first example that a shard takes of an epoch, scalar int64 tensors.

  Attributes:
    index: in the shard; where the rest is carried, in the epoch.
    behind: where the rest is carried, examples between it and the beginning of a batch before.
  """
  index: Any
  behind: Any = None


def build_epochs(examples: Examples, fed: Fed, *, plan: Plan, shard: Shard, seed: Optional[int],
                 parallel_calls: int) -> Any:
  """Returns the batches of all epochs from the one that is fed on, without end, a tf.data.Dataset.

  Batches are of elements, or of examples where these are read or parsed one by one; with the epoch
  beside them where the split `takes_epoch`.

  `seed` is that of the shuffling, None for the order of the elements; `parallel_calls` examples are
  parsed at a time.
  """
  def build_elements(epoch, first):
    if examples.elements is None:
      elements = _order_indices(examples.buckets, plan, shard, first, seed=seed, epoch=epoch)
    else:
      elements = examples.elements(*fed.arrays)
      if not (examples.read or examples.parse_example):
        elements = _encode_examples(elements, examples)
      elements = _order_elements(elements, examples, plan, shard, first,
                                 seed=None if seed is None else _epoch_seed(seed, epoch))
    elements = examples.parse_singly(elements, fed.arrays, epoch=epoch,
                                     parallel_calls=parallel_calls)
    return _encode_examples(elements, examples)

  def prepare(elements):
    return examples._replace(padding=choose_padding(elements, examples.padding, examples.name))

  def build_epoch(epoch):
    is_first = tf.equal(epoch, fed.epoch)
    position = tf.where(is_first, fed.position, tf.zeros_like(fed.position))
    elements = build_elements(epoch, First(shard.dealt(position)))
    batches = batch_elements(elements, prepare(elements), plan, shard,
                             position // plan.micro_batch_size)
    return _with_epoch(batches, epoch) if examples.takes_epoch else batches

  def build_carried(epoch):
    # How far the epoch's first example is behind the first of all.
    behind = (epoch - fed.epoch) * plan.num_examples - fed.position
    elements = build_elements(epoch, First(tf.maximum(-behind, 0), tf.maximum(behind, 0)))
    return _with_epoch(elements, epoch) if examples.takes_epoch else elements

  epochs = tf.data.Dataset.range(fed.epoch, _ENDLESS)
  if not plan.carries:
    return epochs.flat_map(as_written(build_epoch))
  elements = epochs.flat_map(as_written(build_carried))
  return batch_carried(elements, prepare(elements), plan, shard)


def _with_epoch(data_set, epoch):
  return tf.data.Dataset.zip((data_set, tf.data.Dataset.from_tensors(epoch).repeat()))


def _encode_examples(elements, examples):
  """Returns examples with `composite.ROWS`, unless a function takes batches of them."""
  return elements if examples.parse_batch else encode_dataset(elements, examples.name)


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
      return build_zeros(elements, first_size=None)

  return tf.data.Dataset.range(1).map(fail)
