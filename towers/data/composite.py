"""Composite: sparse and ragged components as rows of dense tensors, which any input mode can cut.

  example   RaggedTensor ──► values, and the lengths of rows ─┐
            SparseTensor ──► indices and values, and how many ─┴─► padded in a batch, which is cut,
  tower     RaggedTensor, SparseTensor of its part of the batch ◄── staged and switched

Staging areas, splits and switches take dense tensors alone. A model never sees the padding.
"""

from typing import Any, Callable, List, NamedTuple, Tuple

from towers.base.later import as_written, tf
from towers.base.usage_error import UsageError


class RaggedRows(NamedTuple):
  """A RaggedTensor of an example `[num_rows, (…), …]`, or those of a batch, one in each row."""
  flat_values: Any  # `[values, ...]`, in a batch `[batch, most, ...]`.
  row_lengths: Tuple[Any, ...]  # For each ragged dimension `[rows]`, in a batch `[batch, most]`.
  num_rows: Any  # Of its first dimension, int64 `[]`, in a batch `[batch]`.


class SparseRows(NamedTuple):
  """A SparseTensor of an example, or those of a batch, one in each row."""
  indices: Any  # `[values, rank]` int64, in a batch `[batch, most, rank]`.
  values: Any  # `[values]`, in a batch `[batch, most]`.
  num_values: Any  # Int64 `[]`, in a batch `[batch]`.
  extent: Any  # Of no element; its static shape is `[0]`, or `[batch, 0]`, and the dense shape.


ROWS = (RaggedRows, SparseRows)


def find_paths(structure: Any, path: str = '') -> List[str]:
  """Returns the path to each leaf, in the order of `tf.nest.flatten`, which sorts keys.

  All leaves of `ROWS` have the path of their component.
  """
  if isinstance(structure, dict):
    parts = sorted(structure.items())
  elif isinstance(structure, ROWS):
    return [path] * len(tf.nest.flatten(structure))
  elif isinstance(structure, (tuple, list)):
    parts = list(enumerate(structure))
  else:
    return [path]
  return [leaf for key, part in parts for leaf in find_paths(part, f'{path}/{key}'.lstrip('/'))]


def map_rows(function: Callable[[Any], Any], structure: Any) -> Any:
  """Returns a structure with `function(rows)` in place of all `ROWS` in it."""
  if isinstance(structure, ROWS):
    return function(structure)
  is_dict = isinstance(structure, dict)
  parts = list(structure.values()) if is_dict else (
      structure if isinstance(structure, tuple) else [])
  mapped = [map_rows(function, part) for part in parts]
  if all(new is old for new, old in zip(mapped, parts)):
    return structure
  if is_dict:
    return type(structure)(zip(structure, mapped))
  return type(structure)(*mapped) if hasattr(structure, '_fields') else tuple(mapped)


def find_rows(structure: Any) -> List[bool]:
  """Returns for each leaf, in the order of `tf.nest.flatten`, whether it is part of `ROWS`."""
  marked = map_rows(lambda rows: tf.nest.map_structure(lambda _: None, rows), structure)
  return [leaf is None for leaf in tf.nest.flatten(marked)]


def encode_dataset(dataset: Any, name: str) -> Any:
  """Returns a data set of examples with `ROWS` in place of sparse and ragged components."""
  kinds = tf.nest.flatten(tf.data.get_output_classes(dataset))
  if all(kind is tf.Tensor for kind in kinds):
    return dataset
  types, shapes = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)

  def encode(*example):
    leaves = tf.nest.flatten(example)
    return encode_example(tf.nest.pack_sequence_as(types, leaves), name,
                          shapes=tf.nest.flatten(shapes))

  return dataset.map(as_written(encode))


def encode_example(example: Any, name: str, shapes: Any = None) -> Any:
  """Returns an example with `ROWS` in place of sparse and ragged components.

  `shapes` are those of the components, a flat list, where tensors have lost theirs.
  """
  leaves = tf.nest.flatten(example)
  encoders = {tf.RaggedTensor: _encode_ragged, tf.SparseTensor: _encode_sparse}
  if not any(type(leaf) in encoders for leaf in leaves):
    return example
  encoded = []
  for position, (leaf, path) in enumerate(zip(leaves, find_paths(example))):
    encode = encoders.get(type(leaf))
    component = f'{name}: ' + (f'the component {path}' if path else 'the example')
    encoded.append(leaf if encode is None else encode(
        leaf, leaf.shape if shapes is None else shapes[position], component))
  return tf.nest.pack_sequence_as(example, encoded)


def decode_batch(tensors: Any) -> Any:
  """Returns a batch with SparseTensors and RaggedTensors in place of `ROWS`.

  Its dicts are copies: a model may add to them, and take from them.
  """
  decoded = map_rows(lambda rows: _decode_ragged(rows) if isinstance(rows, RaggedRows) else
                     _decode_sparse(rows), tensors)
  return tf.nest.map_structure(lambda tensor: tensor, decoded)


def _encode_ragged(ragged, shape, component):
  if shape.ndims is None:
    raise UsageError(f'{component} is a RaggedTensor whose number of dimensions is unknown: make '
                     'it of values that have a shape.')
  values = ragged.flat_values
  values.set_shape([None] + shape.as_list()[1 + ragged.ragged_rank:])
  return RaggedRows(
      values, tuple(tf.cast(lengths, tf.int64) for lengths in ragged.nested_row_lengths()),
      tf.cast(ragged.nrows(), tf.int64))


def _encode_sparse(sparse, shape, component):
  if not shape.is_fully_defined():
    raise UsageError(
        f'{component} is a SparseTensor of the dense shape {shape}, which a batch needs to know: '
        'give the shape as constants, as tf.SparseTensor(value.indices, value.values, [size]). Or '
        'return value.values or tf.sparse.to_dense(value), and give the split to towers.padded.')
  indices = sparse.indices
  indices.set_shape([None, shape.ndims])
  values = sparse.values
  values.set_shape([None])
  return SparseRows(indices, values, tf.size(values, out_type=tf.int64),
                    tf.zeros([0] + shape.as_list(), tf.uint8))


def _decode_ragged(rows):
  counts, lengths = rows.num_rows, [rows.num_rows]
  for of_rows in rows.row_lengths:
    lengths.append(_drop_padding(of_rows, counts))
    counts = tf.reduce_sum(of_rows, 1)  # The padding is 0.
  return tf.RaggedTensor.from_nested_row_lengths(_drop_padding(rows.flat_values, counts), lengths)


def _drop_padding(padded, counts):
  """Returns the first `counts[i]` values of each row i, one after another."""
  return tf.boolean_mask(padded, tf.sequence_mask(counts, tf.shape(padded, out_type=tf.int64)[1]))


def _decode_sparse(rows):
  most = tf.shape(rows.values, out_type=tf.int64)[1]
  places = tf.where(tf.sequence_mask(rows.num_values, most))  # `[values, 2]`: row, and where in it.
  indices = tf.concat([places[:, :1], tf.gather_nd(rows.indices, places)], 1)
  batch_size = tf.shape(rows.values, out_type=tf.int64)[0]
  sizes = [tf.constant(size, tf.int64) for size in rows.extent.shape.as_list()[2:]]
  return tf.SparseTensor(indices, tf.gather_nd(rows.values, places), tf.stack([batch_size] + sizes))
