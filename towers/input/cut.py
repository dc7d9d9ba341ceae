"""Cut: a shard's elements become batches, of the worker or of one tower, padded where sizes differ.

In the mode `split` the graph cuts the worker's batch over its towers by tf.split, in `pipeline`.
"""

from typing import Any, List, Optional

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.components import Component, Components, find_components
from towers.data.composite import map_rows
from towers.data.examples import Examples, Padding
from towers.input.plan import Plan, Shard, dealt
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
  padding = _choose_padding(elements, examples.padding, examples.name)
  # Cutting takes a data set for each batch, which costs more than gathering small examples. But
  # batches that are padded one by one differ in size.
  is_cut = num_towers > 1 and not (
      plan.is_static and shard.size % num_towers == 0 and padding is None)
  batches = _batch_rows(elements, shard.size if is_cut else shard.size // num_towers, padding,
                        name=examples.name, marks_bad=examples.marks_bad,
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


def check_ranks(components: Components) -> None:
  """Raises a UsageError if only a run knows the number of dimensions of a component."""
  for part in components.parts:
    if part.shape.ndims is None:
      raise UsageError(f'{components.name}: the number of dimensions of {part} is unknown: call '
                       'set_shape on it, with [None] for one dimension of any size.')


def _choose_padding(data_set: Any, padding: Optional[Padding], name: str) -> Optional[Padding]:
  """Returns how batches are padded: as the split is, or for `composite.ROWS` alone."""
  parts = find_components(data_set, name).parts
  if padding is not None or not any(part.is_of_rows for part in parts):
    return padding
  for part in parts:
    if not part.is_of_rows and not part.shape.is_fully_defined():
      raise UsageError(f'{name}: {part} has the shape {part.shape}, and stands beside a sparse or '
                       'ragged one: call set_shape on it, or, for sizes that differ, give the '
                       'split to towers.padded.')
  return Padding()


def _batch_rows(data_set: Any, size: int, padding: Optional[Padding], *, name: str,
                marks_bad: bool, drop_remainder: bool) -> Any:
  """Returns the data set in batches of `size`; its elements are `(example, is_good)` if it marks.
  """
  if padding is None:
    return data_set.batch(size, drop_remainder=drop_remainder)
  components = find_components(data_set, name, marks_bad=marks_bad)
  check_ranks(components)
  if all(part.shape.is_fully_defined() for part in components.parts):
    shapes = ', '.join(str(part.shape) for part in components.parts)
    raise UsageError(f'{name}: towers.padded has nothing to pad, for the shapes of an example are '
                     f'{shapes}: leave it out.')

  most: Any = None if padding.pad_to == 'batch' else padding.pad_to
  padded_shapes = tf.nest.pack_sequence_as(components.structure, [
      part.shape if part.is_of_rows else
      tf.TensorShape([most if size is None else size for size in part.shape.as_list()])
      for part in components.parts])
  if most is not None:
    data_set = data_set.map(as_written(_size_check(components, most)))
  types = components.structure[0] if marks_bad else components.structure
  values = _find_values(types, padding.values, components)
  return data_set.padded_batch(
      size, padded_shapes, drop_remainder=drop_remainder,
      padding_values=(values, tf.constant(False)) if marks_bad else values)


def _find_values(types: Any, values: Any, components: Components) -> Any:
  """Returns a padding value for each tensor of an example, in its structure of `types`."""
  flat: List[Any] = [None] * len(tf.nest.flatten(types))
  if values is not None:
    # A component of several tensors has one value.
    sizes = map_rows(lambda rows: len(tf.nest.flatten(rows)),
                     tf.nest.map_structure(lambda dtype: 1, types))
    try:
      tf.nest.assert_same_structure(sizes, values)
    except (TypeError, ValueError):
      structure = map_rows(lambda rows: None,
                           tf.nest.map_structure(lambda dtype: dtype.name, types))
      raise UsageError(f'{components.name}: the padding values {values!r} do not have the '
                       f'structure of an example, {structure}: give one for each component, or '
                       'None.') from None
    flat = [value for size, value in zip(tf.nest.flatten(sizes), tf.nest.flatten(values))
            for _ in range(size)]
  return tf.nest.pack_sequence_as(types, [
      _find_value(value, part, components.name) for value, part in zip(flat, components.parts)])


def _find_value(value: Optional[Any], part: Component, name: str) -> Any:
  """Returns a scalar constant of a component's dtype."""
  is_text = part.dtype == tf.string
  if value is None:
    value = '' if is_text else 0
  elif part.is_of_rows:
    raise UsageError(f'{name}: {part} is sparse or ragged and is not padded, but its padding value '
                     f'is {value!r}: give None.')
  kind = np.dtype(object if is_text else part.dtype.as_numpy_dtype)
  try:
    fits = isinstance(value, (str, bytes)) if is_text else bool(np.array(value, kind) == value)
  except (TypeError, ValueError, OverflowError):
    fits = False
  if not fits:
    raise UsageError(f'{name}: padding value {value!r} does not fit {part.dtype.name}, the dtype '
                     f'of {part}: give a value of this dtype, or None.')
  return tf.constant(value if is_text else np.array(value, kind), part.dtype)


def _size_check(components: Components, most: int) -> Any:
  """Returns the function that passes on an example unless it is larger than `most`."""
  def check(*example):
    checks = []
    for part, tensor in zip(components.parts, tf.nest.flatten(example)):
      unknown = [axis for axis, size in enumerate(tensor.shape.as_list()) if size is None]
      if unknown and not part.is_of_rows:
        sizes = tf.gather(tf.shape(tensor), unknown)
        checks.append(tf.Assert(tf.reduce_all(sizes <= most), [
            f'{components.name}: {part} is larger than pad_to={most}. Raise pad_to, or cut the '
            'examples. Its size:', sizes]))
    with tf.control_dependencies(checks):
      return tf.nest.map_structure(
          tf.identity, example if isinstance(components.structure, tuple) else example[0])

  return check
