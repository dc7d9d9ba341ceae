"""Epoch: the elements that one iterator takes in an epoch, in order, and parsed one by one.

  positions ──► those of a shard ──► indices, permuted ──┐
                                                         ├─► parse one by one ──► batches (see cut)
  elements ──► shuffled by a buffer ──► those of a shard ┘

All iterators see the same order of a whole epoch, by (seed, epoch), and take their own positions of
it. So an epoch has the same global batches whatever the input mode and the number of iterators.

A shard takes the same places of every batch. Where the rest of an epoch is carried, epochs are
joined before they are cut into batches. Else the batches of an epoch are cut by themselves; those
of a run that has resumed with another batch size may end in the next epoch, see `plan`.
"""

from typing import Any, List, NamedTuple, Optional

from towers.data.composite import encode_dataset
from towers.data.examples import Examples
from towers.input.cut import batch_elements, build_zeros
from towers.input.plan import Plan, Shard
from towers.input.rows import check_ranks, choose_padding
from towers.tensorflow_v1 import as_written, tf, unbatch

_BLOCK = 4096  # Positions that are ordered at a time: few cost as much as a thousand.
_ENDLESS = 2 ** 62


class Fed(NamedTuple):
  """What is fed to start iterators.

  Attributes:
    arrays: those of the split, tensors.
    epoch: where to start, from 0, a scalar int64 tensor.
    position: of the first example to take of that epoch, where a global batch begins; the same.
    end: of its batches, a position too; the same. Behind its last position the next epoch follows,
      of which these batches then take the beginning.
  """
  arrays: List[Any]
  epoch: Any
  position: Any
  end: Any


class Part(NamedTuple):
  """The part of an epoch to take: scalar int64 tensors.

  Attributes:
    epoch: from 0.
    position: of the first example, in the epoch.
    end: the position behind the last one.
    place: the examples between the first and the beginning of a batch, maybe of an earlier epoch.
  """
  epoch: Any
  position: Any
  end: Any
  place: Any


def build_epochs(examples: Examples, fed: Fed, *, plan: Plan, shard: Shard, seed: Optional[int],
                 parallel_calls: int) -> Any:
  """Returns the batches of all epochs from the one that is fed on, without end, a tf.data.Dataset.

  Batches are of elements, or of examples where these are read or parsed one by one; with the epoch
  beside them where the split `takes_epoch`.

  `seed` shuffles, None keeps the order of the elements; `parallel_calls` are parsed at a time.
  """
  def build_elements(part):
    if examples.elements is None:
      elements = _order_indices(examples.buckets, plan, shard, part, seed=seed)
    else:
      elements = examples.elements(*fed.arrays)
      if not (examples.read or examples.parse_example):
        elements = _encode_examples(elements, examples)
      # Distinct for billions of epochs.
      own_seed = None if seed is None else (
          part.epoch * 1000003 + seed * 104729 + 1) % (2 ** 31 - 1)
      elements = _order_elements(elements, examples, plan, shard, part, seed=own_seed)
    elements = examples.parse_singly(elements, fed.arrays, epoch=part.epoch,
                                     parallel_calls=parallel_calls)
    elements = _encode_examples(elements, examples)
    if not examples.takes_epoch:
      return elements
    return tf.data.Dataset.zip((elements, tf.data.Dataset.from_tensors(part.epoch).repeat()))

  def build_carried(epoch):
    is_first = tf.equal(epoch, fed.epoch)
    position = tf.where(is_first, fed.position, tf.zeros_like(fed.position))
    place = tf.maximum((epoch - fed.epoch) * plan.num_examples - fed.position, 0)
    return build_elements(Part(epoch, position, plan.num_examples, place))

  def build_epoch(epoch):
    is_first = tf.equal(epoch, fed.epoch)
    shift = tf.maximum(fed.end - plan.num_examples, 0)
    position = tf.where(is_first, fed.position, shift)
    end = tf.where(is_first, fed.end, shift + plan.examples_per_epoch)

    def build_part(number):
      """Builds what batches take of this epoch, number 0, or of the next one."""
      before = number * plan.num_examples
      return build_elements(Part(
          epoch + number, tf.maximum(position - before, 0),
          # Not below 0, which would take all elements.
          tf.maximum(tf.minimum(end - before, plan.num_examples), 0),
          tf.maximum(before - position, 0)))

    elements = tf.data.Dataset.range(2).flat_map(as_written(build_part))
    return batch(elements, None if plan.is_even else -((position - end) // plan.micro_batch_size))

  def batch(elements, num_batches=None):
    padding = choose_padding(elements, examples.padding, examples.name)
    return batch_elements(elements, examples._replace(padding=padding), plan, shard, num_batches)

  epochs = tf.data.Dataset.range(fed.epoch, _ENDLESS)
  if plan.carries:
    return batch(epochs.flat_map(as_written(build_carried)))
  return epochs.flat_map(as_written(build_epoch))


def _encode_examples(elements, examples):
  """Returns examples with `composite.ROWS`, unless a function takes batches of them."""
  return elements if examples.parse_batch else encode_dataset(elements, examples.name)


def _order_indices(buckets, plan, shard, part, *, seed):
  """Returns the indices that a shard takes in a part of an epoch, as a data set.

  A thread of the input runs Python for their order. Ops would permute as fast, but take eight
  iterators two seconds to build and as long to start.
  """
  begin = shard.dealt(part.place)
  # From a place in batches to a position in the epoch.
  shift = part.position - part.place
  end = shard.dealt(part.end - shift)

  def find(index):
    return shard.find(index) + shift

  if seed is None and buckets is None and shard.is_regular:
    return tf.data.Dataset.range(find(begin), part.end, shard.num_shards)
  order = plan.order(seed=seed, buckets=buckets)

  def order_block(begin):
    block = tf.range(begin, tf.minimum(begin + _BLOCK, end))
    indices = tf.numpy_function(order, [find(block), part.epoch], tf.int64)
    indices.set_shape(block.shape)
    return indices

  return unbatch(tf.data.Dataset.range(begin, end, _BLOCK).map(as_written(order_block)))


def _order_elements(elements, examples, plan, shard, part, *, seed):
  """Returns the elements that a shard takes in a part of an epoch.

  Every shard shuffles all elements, and alike: if each shuffled its own, another number of shards
  would take other elements in the same steps.
  """
  check_ranks(elements, examples.name)
  elements = elements.concatenate(_missing_elements(elements, plan, examples.name))
  if plan.is_endless:  # From its beginning, also where a run has resumed.
    return _take_places(elements, shard, part.place)
  elements = elements.take(plan.num_examples)
  if seed is not None:
    elements = elements.shuffle(examples.shuffle_buffer or plan.num_examples, seed=seed,
                                reshuffle_each_iteration=False)
  return _take_places(elements.take(part.end).skip(part.position), shard, part.place)


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
    if plan.is_endless:
      message = f'{name}: the stream has ended: let it wait for more, or train fewer steps.'
    with tf.control_dependencies([tf.Assert(False, [message])]):
      return build_zeros(elements, first_size=None)

  return tf.data.Dataset.range(1).map(fail)
