"""Rows: examples become batches, padded where their sizes differ."""

from typing import Any, List, Optional

import numpy as np

from tensorflow_v1 import as_written, tf
from towers.base.usage_error import UsageError
from towers.data.composite import find_paths, find_rows, map_rows
from towers.data.examples import Padding


def check_components(data_set: Any, name: str) -> None:
  """Refuses elements or examples that have a component which is no tensor.

  Raises:
    UsageError: names the component and the fix.
  """
  types = tf.data.get_output_types(data_set)
  classes = tf.nest.flatten(tf.data.get_output_classes(data_set))
  for component, kind in zip(_name_components(types), classes):
    if kind is not tf.Tensor:
      what = getattr(kind, '__name__', type(kind).__name__)
      raise UsageError(f'{name}: {component} of an example is a {what}, which cannot be cut over '
                       'towers: return a dense tensor, as tf.sparse.to_dense(value) or '
                       "value.to_tensor() do; for sizes that differ, towers.padded(examples, "
                       "pad_to='batch').")


def check_ranks(data_set: Any, name: str) -> None:
  """Refuses elements or examples whose number of dimensions only a run knows.

  Raises:
    UsageError: names the component and the fix.
  """
  types = tf.data.get_output_types(data_set)
  shapes = tf.nest.flatten(tf.data.get_output_shapes(data_set))
  for component, shape in zip(_name_components(types), shapes):
    if shape.ndims is None:
      raise UsageError(f'{name}: the number of dimensions of {component} of an example is unknown: '
                       'call set_shape on it, with [None] for one dimension of any size.')


def choose_padding(data_set: Any, padding: Optional[Padding], name: str) -> Optional[Padding]:
  """Returns how batches are padded: as the split is, or for `composite.ROWS` alone.

  Raises:
    UsageError: beside them, a component of any size in a split that is not padded.
  """
  types = tf.data.get_output_types(data_set)
  are_of_rows = find_rows(types)
  if padding is not None or not any(are_of_rows):
    return padding
  shapes = tf.nest.flatten(tf.data.get_output_shapes(data_set))
  for component, shape, is_of_rows in zip(_name_components(types), shapes, are_of_rows):
    if not is_of_rows and not shape.is_fully_defined():
      raise UsageError(f'{name}: {component} of an example has the shape {shape}, and stands '
                       'beside a sparse or ragged one: call set_shape on it, or, for sizes that '
                       'differ, give the split to towers.padded.')
  return Padding()


def batch_rows(data_set: Any, size: int, *, padding: Optional[Padding], name: str,
               marks_bad: bool = False, drop_remainder: bool = False) -> Any:
  """Returns the data set in batches of `size`.

  Args:
    data_set: of examples or elements.
    size: examples in a batch.
    padding: of the split, or None.
    name: of the split.
    marks_bad: whether elements are `(example, is_good)`.
    drop_remainder: whether to leave out a last batch that is smaller.

  Raises:
    UsageError: padding that does not fit the examples.
  """
  if padding is None:
    return data_set.batch(size, drop_remainder=drop_remainder)
  check_ranks(data_set, name)
  shapes = tf.data.get_output_shapes(data_set)
  if all(shape.is_fully_defined() for shape in tf.nest.flatten(shapes)):
    raise UsageError(f'{name}: towers.padded has nothing to pad, for the shapes of an example are '
                     f'{", ".join(map(str, tf.nest.flatten(shapes)))}: leave it out.')

  most = None if padding.pad_to == 'batch' else padding.pad_to
  padded_shapes = tf.nest.pack_sequence_as(shapes, [
      shape if is_of_rows else
      tf.TensorShape([most if size is None else size for size in shape.as_list()])
      for shape, is_of_rows in zip(tf.nest.flatten(shapes), find_rows(tf.data.get_output_types(
          data_set)))])
  if most is not None:
    data_set = data_set.map(as_written(_size_check(data_set, most, name, marks_bad)))
  types = tf.data.get_output_types(data_set)
  values = (_find_values(types[0], padding.values, name), tf.constant(False)) if marks_bad else (
      _find_values(types, padding.values, name))
  return data_set.padded_batch(size, padded_shapes, drop_remainder=drop_remainder,
                               padding_values=values)


