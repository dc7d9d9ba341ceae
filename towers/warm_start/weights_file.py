"""Weights file: a TensorFlow checkpoint or a Keras .h5 file, read tensor by tensor.

The checkpoint is of any program, in TensorFlow's format V1 or V2.
"""

import contextlib
import functools
import glob
import operator
import os
from typing import Any, Callable, Dict, Iterator, NamedTuple

import numpy as np

from towers.base.checksums import INDEX
from towers.base.files import name_other_kind, open_regular
from towers.base.paths import check_local_path
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf
from towers.warm_start.slices import Tensor, open_tensors

_DATA = '.data-'
_H5 = ('.h5', '.hdf5', '.keras')
_KEPT = {'f', 'i', 'u', 'b', 'V'}  # numpy's kinds; bfloat16 is V.


class WeightsFile(NamedTuple):
  """A file of weights: its kind in words, what each tensor is, and how to read one, by name."""
  kind: str
  tensors: Dict[str, Tensor]
  read: Callable[[str], np.ndarray]


@contextlib.contextmanager
def open_weights(path: str) -> Iterator[WeightsFile]:
  """Opens a file of weights, see `init_from`."""
  check_local_path('init_from', path)
  is_keras = path.endswith(_H5) and not os.path.isdir(path)
  try:
    with _open_keras(path) if is_keras else _open_checkpoint(path) as opened:
      yield opened
  except (tf.errors.OpError, OSError, ValueError, RuntimeError, KeyError, TypeError,
          SystemError) as error:
    if isinstance(error, UsageError):
      raise
    raise UsageError(f'init_from={path} cannot be read as weights: {find_reason(error)}. Give a '
                     'folder of checkpoints, a checkpoint\'s path without .index, or a Keras .h5 '
                     'file that is whole.') from None


def check_weights(path: str) -> None:
  """Reads all tensors once, so that a damaged file shows before anything is built."""
  with open_weights(path) as opened:
    for name in opened.tensors:
      opened.read(name)


@contextlib.contextmanager
def _open_checkpoint(path):
  for suffix in (INDEX, _DATA):
    path = path[:path.rindex(suffix)] if suffix in os.path.basename(path) else path
  if os.path.isdir(path):
    state = os.path.join(path, 'checkpoint')
    if os.path.exists(state):  # TensorFlow would wait for the other end of a FIFO.
      open_regular(state).close()
    newest = tf.train.latest_checkpoint(path)
    if newest is None:
      raise UsageError(f'init_from={path} is a folder without a checkpoint: give the folder of a '
                       'run, or a checkpoint\'s path without .index.')
    path = newest
  if not os.path.exists(path + INDEX) and not os.path.isfile(path):
    raise UsageError(f'init_from={path} {_say_missing(path)}: give a folder of checkpoints, a '
                     'checkpoint\'s path without .index, or a Keras .h5 file.')
  reader, found = open_tensors(path)
  tensors = {name: tensor for name, tensor in sorted(found.items())
             if np.dtype(tensor.dtype.as_numpy_dtype).kind in _KEPT}
  # A damaged index may claim shapes of any size, for which TensorFlow would ask for memory.
  claimed = sum(functools.reduce(operator.mul, tensor.shape.as_list(), tensor.dtype.size)
                for tensor in tensors.values())
  held = sum(os.path.getsize(name) for name in glob.glob(glob.escape(path) + _DATA + '*'))
  if os.path.isfile(path + INDEX) and claimed > held:
    raise ValueError(f'its index names {claimed} bytes, and its data has {held}')
  yield WeightsFile('TensorFlow checkpoint', tensors, reader.get_tensor)


@contextlib.contextmanager
def _open_keras(path):
  if not os.path.isfile(path):
    raise UsageError(f'init_from={path} {_say_missing(path)}: give a Keras .h5 file, or a '
                     'checkpoint.')
  import h5py
  with h5py.File(path, 'r') as file:
    root = file.get('model_weights', file)
    datasets = _find_datasets(root)
    tensors = {name: Tensor(tf.TensorShape(dataset.shape), tf.as_dtype(dataset.dtype))
               for name, dataset in sorted(datasets.items()) if dataset.dtype.kind in _KEPT}
    yield WeightsFile('Keras file', tensors, lambda name: np.asarray(datasets[name][()]))


def _say_missing(path):
  kind = name_other_kind(path)
  return f'is {kind}, not a file' if kind else 'does not exist'


def _find_datasets(root) -> Dict[str, Any]:
  """Returns the weights of a file under their names in the graph, which Keras 3 does not keep."""
  # Keras 2 puts them beneath their layer, which lists them.
  has_names = any(key.startswith('weight_names') for layer in root.values() for key in layer.attrs)
  found: Dict[str, Any] = {}

  def add(path, item):
    if hasattr(item, 'dtype'):
      path = path[:-len(':0')] if path.endswith(':0') else path
      name = path.partition('/')[2] if has_names else path
      # Layers of one's own may use a name twice.
      found[path if name in found else name] = item

  root.visititems(add)
  return found
