"""Whole: metrics of all examples of a split together, which are no mean over the examples."""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from towers.base.usage_error import UsageError
from towers.input.plan import Shard
from towers.tensorflow_v1 import Tensor, tf


class Whole(NamedTuple):
  """A metric of all examples of a split together, such as the area under the ROC curve.

    return losses, {'auc': towers.Whole(sklearn.metrics.roc_auc_score, [labels, scores])}

  Validation and evaluation gather what the model computes for each example, each once and in order,
  and call the function with all of it. So the value is the same on any towers and workers. Training
  steps do not compute it.

  Attributes:
    function: takes an array `[examples, ...]` for each of `rows`, and returns a number, or an array
      of any shape such as a confusion matrix. Of rows whose size only a run knows, such as padded
      ones, it gets a list with an array for each.
    rows: tensors `[batch, ...]` of any dtype.
  """
  function: Callable[..., Any]
  rows: Sequence[Any]


class WholeRows:
  """What `Whole` metrics need of a split, gathered batch by batch."""

  def __init__(self, wholes: Sequence[Mapping[str, Whole]], *,
               shards: Sequence[Shard] = (Shard(0, 1, 1),),
               order: Optional[Callable[[Any, int], np.ndarray]] = None):
    """Begins with no example.

    Args:
      wholes: by name, of each tower.
      shards: of each tower, or the one that they take from one after the other.
      order: from positions in the split to its examples, as of `Plan.order`; None if it has none.
    """
    self._wholes = wholes[0]
    self._shards = shards
    self._order = order
    self._seen = [0] * len(wholes)
    self._positions: List[np.ndarray] = []
    self._parts: List[List[np.ndarray]] = [[] for _ in flatten_rows(wholes[:1])]
    self._found: Optional[Dict[str, Any]] = None

  def add(self, arrays: Sequence[np.ndarray]) -> None:
    """Adds a run's values of `flatten_rows`."""
    size = len(self._parts)
    for tower in range(len(self._seen) if size else 0):
      of_tower = arrays[tower * size:(tower + 1) * size]
      before = self._seen[tower] if len(self._shards) > 1 else sum(self._seen)
      new = before + np.arange(len(of_tower[0]))
      self._positions.append(self._shards[tower % len(self._shards)].find(new))
      self._seen[tower] += len(new)
      for part, array in zip(self._parts, of_tower):
        part.append(array)

  def join(self, gather: Callable[[bytes], List[bytes]]) -> None:
    """Adds the examples of the other workers, each of which calls this at once."""
    if self._parts:
      rows = flatten_rows([self._wholes])
      packed = _pack([self._positions, *self._parts], [tf.int64, *(row.dtype for row in rows)])
      self._positions, *self._parts = (
          sum(of_workers, [])
          for of_workers in zip(*(_unpack(one, 1 + len(rows)) for one in gather(packed))))

  def compute(self) -> Dict[str, Any]:
    """Returns each metric of the examples so far, a float or an array; else it is a UsageError."""
    if self._found is None:
      examples = np.concatenate(self._positions or [np.zeros(0, np.int64)])
      order = np.argsort(examples if self._order is None else self._order(examples, 0))
      parts = iter(self._parts)
      self._found = {name: _call(name, whole, [_join(row, next(parts), order)
                                               for row in whole.rows])
                     for name, whole in self._wholes.items()}
    return self._found


def flatten_rows(wholes: Sequence[Mapping[str, Whole]]) -> List[Tensor]:
  """Returns the rows that a run fetches for the metrics of all towers."""
  return [row for of_tower in wholes for whole in of_tower.values() for row in whole.rows]


def find_numbers(means: Dict[str, Any]) -> Dict[str, float]:
  """Returns the metrics that are numbers, and no arrays such as a confusion matrix."""
  return {name: mean for name, mean in means.items() if not np.ndim(mean)}


def _pack(columns, dtypes):
  """Returns lists of as many arrays as bytes, whose reading executes nothing."""
  return tf.AttrValue(list=tf.AttrValue.ListValue(tensor=[
      tf.make_tensor_proto(array, dtype) for column, dtype in zip(columns, dtypes)
      for array in column])).SerializeToString()


def _unpack(packed, num_columns):
  arrays = list(map(tf.make_ndarray, tf.AttrValue.FromString(packed).list.tensor))
  size = len(arrays) // num_columns
  return [arrays[column * size:(column + 1) * size] for column in range(num_columns)]


def _join(row, parts, order):
  """Returns the values of all examples in order: an array, or a list if rows differ in size."""
  if row.shape[1:].is_fully_defined():
    return np.concatenate(parts)[order]
  rows = [value for part in parts for value in part]
  return [rows[index] for index in order]


def _call(name, whole, arrays):
  found = np.asarray(whole.function(*arrays))
  if found.dtype.kind not in 'biuf':
    raise UsageError(f'The function of the metric {name!r} returned {found.dtype}: let it return a '
                     'number, or an array of numbers.')
  return found if found.ndim else float(found)
