"""Data: from files and arrays to the splits that the input modes read.

  import data
  data_set = data.load('sample')                          # or any name in data.DATA_SETS
  data_set.train, data_set.validation                     # Examples: elements to shard, and how to parse them
  examples = data.from_arrays(images, labels, name='mine')

Nothing here imports TensorFlow before a graph is built, so a wrong flag or a damaged file is told at once.
"""

import os
from typing import Any, Callable, Dict, Optional

from data.arrays import from_arrays
from data.examples import DataSet, Examples
from data.idx_folder import DEBIAN_FASHION_MNIST_DIR, load_idx_folder
from data.synthetic import load_synthetic
from usage_error import UsageError

__all__ = ['DATA_SETS', 'DataSet', 'Examples', 'from_arrays', 'load', 'load_idx_folder', 'load_synthetic']

_SAMPLE_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fashion_mnist_sample')


def load(name: str, *, data_dir: Optional[Any] = None, seed: int = 0) -> DataSet:
  """Loads a data set by its name.

  Args:
    name: one of `DATA_SETS`.
    data_dir: the folder of the files, for those data sets that have some.
    seed: what 'synthetic' is made from; the others are what their files hold.

  Returns:
    DataSet with batches of images `[batch, height, width, channels]` uint8 and labels `[batch]` int32.

  Raises:
    UsageError: an unknown name, a data_dir that is missing or that the data set has no use for, or files that cannot
      be what they should be.
  """
  if name not in DATA_SETS:
    raise UsageError("There is no data set '{}'; choose one of {}.".format(name, ', '.join(DATA_SETS)))
  return DATA_SETS[name](data_dir, seed)


def _load_sample(data_dir: Optional[Any], seed: int) -> DataSet:
  del seed
  _refuse_data_dir('sample', data_dir)
  return load_idx_folder(_SAMPLE_DIR, name='sample')


def _load_fashion_mnist(data_dir: Optional[Any], seed: int) -> DataSet:
  del seed
  if data_dir is None and os.path.isdir(DEBIAN_FASHION_MNIST_DIR):
    data_dir = DEBIAN_FASHION_MNIST_DIR
  if data_dir is None:
    raise UsageError(
        "Data set 'fashion_mnist' needs a data_dir, the folder of its four idx files, since {} does not exist. On "
        'Debian, "apt-get install dataset-fashion-mnist" puts them there, and data_dir can then be left out.'.format(
            DEBIAN_FASHION_MNIST_DIR))
  return load_idx_folder(data_dir, name='fashion_mnist')


def _load_mnist(data_dir: Optional[Any], seed: int) -> DataSet:
  del seed
  if data_dir is None:
    raise UsageError("Data set 'mnist' needs a data_dir: the folder of its four idx files, train-images-idx3-ubyte.gz "
                     'and so on. Data sets that need none: sample, synthetic.')
  return load_idx_folder(data_dir, name='mnist')


def _load_synthetic(data_dir: Optional[Any], seed: int) -> DataSet:
  _refuse_data_dir('synthetic', data_dir)
  return load_synthetic(seed=seed)


def _refuse_data_dir(name: str, data_dir: Optional[Any]) -> None:
  if data_dir is not None:
    raise UsageError("Data set '{}' reads no files of yours, but data_dir is '{}'; leave data_dir out, or choose a "
                     'data set that has one: fashion_mnist, mnist.'.format(name, data_dir))


# Each loads from (data_dir, seed).
DATA_SETS: Dict[str, Callable[[Optional[Any], int], DataSet]] = {
    'sample': _load_sample,
    'fashion_mnist': _load_fashion_mnist,
    'mnist': _load_mnist,
    'synthetic': _load_synthetic,
}
