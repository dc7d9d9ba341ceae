"""Arrays: numpy arrays as a split of a data set.

The elements are the indices 0 … n-1, so that any position of a shuffled epoch is known at once. One
`tf.gather` for each array turns a batch of indices into images and labels, on the CPU: it copies an
example once, into its batch, where `Dataset.from_tensor_slices` copies it twice. The arrays
themselves are fed when iterators are initialised. As graph constants they would stand in the
GraphDef once for every dataset made of them, and fail beyond its 2 GB. A pipeline of your own needs
`tensorflow_v1.plain_data_options` for such arrays: by default tf.data rewrites it when it starts,
with a copy of the fed arrays in its GraphDef.

  # images [n, height, width, channels], labels [n]
  examples = from_arrays(images, labels, name='train')
  fed = [tf.placeholder(array.dtype, array.shape) for array in examples.arrays]
  batches = tf.data.Dataset.range(examples.num_examples).batch(64)
  # ([64, height, width, channels], [64])
  batches = batches.map(lambda indices: examples.parse_batch(indices, *fed))
"""

import re
from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.examples import Examples

# Of numbers: what both a numpy array and a tensor can hold, and tf.gather has kernels for on both
# targets.
DTYPES = (
    'bool', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64', 'float16',
    'float32', 'float64', 'complex64', 'complex128')


def from_arrays(*arrays: Any, name: str = 'examples') -> Examples:
  """Makes a split of arrays whose first dimension counts the examples.

  Dtypes do not change: uint8 images cross to the devices as uint8, a quarter of the bytes of
  float32. Arrays in native byte order and C order are not copied, so a `np.memmap` is read from
  disk only where TensorFlow touches it. Strings become byte strings, `str` in UTF-8.

    from_arrays(images, labels)                        # batches are (images, labels)
    from_arrays({'image': images, 'name': names})      # batches are such dicts

  Args:
    *arrays: each `[num_examples, ...]`, e.g. images and labels; or instead a single dict or tuple
      of arrays, nested in any way. A list is an array.
    name: what messages and name scopes call the split: letters, digits and underscores.

  Returns:
    Examples. Its batches are tuples of as many tensors as there are arrays, each `[batch, ...]`, in
    the same order; or tensors in the structure of the dict or tuple.

  Raises:
    UsageError: no arrays, none or an unequal number of examples, 0-d arrays, a dtype outside
      `DTYPES` that is not of strings, or a name that cannot be a name scope.
  """
  check_name(name)
  is_structure = len(arrays) == 1 and isinstance(arrays[0], (dict, tuple))
  structure = arrays[0] if is_structure else arrays
  leaves = list(_leaves(structure, '', name))
  labels = [f'array {path}' for path, _ in leaves]
  fed = tuple(_feedable(array, label, name) for label, (_, array) in zip(labels, leaves))
  num_examples = _count_examples(fed, labels, name)

  def gather(indices: Any, *tensors: Any) -> Any:
    # TensorFlow is imported only where a graph is built, so that a wrong path or array fails within
    # a moment, and not after the seconds that importing TensorFlow takes.
    from tensorflow_v1 import tf
    # Beside the arrays: a tower's device scope around this call must not send them to its GPU.
    with tf.device('/cpu:0'):
      return _pack(structure, iter([tf.gather(tensor, indices) for tensor in tensors]))

  return Examples(num_examples=num_examples, parse_batch=gather, arrays=fed, name=name,
                  is_gathered=True)


def check_name(name: str) -> None:
  """Raises a UsageError if a split's name cannot be a name scope."""
  if not re.match(r'[A-Za-z0-9_]+\Z', name):
    raise UsageError(f"The name of a split is '{name}'; use letters, digits and underscores, as in "
                     "'my_train'.")


def _leaves(structure: Any, path: str, name: str) -> Iterator[Tuple[str, Any]]:
  """Yields the arrays in a dict or tuple, each with the path to it."""
  if not isinstance(structure, (dict, tuple)):
    yield path, structure
    return
  parts = structure.items() if isinstance(structure, dict) else enumerate(structure)
  for key, part in parts:
    if isinstance(structure, dict) and not isinstance(key, str):
      raise UsageError(f'{name}: the key {key!r} of a dict of arrays is no string; keys become '
                       'those of the batches.')
    yield from _leaves(part, f"{path}{'/' if path else ''}{key}", name)


def _pack(structure: Any, values: Iterator[Any]) -> Any:
  """Returns values in the order of `_leaves` in their structure."""
  if isinstance(structure, dict):
    return {key: _pack(part, values) for key, part in structure.items()}
  if isinstance(structure, tuple):
    parts = [_pack(part, values) for part in structure]
    return type(structure)(*parts) if hasattr(structure, '_fields') else tuple(parts)
  return next(values)


def _count_examples(arrays: Sequence[np.ndarray], labels: List[str], name: str) -> int:
  """Returns the number of rows that all arrays have, at least 1."""
  if not arrays:
    raise UsageError(f'{name}: no arrays; give at least one, e.g. from_arrays(images, labels).')
  first = arrays[0]
  for label, array in zip(labels, arrays):
    if len(array) != len(first):
      raise UsageError(
          f'{name}: {labels[0]} of shape {first.shape} has {len(first)} examples, and {label} '
          f'of shape {array.shape} has {len(array)}; every array needs one row for each example.')
  if len(first) == 0:
    raise UsageError(
        f'{name}: {labels[0]} of shape {first.shape} has 0 examples; give at least 1.')
  return len(first)


def _feedable(array: Any, label: str, name: str) -> np.ndarray:
  """Returns the array in native byte and C order, as TensorFlow takes it; copies only if needed."""
  array = np.asarray(array)
  if array.ndim == 0:
    raise UsageError(
        f'{name}: {label} is a single value of dtype {array.dtype} with 0 dimensions; it '
        'needs at least 1, the first of which counts the examples.')
  if _holds_strings(array):
    return _as_byte_strings(array)
  if array.dtype.name not in DTYPES:
    raise UsageError(
        f"{name}: {label} of shape {array.shape} has dtype {array.dtype}, which cannot be "
        f"fed; convert it with .astype() to one of {', '.join(DTYPES)}, or make it an array of "
        "strings. (A list of rows of unequal length becomes dtype object: pad it.)")
  return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder('='))


def _holds_strings(array: np.ndarray) -> bool:
  """Returns whether an array is of bytes or str, as numpy keeps them or as Python objects."""
  if array.dtype == object:
    return array.size > 0 and all(isinstance(value, (bytes, str)) for value in array.flat)
  return array.dtype.kind in 'SU'


def _as_byte_strings(array: np.ndarray) -> np.ndarray:
  """Returns an array of Python's bytes, which TensorFlow takes whole, zero bytes included."""
  strings = np.empty(array.shape, object)
  for index, value in zip(np.ndindex(*array.shape), array.flat):
    strings[index] = value.encode() if isinstance(value, str) else bytes(value)
  return strings
