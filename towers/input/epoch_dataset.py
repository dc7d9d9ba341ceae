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

from typing import Any, Optional, Sequence

import numpy as np

from towers.data.components import find_components
from towers.data.composite import encode_dataset
from towers.data.examples import Examples
from towers.input.cut import batch_elements, check_ranks
from towers.input.plan import Plan, Shard, Span
from towers.tensorflow_v1 import as_written, data_sets, tf

_BLOCK = 4096  # Indices that are ordered at a time: few cost as much as a thousand.
_ENDLESS = 2 ** 62
OWN_FUNCTION = 'find_spans'  # The name of an op that calls Python for every split.


def build_epochs(examples: Examples, arrays: Sequence[Any], start: Any, *, plan: Plan, shard: Shard,
                 seed: Optional[int], parallel_calls: int) -> Any:
  """Returns the batches of all epochs from the one that is fed on, without end, a tf.data.Dataset.

  Batches are of elements, or of examples where these are read or parsed one by one; with the epoch
  beside them where the split `takes_epoch`.

  What is fed to start iterators are the `arrays` of the split, and the `start`, `Plan.start` as an
  int64 tensor. `seed` shuffles, None keeps the order of the elements; `parallel_calls` are parsed
  at a time.
  """
  def build_elements(packed):
    span = Span(*tf.unstack(packed))
    if examples.elements is None:
      elements = _order_indices(examples, plan, shard, packed, start, seed=seed,
                                most=span.end - span.position)
    else:
      elements = examples.elements(*arrays)
      if not (examples.read or examples.parse_example):
        elements = _encode_examples(elements, examples)
      # Distinct for billions of epochs.
      own_seed = None if seed is None else (
          span.epoch * 1000003 + seed * 104729 + 1) % (2 ** 31 - 1)
      elements = _order_elements(elements, examples, plan, shard, span, seed=own_seed)
    elements = parse(elements, span.epoch)
    if not examples.takes_epoch:
      return elements
    return tf.data.Dataset.zip((elements, tf.data.Dataset.from_tensors(span.epoch).repeat()))

  def parse(elements, epoch=None):
    elements = examples.parse_singly(elements, arrays, epoch=epoch, parallel_calls=parallel_calls)
    return _encode_examples(elements, examples)

  def find_spans(later, start):
    spans = np.array(plan.started_at(start).spans(int(later)), np.int64)
    return spans.reshape(-1, len(Span._fields))

  def count_batches(later, start):
    spans = find_spans(later, start)
    return -(-(spans[:, 2] - spans[:, 1]).sum() // plan.micro_batch_size)

  def call(function, later, shape):
    # By Python: ops on these few numbers are most of what an iterator takes to build.
    found = tf.numpy_function(function, [later, start], tf.int64, name=OWN_FUNCTION)
    found.set_shape(shape)
    return found

  def build_epoch(later):
    if examples.elements or examples.read or examples.takes_epoch:
      spans = tf.data.Dataset.from_tensor_slices(call(find_spans, later, [None, len(Span._fields)]))
      elements = spans.flat_map(as_written(build_elements))
    else:  # Only their order depends on the epoch, and joining spans would cost as much as batches.
      elements = parse(_order_indices(examples, plan, shard, later, start, seed=seed,
                                      most=plan.num_examples))
    if plan.carries:
      return elements
    is_counted = shard.num_shards > 1 and not plan.is_even
    return batch_elements(elements, examples, plan, shard,
                          call(count_batches, later, []) if is_counted else None)

  epochs = tf.data.Dataset.range(_ENDLESS).flat_map(as_written(build_epoch))
  return batch_elements(epochs, examples, plan, shard) if plan.carries else epochs


def _encode_examples(elements, examples):
  """Returns examples with `composite.ROWS`, unless a function takes batches of them."""
  return elements if examples.parse_batch else encode_dataset(elements, examples.name)


def _order_indices(examples, plan, shard, taken, start, *, seed, most):
  """Returns the indices that a shard takes, as a data set: in a span, or in all of an epoch.

  What is `taken` is a span, or how much later the epoch is than the one in which steps begin: at
  `most` so many.

  A thread of the input runs Python for their order. Ops would permute as fast, but take eight
  iterators two seconds to build and as long to start.
  """
  order, size = plan.order(seed=seed, buckets=examples.buckets), _BLOCK * shard.num_shards

  def take(begin, taken, start):
    spans = [Span(*taken.tolist())] if taken.ndim else plan.started_at(start).spans(int(taken))
    indices = [np.zeros([0], np.int64)]
    for epoch, position, end, place in spans:
      positions = np.arange(position + max(begin, 0), min(position + begin + size, end))
      if shard.num_shards > 1:
        positions = positions[shard.number_of(positions - position + place) == shard.position]
      if positions.size:
        indices.append(order(positions, epoch, start))
      begin -= end - position
    return np.concatenate(indices)

  def order_block(begin):
    indices = tf.numpy_function(take, [begin, taken, start], tf.int64)
    indices.set_shape([None])
    return indices

  # An epoch of which a run has resumed in the middle has fewer, and empty blocks at its end.
  return data_sets.unbatch(tf.data.Dataset.range(0, most, size).map(as_written(order_block)))


def _order_elements(elements, examples, plan, shard, span, *, seed):
  """Returns the elements that a shard takes in a span of an epoch.

  Every shard shuffles all elements, and alike: if each shuffled its own, another number of shards
  would take other elements in the same steps.
  """
  components = find_components(elements, examples.name)
  check_ranks(components)
  elements = elements.concatenate(_missing_elements(components, plan))
  if plan.is_endless:  # From its beginning, also where a run has resumed.
    return _take_places(elements, shard, span.place)
  elements = elements.take(plan.num_examples)
  if seed is not None:
    elements = elements.shuffle(examples.shuffle_buffer or plan.num_examples, seed=seed,
                                reshuffle_each_iteration=False)
  return _take_places(elements.take(span.end).skip(span.position), shard, span.place)


def _take_places(elements, shard, place):
  """Returns the elements at a shard's places of every batch; the first one is at `place`."""
  if shard.batch_size % shard.num_shards == 0:
    begin = (shard.position - place) % shard.num_shards
    return elements if shard.num_shards == 1 else elements.shard(shard.num_shards, begin)

  def find_own(first):
    places = first + tf.range(_BLOCK, dtype=tf.int64)
    return tf.equal(shard.number_of(places), shard.position)

  # A filter that returns what it gets calls no function, which would cost as much as an element.
  places = tf.data.Dataset.range(place, _ENDLESS, _BLOCK)
  are_own = data_sets.unbatch(places.map(as_written(find_own)))
  own = tf.data.Dataset.zip((elements, are_own)).filter(as_written(lambda _, is_own: is_own))
  return own.map(as_written(lambda element, _: element))


def _missing_elements(components, plan):
  """Returns a data set that follows the elements: an error if there are fewer than promised.

  An epoch that ends early would put staging areas out of step, and take examples twice, silently.
  """
  def fail(_):
    message = (': the stream has ended: let it wait for more, or train fewer steps.'
               if plan.is_endless else
               f' promised num_examples={plan.num_examples}, but its elements ended before that.')
    with tf.control_dependencies([tf.Assert(False, [components.name + message])]):
      return components.zeros()

  return tf.data.Dataset.range(1).map(fail)
