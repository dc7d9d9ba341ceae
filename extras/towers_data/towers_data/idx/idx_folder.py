"""Idx folder: the four files in which MNIST, Fashion-MNIST and their kin are distributed.

Loading checks the folder as a whole: a label file of another set, or a half-finished download,
fails before the graph is built, instead of showing as a strange accuracy after an hour.
"""

import os
from typing import Any, Dict, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.arrays import from_arrays
from towers.data.augmented import augment_arrays
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet
from towers_data.folder import list_folder
from towers_data.idx.idx_file import read_idx

# Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN_FASHION_MNIST_DIR = '/usr/share/datasets/fashion-mnist'

HOW_TO_GET = (
    'Give the folder of the four files as data_dir. On Debian, "apt-get install '
    'dataset-fashion-mnist" puts Fashion-MNIST, which has the same names and shapes as MNIST, '
    f'in {DEBIAN_FASHION_MNIST_DIR}.')


def load_idx_folder(data_dir: Any, *, num_classes: int = 10, name: str = 'idx') -> DataSet:
  """Loads images and labels of both splits from a folder.

  The files are `{train,t10k}-{images-idx3,labels-idx1}-ubyte`; a dot may replace the second hyphen,
  and .gz may follow. Labels must lie in 0 … num_classes - 1.

  Returns:
    DataSet with batches of images `[batch, height, width, 1]` uint8 and labels `[batch]` int32;
    `validation` comes from the t10k files. Splits are called `{name}_train` and so on.

  Raises:
    UsageError: files that are missing, damaged or do not belong together.
  """
  data_dir = os.fspath(data_dir)
  paths = _find_files(data_dir)
  train_images, train_labels = _read_split(paths, 'train', num_classes)
  validation_images, validation_labels = _read_split(paths, 't10k', num_classes)
  if train_images.shape[1:] != validation_images.shape[1:]:
    raise UsageError(f"{paths['train-images']}: images of shape {list(train_images.shape[1:])}, "
                     f"but those of {paths['t10k-images']} have {list(validation_images.shape[1:])}"
                     '; take all four files from one data set.')
  return DataSet(
      train=from_arrays(train_images, train_labels, name=f'{name}_train'),
      validation=from_arrays(validation_images, validation_labels, name=f'{name}_validation'),
      image_shape=train_images.shape[1:], num_classes=num_classes)


def load_mnist(data_dir: Any, *, bad_records: BadRecords, augment: str = 'none', seed: int = 0,
               name: str = 'mnist') -> DataSet:
  """Loads both splits of the folder that a run names, and augments the one to train on.

  Raises:
    UsageError: there is no folder, or its files are no such data set.
  """
  del bad_records  # A damaged file of these is refused as a whole.
  if data_dir is None:
    raise UsageError(f"Data set '{name}' needs a data_dir, the folder of its four idx files, "
                     'train-images-idx3-ubyte.gz and so on; sample and synthetic need none. '
                     f'{HOW_TO_GET}')
  data_set = load_idx_folder(data_dir, name=name)
  return data_set._replace(train=augment_arrays(data_set.train, kind=augment, seed=seed))


def load_fashion_mnist(data_dir: Any, **settings: Any) -> DataSet:
  """Does what `load_mnist` does; without a folder it looks where Debian installs the files."""
  if data_dir is None and os.path.isdir(DEBIAN_FASHION_MNIST_DIR):
    data_dir = DEBIAN_FASHION_MNIST_DIR
  return load_mnist(data_dir, name='fashion_mnist', **settings)


def _find_files(data_dir: str) -> Dict[str, str]:
  """Returns the path of each of the four files, by its role, e.g. 'train-images'."""
  if not os.path.isdir(data_dir):
    found = 'is a file, not a folder' if os.path.isfile(data_dir) else 'does not exist'
    raise UsageError(f"data_dir '{data_dir}' {found}. {HOW_TO_GET}")
  paths = {}
  missing = []
  for role, kind in (('train-images', 'idx3'), ('train-labels', 'idx1'),
                     ('t10k-images', 'idx3'), ('t10k-labels', 'idx1')):
    # Plain before gzipped: it loads faster.
    names = [f'{role}{mark}{kind}-ubyte{end}' for end in ('', '.gz') for mark in '-.']
    candidates = [os.path.join(data_dir, name) for name in names]
    existing = [path for path in candidates if os.path.isfile(path)]
    if existing:
      paths[role] = existing[0]
    else:
      missing.append(names[0])
  if missing:
    raise UsageError(f"data_dir '{data_dir}' lacks {len(missing)} of 4 files: {', '.join(missing)} "
                     "(looked for with -idx and .idx, with and without .gz). It holds "
                     f"{list_folder(data_dir)}. {HOW_TO_GET}")
  return paths


def _read_split(paths: Dict[str, str], split: str,
                num_classes: int) -> Tuple[np.ndarray, np.ndarray]:
  """Returns images [n, height, width, 1] uint8 and labels [n] int32 of a split, checked."""
  images_path, labels_path = paths[split + '-images'], paths[split + '-labels']
  images, labels = read_idx(images_path), read_idx(labels_path)
  for path, array, num_dimensions, expected in (
      (images_path, images, 3, 'images [n, height, width]'),
      (labels_path, labels, 1, 'labels [n]'),
  ):
    if array.ndim != num_dimensions or array.dtype != np.uint8:
      raise UsageError(f'{path}: {array.dtype} of shape {list(array.shape)} where uint8 {expected} '
                       'were expected; images and labels may be swapped, or the files be those '
                       'of another data set.')
  if len(images) != len(labels):
    raise UsageError(f'{images_path} has {len(images)} images, and {labels_path} has {len(labels)} '
                     'labels; take both files from one data set.')
  wrong = np.flatnonzero(labels >= num_classes)
  if wrong.size:
    raise UsageError(
        f'{labels_path}: {wrong.size} of {len(labels)} labels lie outside 0 to {num_classes - 1}, '
        f'the first at index {wrong[0]}: {labels[wrong[0]]}; num_classes is {num_classes}, and '
        f'this data set needs {int(labels.max()) + 1} or more.')
  return images[..., np.newaxis], labels.astype(np.int32)
