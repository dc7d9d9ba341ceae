"""Arrays: numpy arrays as a split of a data set.

The elements are the indices 0 … n-1, so that sharding, shuffling and skipping move eight bytes an
example, whatever its size, and a shuffle buffer as long as the split costs next to nothing. One
`tf.gather` for each array turns a batch of indices into images and labels, on the CPU: it copies an
example once, into its batch, where `Dataset.from_tensor_slices` copies it twice. The arrays
themselves are fed when iterators are initialised. As graph constants they would stand in the
GraphDef once for every dataset made of them, and fail beyond its 2 GB.

  # images [n, height, width, channels], labels [n]
  examples = from_arrays(images, labels, name='train')
  fed = [tf.placeholder(array.dtype, array.shape) for array in examples.arrays]
  batches = examples.elements(*fed).shuffle(examples.num_examples).batch(64)
  # ([64, height, width, channels], [64])
  batches = batches.map(lambda indices: examples.parse_batch(indices, *fed))
"""

import re
from typing import Any, Sequence, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.examples import Examples

# What both a numpy array and a tensor can hold, and tf.gather has kernels for on both targets.
DTYPES = (
    'bool', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64', 'float16',
    'float32', 'float64', 'complex64', 'complex128')


def from_arrays(*arrays: Any, name: str = 'examples') -> Examples:
  """Makes a split of arrays whose first dimension counts the examples.

  Dtypes do not change: uint8 images cross to the devices as uint8, a quarter of the bytes of
  float32. Arrays in native byte order and C order are not copied, so a `np.memmap` is read from
  disk only where TensorFlow touches it.

  Args:
    *arrays: each `[num_examples, ...]`, e.g. images and labels.
    name: what messages and name scopes call the split: letters, digits and underscores.

  Returns:
    Examples. Its batches are tuples of as many tensors as there are arrays, each `[batch, ...]`, in
    the same order.

  Raises:
    UsageError: no arrays, none or an unequal number of examples, 0-d arrays, strings or another
      dtype outside `DTYPES`, or a name that cannot be a name scope.
  """
  if not re.match(r'[A-Za-z0-9_]+\Z', name):
    raise UsageError(f"The name of a split is '{name}'; use letters, digits and underscores, as in "
                     "'my_train'.")
  fed = tuple(_feedable(array, position, name) for position, array in enumerate(arrays))
  num_examples = _count_examples(fed, name)

  # TensorFlow is imported only where a graph is built, so that a wrong path or array fails within a
  # moment, and not after the seconds that importing TensorFlow takes.
  def elements(*_) -> Any:
    from tensorflow_v1 import tf
    # By default tf.data rewrites a pipeline when iterators start, with a copy of the fed arrays in
    # its GraphDef: TensorFlow 1.14 aborts the process when they exceed 2 GB, 2.x takes as much
    # memory again.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return tf.data.Dataset.range(num_examples).with_options(options)

  return Examples(num_examples=num_examples, elements=elements, parse_batch=_gather, arrays=fed,
                  name=name, is_gathered=True)


def _gather(indices: Any, *tensors: Any) -> Tuple[Any, ...]:
  from tensorflow_v1 import tf
  # Beside the arrays: a tower's device scope around this call must not send them to its GPU.
  with tf.device('/cpu:0'):
    return tuple(tf.gather(tensor, indices) for tensor in tensors)


def _count_examples(arrays: Sequence[np.ndarray], name: str) -> int:
  """Returns the number of rows that all arrays have, at least 1."""
  if not arrays:
    raise UsageError(f'{name}: no arrays; give at least one, e.g. from_arrays(images, labels).')
  first = arrays[0]
  for position, array in enumerate(arrays):
    if len(array) != len(first):
      raise UsageError(
          f'{name}: array 0 of shape {first.shape} has {len(first)} examples, and array {position} '
          f'of shape {array.shape} has {len(array)}; every array needs one row for each example.')
  if len(first) == 0:
    raise UsageError(f'{name}: array 0 of shape {first.shape} has 0 examples; give at least 1.')
  return len(first)


def _feedable(array: Any, position: int, name: str) -> np.ndarray:
  """Returns the array in native byte and C order, as TensorFlow takes it; copies only if needed."""
  array = np.asarray(array)
  if array.ndim == 0:
    raise UsageError(
        f'{name}: array {position} is a single value of dtype {array.dtype} with 0 dimensions; it '
        'needs at least 1, the first of which counts the examples.')
  if _holds_strings(array):
    raise UsageError(
        f'{name}: array {position} of shape {array.shape} holds strings (dtype {array.dtype}), '
        'which from_arrays does not feed: give their indices, e.g. np.unique(strings, '
        'return_inverse=True)[1], or make data.Examples of your own, whose elements or '
        'parse_example may give string tensors.')
  if array.dtype.name not in DTYPES:
    raise UsageError(
        f"{name}: array {position} of shape {array.shape} has dtype {array.dtype}, which cannot be "
        f"fed; convert it with .astype() to one of {', '.join(DTYPES)}. (A list of rows of "
        "unequal length becomes dtype object: pad it.)")
  return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder('='))


def _holds_strings(array: np.ndarray) -> bool:
  """Returns whether an array is of bytes or str, as numpy keeps them or as Python objects."""
  if array.dtype == object:
    return array.size > 0 and all(isinstance(value, (bytes, str)) for value in array.flat)
  return array.dtype.kind in 'SU'
