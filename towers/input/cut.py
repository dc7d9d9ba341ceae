"""Cut: an epoch's elements become batches, each of what the plan deals to a shard and a tower.

With several shards, each takes from every global batch the examples that the plan deals to it.
Batches may then differ in size, and data sets are cut where `Dataset.batch` cannot cut them. In the
mode `split` the graph cuts the one batch over the towers by tf.split, in `pipeline`.
"""

import functools
from typing import Any

from tensorflow_v1 import tf
from towers.data.examples import Examples
from towers.input.plan import Plan, Shard
from towers.input.rows import batch_rows, cut_rows


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


def batch_elements(elements: Any, examples: Examples, plan: Plan, shard: Shard,
                   first_micro_batch: Any) -> Any:
  """Returns batches: of one tower if the shard is of one or shared by turns, else of the worker."""
  make_batches = functools.partial(batch_rows, padding=examples.padding, name=examples.name,
                                   marks_bad=examples.marks_bad)
  if (shard.takes_turns and shard.num_shards == 1 and plan.is_even and examples.padding is None and
      plan.micro_batch_size % plan.num_towers == 0):
    # Cutting takes a data set for each batch, which costs more than gathering small examples. But
    # batches that are padded one by one differ in size.
    return elements.batch(plan.micro_batch_size // plan.num_towers, drop_remainder=True)

  if shard.num_shards > 1:
    batches = _deal_batches(elements, examples.padding, make_batches, plan, shard,
                            first_micro_batch)
  else:
    batches = make_batches(elements, plan.micro_batch_size, drop_remainder=plan.is_even)
  return _share_batches(batches, plan.num_towers) if shard.takes_turns else batches


def batch_carried(elements: Any, examples: Examples, plan: Plan, shard: Shard) -> Any:
  """Returns the same as `batch_elements` of epochs that have been joined."""
  size = shard.dealt(plan.micro_batch_size)
  # Workers whose sizes differ would build graphs of other shapes.
  settings = dict(drop_remainder=plan.micro_batch_size % plan.num_workers == 0)
  if shard.takes_turns and examples.padding is None and size % plan.num_towers == 0:
    return elements.batch(size // plan.num_towers, **settings)
  batches = batch_rows(elements, size, padding=examples.padding, name=examples.name,
                       marks_bad=examples.marks_bad, **settings)
  return _share_batches(batches, plan.num_towers) if shard.takes_turns else batches


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
  empty = tf.data.Dataset.from_tensors(build_zeros(batches, first_size=0))
  batches = batches.concatenate(empty)
  return batches.take(plan.micro_batches_per_epoch - first_micro_batch)


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


def build_zeros(data_set: Any, first_size: Any) -> Any:
  """Returns zeros in the structure of an element; `first_size` replaces the first dimension."""
  def zeros(dtype, shape):
    if first_size is None:
      return tf.zeros([size or 0 for size in shape.as_list()], dtype)
    # A row that fills an empty batch of padded examples has this shape: few kernels take size 0.
    sizes = [1 if size is None else size for size in shape.as_list()[1:]]
    return tf.zeros([first_size] + sizes, dtype)

  return tf.nest.map_structure(zeros, tf.data.get_output_types(data_set),
                               tf.data.get_output_shapes(data_set))