def cut_rows(data_set: Any, size: int, edges: Any, make_batches: Any) -> Any:
  """Returns a batch for each two neighbours of `edges`, from every `size` examples.

  Other than a cut of padded batches, it pads each by itself.

  Args:
    data_set: of examples.
    size: examples between the first and the last edge.
    edges: a vector that begins with 0.
    make_batches: `make_batches(data_set, size)` for the batches.
  """
  def cut(*window):
    is_tuple = len(window) > 1 or isinstance(window[0], tuple)
    rows: Any = window[0] if len(window) == 1 else window
    rows = tf.data.Dataset.zip(rows) if is_tuple or isinstance(rows, dict) else rows
    pairs = tf.data.Dataset.from_tensor_slices((edges[:-1], edges[1:]))
    return pairs.flat_map(as_written(
        lambda begin, end: make_batches(rows.skip(begin).take(end - begin), size)))

  return data_set.window(size).flat_map(as_written(cut))


def _find_values(types, values, name):
  """Returns a padding value for each tensor, in the structure of an example."""
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
      raise UsageError(f'{name}: the padding values {values!r} do not have the structure of an '
                       f'example, {structure}: give one for each component, or None.') from None
    flat = [value for size, value in zip(tf.nest.flatten(sizes), tf.nest.flatten(values))
            for _ in range(size)]
  components = zip(flat, find_rows(types), tf.nest.flatten(types), _name_components(types))
  found = []
  for value, is_of_rows, dtype, component in components:
    if is_of_rows and value is not None:
      raise UsageError(f'{name}: {component} of an example is sparse or ragged and is not padded, '
                       f'but its padding value is {value!r}: give None.')
    found.append(_find_value(value, dtype, component, name))
  return tf.nest.pack_sequence_as(types, found)


def _find_value(value: Optional[Any], dtype: Any, component: str, name: str) -> Any:
  """Returns a scalar constant of a component's dtype."""
  if value is None:
    value = '' if dtype == tf.string else 0
  kind = np.dtype(object) if dtype == tf.string else np.dtype(dtype.as_numpy_dtype)
  try:
    fits = isinstance(value, (str, bytes)) if dtype == tf.string else (
        bool(np.array(value, kind) == value))
  except (TypeError, ValueError, OverflowError):
    fits = False
  if not fits:
    raise UsageError(f'{name}: padding value {value!r} does not fit {dtype.name}, the dtype of '
                     f'{component} of an example: give a value of this dtype, or None.')
  return tf.constant(value if dtype == tf.string else np.array(value, kind), dtype)


def _size_check(data_set, most, name, marks_bad):
  """Returns the function that passes on an example unless it is larger than `most`."""
  types = tf.data.get_output_types(data_set)
  is_tuple = isinstance(types, tuple)
  names = _name_components(types[0] if marks_bad else types)
  are_of_rows = find_rows(types)

  def check(*example):
    example = example if is_tuple else example[0]
    checks = []
    for component, tensor, is_of_rows in zip(names, tf.nest.flatten(example), are_of_rows):
      unknown = [axis for axis, size in enumerate(tensor.shape.as_list()) if size is None]
      if unknown and not is_of_rows:
        sizes = tf.gather(tf.shape(tensor), unknown)
        checks.append(tf.Assert(tf.reduce_all(sizes <= most), [
            f'{name}: {component} of an example is larger than pad_to={most}. Raise pad_to, or cut '
            'the examples. Its size:', sizes]))
    with tf.control_dependencies(checks):
      return tf.nest.map_structure(tf.identity, example)

  return check


def _name_components(types) -> List[str]:
  """Returns in words which component of an example each tensor is."""
  paths = find_paths(types)
  if isinstance(types, dict) and not any('/' in path for path in paths):
    return [f'component {path!r}' for path in paths]
  if any(find_rows(types)):
    return [f'component {path}' for path in paths]
  return [f'component {position}' for position in range(len(paths))]
