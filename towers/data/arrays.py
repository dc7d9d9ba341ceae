"""Arrays: numpy arrays as a split of a data set.

The elements are the indices 0 … n-1, so that any position of a shuffled epoch is known at once. One
`tf.gather` for each array turns a batch of indices into images and labels, on the CPU: it copies an
example once, into its batch, where `Dataset.from_tensor_slices` copies it twice. The arrays
themselves are fed when iterators are initialised, since a GraphDef holds 2 GB at most.

Rows of unequal length, such as sentences, are fed one after another, with where each begins. An
example is a slice of them, which `padded` pads.
"""

import re
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.later import tf
from towers.base.usage_error import UsageError
from towers.data.examples import Examples

# Of numbers: what an array and a tensor can hold, and tf.gather takes on both targets.
DTYPES = (
    'bool', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64', 'float16',
    'float32', 'float64', 'complex64', 'complex128')


class _Column(NamedTuple):
  """One component of all examples."""
  label: str
  # The array, `[num_examples, ...]`; or of rows of unequal length all values, one row after
  # another, and where each row begins and the last one ends, `[num_examples + 1]`.
  fed: Tuple[np.ndarray, ...]

  @property
  def is_unequal(self) -> bool:
    return len(self.fed) > 1

  @property
  def num_examples(self) -> int:
    return len(self.fed[-1]) - self.is_unequal

  @property
  def num_bytes(self) -> np.ndarray:
    """Of each row of unequal length; of strings, in proportion to how many there are."""
    values, starts = self.fed
    return np.diff(starts) * (values[:1].nbytes or 1)

  def take(self, index: Any, tensors: Iterator[Any]) -> Any:
    """Returns an example, given the next of the tensors that are fed; or of an array, a batch."""
    values = next(tensors)
    if not self.is_unequal:
      return tf.gather(values, index)
    starts = next(tensors)
    return values[starts[index]:starts[index + 1]]


class Gather:
  """Takes rows in the structure of the arrays, as the `parse_batch` of `from_arrays` does."""

  def __init__(self, structure: Any, columns: Sequence[_Column]):
    """Takes what `from_arrays` has found."""
    self._structure, self._columns = structure, columns

  def __call__(self, index: Any, *tensors: Any) -> Any:
    """Returns the batch of these indices, or the example of one, given what is fed as tensors."""
    given, own = iter(tensors), iter(self._columns)
    # Beside the arrays: a tower's device scope around this call must not send them to its GPU.
    with tf.device('/cpu:0'):
      return _map_arrays(lambda *_: next(own).take(index, given), self._structure)

  def cut(self, rows: slice, arrays: Sequence[np.ndarray]) -> Any:
    """Returns these rows of the arrays themselves, without a graph."""
    given = iter(arrays)
    return _map_arrays(lambda *_: next(given)[rows], self._structure)


def from_arrays(*arrays: Any, name: str = 'examples') -> Examples:
  """Makes a split of arrays whose first dimension counts the examples.

  Dtypes do not change: uint8 images cross to the devices as uint8, a quarter of the bytes of
  float32. Arrays in native byte order and C order are not copied, so a `np.memmap` is read from
  disk only where TensorFlow touches it. Strings become byte strings, `str` in UTF-8.

    from_arrays(images, labels)                        # batches are (images, labels)
    from_arrays({'image': images, 'name': names})      # batches are such dicts
    padded(from_arrays(sentences, labels))             # sentences of unequal length

  Args:
    *arrays: each `[num_examples, ...]`, or a single dict or tuple of arrays, nested in any way. A
      list is an array. The rows of a list, or of an array of objects, may differ in their length;
      then give the split to `padded`.
    name: of the split in messages and name scopes: letters, digits and underscores.

  Returns:
    Examples. Its batches are tuples of as many tensors as there are arrays, each `[batch, ...]`, in
    the same order; or tensors in the structure of the dict or tuple.

  Raises:
    UsageError: no arrays, none or an unequal number of examples, 0-d arrays, rows that differ in
      more than their length, a dtype outside `DTYPES` that is not of strings, or a name that cannot
      be a name scope.
  """
  check_name(name)
  is_structure = len(arrays) == 1 and isinstance(arrays[0], (dict, tuple))
  structure = arrays[0] if is_structure else arrays
  columns: List[_Column] = []
  _map_arrays(lambda path, array: columns.append(
      _Column(f'array {path}', _feedable(array, f'array {path}', name))), structure, name)
  num_examples = _count_examples(columns, name)
  fed = tuple(array for column in columns for array in column.fed)

  take = Gather(structure, columns)
  unequal = [column for column in columns if column.is_unequal]
  if not unequal:
    return Examples(num_examples=num_examples, parse_batch=take, arrays=fed, name=name,
                    is_gathered=True)

  def read(elements: Any, *tensors: Any, epoch: Any, parallel_calls: Any) -> Any:
    del epoch, parallel_calls  # To slice takes less time than to wake a thread.
    return elements.map(lambda index: take(index, *tensors))

  def refuse(*_: Any, **__: Any) -> Any:
    lengths = np.diff(unequal[0].fed[1])
    raise UsageError(f'{name}: the rows of {unequal[0].label} have {lengths.min():,} to '
                     f'{lengths.max():,} values, and a batch needs one shape: give the split to '
                     'towers.padded, as towers.padded(towers.from_arrays(rows)).')

  examples = Examples(num_examples=num_examples, arrays=fed, name=name, read=read,
                      num_bytes=sum(column.num_bytes for column in unequal))
  return examples._replace(read=refuse, unequal=examples)


