"""Epoch: the elements that one iterator takes in an epoch, in order, and parsed one by one.

  positions ──► those of a shard ──► indices, permuted ──┐
                                                         ├─► parse one by one ──► batches (see cut)
  elements ──► shuffled by a buffer ──► those of a shard ┘

All iterators see the same order of a whole epoch, by (seed, epoch), and take their own positions of
it. So an epoch has the same global batches whatever the input mode and the number of iterators.

A shard takes the same places of every batch. Where the rest of an epoch is carried, epochs are
joined before they are cut into batches.
"""

from typing import Any, List, NamedTuple, Optional

from tensorflow_v1 import as_written, tf, unbatch
from towers.data.composite import encode_dataset
from towers.data.examples import Examples
from towers.input.cut import batch_elements, build_zeros
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
  """The first example to take of an epoch: scalar int64 tensors, or a place of 0.

  Attributes:
    position: in the epoch.
    place: the examples between it and the beginning of a batch, maybe of an earlier epoch.
  """
  position: Any
  place: Any = 0


def build_epochs(examples: Examples, fed: Fed, *, plan: Plan, shard: Shard, seed: Optional[int],
                 parallel_calls: int) -> Any:
  """Returns the batches of all epochs from the one that is fed on, without end, a tf.data.Dataset.

  Batches are of elements, or of examples where these are read or parsed one by one; with the epoch
  beside them where the split `takes_epoch`.

  `seed` shuffles, None keeps the order of the elements; `parallel_calls` are parsed at a time.
  """
  def build_elements(epoch, first):
    if examples.elements is None:
      elements = _order_indices(examples.buckets, plan, shard, first, seed=seed, epoch=epoch)
    else:
      elements = examples.elements(*fed.arrays)
      if not (examples.read or examples.parse_example):
        elements = _encode_examples(elements, examples)
      # Distinct for billions of epochs.
      own_seed = None if seed is None else (epoch * 1000003 + seed * 104729 + 1) % (2 ** 31 - 1)
      elements = _order_elements(elements, examples, plan, shard, first, seed=own_seed)
    elements = examples.parse_singly(elements, fed.arrays, epoch=epoch,
                                     parallel_calls=parallel_calls)
    return _encode_examples(elements, examples)

  def build_epoch(epoch):
    position = tf.where(tf.equal(epoch, fed.epoch), fed.position, tf.zeros_like(fed.position))
    # Each epoch begins with a batch, and so does what is taken, unless the rest is carried.
    first = First(position)
    if plan.carries:
      first = First(position, tf.maximum((epoch - fed.epoch) * plan.num_examples - fed.position, 0))
    elements = build_elements(epoch, first)
    if not plan.carries:
      done = position // plan.micro_batch_size
      elements = batch(elements, None if plan.is_even else plan.micro_batches_per_epoch - done)
    if not examples.takes_epoch:
      return elements
    return tf.data.Dataset.zip((elements, tf.data.Dataset.from_tensors(epoch).repeat()))

  def batch(elements, num_batches=None):
    padding = choose_padding(elements, examples.padding, examples.name)
    return batch_elements(elements, examples._replace(padding=padding), plan, shard, num_batches)

  epochs = tf.data.Dataset.range(fed.epoch, _ENDLESS).flat_map(as_written(build_epoch))
  return batch(epochs) if plan.carries else epochs


def _encode_examples(elements, examples):
  """Returns examples with `composite.ROWS`, unless a function takes batches of them."""
  return elements if examples.parse_batch else encode_dataset(elements, examples.name)


def _order_indices(buckets, plan, shard, first, *, seed, epoch):
  """Returns the indices that a shard takes in an epoch, from `first` on, as a data set.

  A thread of the input runs Python for their order. Ops would permute as fast, but take eight
  iterators two seconds to build and as long to start.
  """
  begin = shard.dealt(first.place)
  # From a place in batches to a position in the epoch.
  shift = first.position - first.place if plan.carries else first.position
  end = shard.dealt(plan.examples_per_epoch - shift)

  def find(index):
    return shard.find(index) + shift

  if seed is None and buckets is None and shard.is_regular:
    return tf.data.Dataset.range(find(begin), plan.examples_per_epoch, shard.num_shards)
  order = plan.order(seed=seed, buckets=buckets)

  def order_block(begin):
    block = tf.range(begin, tf.minimum(begin + _BLOCK, end))
    indices = tf.numpy_function(order, [find(block), epoch], tf.int64)
    indices.set_shape(block.shape)
    return indices

  return unbatch(tf.data.Dataset.range(begin, end, _BLOCK).map(as_written(order_block)))


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
  return _take_places(elements.take(plan.examples_per_epoch).skip(first.position), shard,
                      first.place)


def _take_places(elements, shard, place):
  """Returns the elements at a shard's places of every batch; the first one is at `place`."""
  if shard.is_regular:
    begin = (shard.position - place) % shard.num_shards
    return elements if shard.num_shards == 1 else elements.shard(shard.num_shards, begin)

  def find_own(place):
    places = place + tf.range(_BLOCK, dtype=tf.int64)
    return tf.equal(places % shard.batch_size % shard.num_shards, shard.position)

  # A filter that returns what it gets calls no function, which would cost as much as an element.
  are_own = unbatch(tf.data.Dataset.range(place, _ENDLESS, _BLOCK).map(as_written(find_own)))
  own = tf.data.Dataset.zip((elements, are_own)).filter(as_written(lambda _, is_own: is_own))
  return own.map(as_written(lambda element, _: element))


def _missing_elements(elements, plan, name):
  """Returns a data set that follows the elements: an error if there are fewer than promised.

  An epoch that ends early would put staging areas out of step, and take examples twice, silently.
  """
  def fail(_):
    message = (f'{name} promised num_examples={plan.num_examples}, but its elements ended before '
               'that.')
    with tf.control_dependencies([tf.Assert(False, [message])]):
      return build_zeros(elements, first_size=None)

  return tf.data.Dataset.range(1).map(fail)
