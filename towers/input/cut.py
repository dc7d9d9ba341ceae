"""Cut: a shard's elements become batches, of the worker or of one tower.

In the mode `split` the graph cuts the worker's batch over its towers by tf.split, in `pipeline`.
"""

from typing import Any, Optional

import numpy as np

from towers.data.components import find_components
from towers.data.examples import Examples
from towers.input.plan import Plan, Shard, dealt
from towers.input.rows import batch_rows
from towers.tensorflow_v1 import as_written, tf


def leading_size(batch: Any, dtype: Any) -> Any:
  """Returns the number of rows of a batch of any structure, a scalar tensor."""
  tensors = tf.nest.flatten(batch)
  for tensor in tensors:
    if tensor.shape.ndims == 1:
      return tf.size(tensor, out_type=dtype)  # One op, where a shape and its first take five.
  return tf.shape(tensors[0], out_type=dtype)[0]


def batch_elements(elements: Any, examples: Examples, plan: Plan, shard: Shard,
                   num_batches: Optional[Any] = None) -> Any:
  """Returns batches: of one tower if the shard is of one or shared by turns, else of the worker.

  `num_batches` are those to make of the elements, the rest of an epoch; None if they never end.
  """
  num_towers = plan.num_towers if shard.takes_turns else 1
  # Cutting takes a data set for each batch, which costs more than gathering small examples. But
  # batches that are padded one by one differ in size.
  is_cut = num_towers > 1 and not (
      plan.is_static and shard.size % num_towers == 0 and examples.padding is None)
  batches = batch_rows(elements, shard.size if is_cut else shard.size // num_towers,
                       padding=examples.padding, name=examples.name, marks_bad=examples.marks_bad,
                       drop_remainder=plan.is_static)
  if shard.num_shards > 1 and num_batches is not None:
    # The last micro-batch may deal nothing to a shard, which must not end before the others.
    zeros = find_components(batches, examples.name).zeros()
    empty = tf.data.Dataset.from_tensors(tf.nest.map_structure(lambda tensor: tensor[:0], zeros))
    batches = batches.concatenate(empty).take(num_batches)
  return _share_batches(batches, num_towers) if is_cut else batches


def _share_batches(batches, num_towers):
  """Cuts each batch into a share for every tower, which loses no example at the end."""
  is_tuple = isinstance(tf.data.get_output_types(batches), tuple)

  def cut(*batch):
    batch = batch if is_tuple else batch[0]
    ends = tf.cumsum(dealt(leading_size(batch, tf.int64), np.arange(num_towers), num_towers))
    slices = tf.data.Dataset.from_tensor_slices((tf.concat([[0], ends[:-1]], 0), ends))
    return slices.map(as_written(
        lambda begin, end: tf.nest.map_structure(lambda tensor: tensor[begin:end], batch)))

  return batches.flat_map(as_written(cut))