def check_name(name: str) -> None:
  """Raises a UsageError if a split's name cannot be a name scope."""
  if not re.match(r'[A-Za-z0-9_]+\Z', name):
    raise UsageError(f"The name of a split is '{name}'; use letters, digits and underscores, as in "
                     "'my_train'.")


def _map_arrays(function: Callable[[str, Any], Any], structure: Any, name: str = '',
                path: str = '') -> Any:
  """Returns a dict or tuple with `function(path, array)` in place of each array in it."""
  if isinstance(structure, dict):
    for key in structure:
      if not isinstance(key, str):
        raise UsageError(f'{name}: the key {key!r} of a dict of arrays is no string; keys become '
                         'those of the batches.')
    return {key: _map_arrays(function, part, name, f'{path}/{key}'.lstrip('/'))
            for key, part in structure.items()}
  if isinstance(structure, tuple):
    parts = [_map_arrays(function, part, name, f'{path}/{index}'.lstrip('/'))
             for index, part in enumerate(structure)]
    return type(structure)(*parts) if hasattr(structure, '_fields') else tuple(parts)
  return function(path, structure)


def _count_examples(columns: Sequence[_Column], name: str) -> int:
  """Returns the number of rows that all arrays have, at least 1."""
  if not columns:
    raise UsageError(f'{name}: no arrays; give at least one, e.g. from_arrays(images, labels).')
  first = columns[0]
  for column in columns:
    if column.num_examples != first.num_examples:
      raise UsageError(
          f'{name}: {_describe(first)} has {first.num_examples} examples, and {_describe(column)} '
          f'has {column.num_examples}; every array needs one row for each example.')
  if first.num_examples == 0:
    raise UsageError(f'{name}: {_describe(first)} has 0 examples; give at least 1.')
  return first.num_examples


def _describe(column: _Column) -> str:
  shape = 'unequal rows' if column.is_unequal else f'shape {column.fed[0].shape}'
  return f'{column.label} of {shape}'


def _feedable(array: Any, label: str, name: str) -> Tuple[np.ndarray, ...]:
  """Returns what is fed of a component, see `_Column`, as TensorFlow takes it."""
  rows = _find_rows(array)
  if hasattr(array, 'graph'):
    raise UsageError(f'{name}: {label} is {array!r}, which has no values outside of a session: '
                     'give a NumPy array, or tensors in the function of towers.from_dataset.')
  if any(isinstance(part, np.ma.MaskedArray) for part in (array, *(rows or ()))):
    raise UsageError(f'{name}: {label} is a masked array, and its batches would hold what lies '
                     'under the mask: give array.filled(value), and where it matters '
                     'numpy.ma.getmaskarray(array) beside it.')
  if rows is None or len({len(row) for row in rows}) < 2:
    return _as_fed(_as_array(array if rows is None else rows, label, name), label, name),
  starts = np.cumsum([0] + [len(row) for row in rows])
  # An empty list has a dtype of its own, but no values.
  filled = {index: _as_array(row, f'{label}, row {index}', name)
            for index, row in enumerate(rows) if len(row)}
  shapes = {row.shape[1:]: index for index, row in filled.items()}
  if len(shapes) > 1:
    (one, index), (other, other_index) = list(shapes.items())[:2]
    raise UsageError(
        f'{name}: rows {index} and {other_index} of {label} hold values of shapes {one} and '
        f'{other}: only the length of a row may differ, its first dimension.')
  return _as_fed(np.concatenate(list(filled.values())), label, name), starts


def _find_rows(array: Any) -> Optional[List[Any]]:
  """Returns the rows of a list of rows, or of an array of such objects; None of anything else."""
  is_of_objects = isinstance(array, np.ndarray) and array.dtype == object and array.ndim == 1
  if not (is_of_objects or isinstance(array, list)):
    return None
  are_rows = all(isinstance(row, (list, tuple)) or isinstance(row, np.ndarray) and row.ndim > 0
                 for row in array)
  return list(array) if are_rows and len(array) else None


def _as_array(array: Any, label: str, name: str) -> np.ndarray:
  try:
    return np.asarray(array)
  except ValueError as error:
    raise UsageError(f'{name}: {label} cannot become an array: {error} Only the length of a row '
                     'may differ, its first dimension.') from None


def _as_fed(array: np.ndarray, label: str, name: str) -> np.ndarray:
  """Returns the array in native byte and C order, as TensorFlow takes it; copies only if needed."""
  if array.ndim == 0:
    raise UsageError(
        f'{name}: {label} is a single value of dtype {array.dtype} with 0 dimensions; it '
        'needs at least 1, the first of which counts the examples.')
  if _holds_strings(array):  # As Python's bytes TensorFlow takes them whole, zero bytes included.
    strings = [value.encode() if isinstance(value, str) else bytes(value) for value in array.flat]
    return np.array(strings, object).reshape(array.shape)
  if array.dtype.name not in DTYPES:
    raise UsageError(
        f"{name}: {label} of shape {array.shape} has dtype {array.dtype}, which cannot be "
        f"fed; convert it with .astype() to one of {', '.join(DTYPES)}, or make it an array of "
        "strings. (Rows that differ in more than their length become dtype object.)")
  return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder('='))


def _holds_strings(array: np.ndarray) -> bool:
  """Returns whether an array is of bytes or str, as numpy keeps them or as Python objects."""
  if array.dtype == object:
    return array.size > 0 and all(isinstance(value, (bytes, str)) for value in array.flat)
  return array.dtype.kind in 'SU'

