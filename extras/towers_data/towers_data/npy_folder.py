"""Npy folder: {train,validation}_{images,labels}.npy, mapped into memory.

Mapped files may be larger than memory: the system reads the pages that a batch touches, and drops
them when it needs the room.
"""

import os
from typing import Any

import numpy as np

from towers.base.files import open_regular
from towers.base.later import tf
from towers.base.usage_error import UsageError
from towers.data.arrays import DTYPES, from_arrays
from towers.data.augmented import augment_arrays
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet
from towers_data.folder import check_files, check_folder

_NEEDS = 'train_images.npy, train_labels.npy, validation_images.npy and validation_labels.npy'


def load_npy(data_dir: Any, *, bad_records: BadRecords, num_classes: Any = None,
             augment: str = 'none', seed: int = 0) -> DataSet:
  """Loads both splits of a folder.

  Labels must lie in 0 … num_classes - 1, by default up to the largest one to learn from.

  Returns:
    DataSet with images `[batch, height, width, channels]`, uint8 or float32 as in the files, and
    labels `[batch]` int32.

  Raises:
    UsageError: files that are missing, damaged or do not belong together.
  """
  folder = check_folder(data_dir, data='npy', needs=_NEEDS)
  paths = {(split, kind): os.path.join(folder, f'{split}_{kind}.npy')
           for split in ('train', 'validation') for kind in ('images', 'labels')}
  check_files(folder, map(os.path.basename, paths.values()))

  images, splits = {}, {}
  for split in ('train', 'validation'):
    labels_path = paths[split, 'labels']
    images[split], labels = _map_split(paths[split, 'images'], labels_path)
    if num_classes is None:
      num_classes = max(int(labels.max()) + 1, 2)
    good = _good_labels(labels_path, labels, num_classes, bad_records)
    examples = from_arrays(images[split], labels.astype(np.int32), name=f'npy_{split}')
    splits[split] = _only_good(examples, good)

  train, validation = images['train'], images['validation']
  if train.shape[1:] != validation.shape[1:] or train.dtype != validation.dtype:
    raise UsageError(f'{folder}: training images are {train.dtype} of shape '
                     f'{list(train.shape[1:])}, and those to validate {validation.dtype} of '
                     f'{list(validation.shape[1:])}; they must be alike.')
  return DataSet(train=augment_arrays(splits['train'], kind=augment, seed=seed),
                 validation=splits['validation'], image_shape=train.shape[1:],
                 num_classes=num_classes, bad_records=bad_records,
                 source='.npy files, mapped into memory once for all towers')


def _map_split(images_path, labels_path):
  """Returns images [n, height, width, channels] and labels [n] of files that belong together."""
  images, labels = map_npy(images_path), map_npy(labels_path)
  if images.ndim == 3:
    images = images[..., np.newaxis]
  if images.ndim != 4 or images.dtype not in (np.uint8, np.float32):
    raise UsageError(f'{images_path}: {images.dtype} of shape {list(images.shape)} where uint8 or '
                     'float32 [n, height, width, channels] were expected; convert it with '
                     '.astype().')
  if labels.ndim != 1 or labels.dtype.kind not in 'iu':
    raise UsageError(f'{labels_path}: {labels.dtype} of shape {list(labels.shape)} where ints [n] '
                     'were expected; images and labels may be swapped.')
  if len(images) != len(labels):
    raise UsageError(f'{images_path} has {len(images)} images, and {labels_path} has '
                     f'{len(labels)} labels; take both files from one data set.')
  return images, labels


def _good_labels(path, labels, num_classes, bad_records):
  """Returns the indices of the examples whose label is in range; reports the others."""
  is_good = np.logical_and(labels >= 0, labels < num_classes)
  for index in np.flatnonzero(~is_good).tolist():
    bad_records.report(
        path, index, index, f'the label {labels[index]} lies outside 0 to {num_classes - 1}, which '
        f'num_classes={num_classes} allows')
  return np.flatnonzero(is_good)


def _only_good(examples, good):
  """Returns the split of the examples whose indices are in `good`; copies no array."""
  if len(good) == examples.num_examples:
    return examples
  if not len(good):
    raise UsageError(f'{examples.name}: no label is in range, so there is nothing to read.')

  def parse_batch(indices, *tensors):
    return examples.parse_batch(tf.gather(tensors[-1], indices), *tensors[:-1])

  return examples._replace(num_examples=len(good), parse_batch=parse_batch,
                           arrays=examples.arrays + (good,))


def map_npy(path: str) -> np.ndarray:
  """Maps a .npy file into memory, read-only.

  Raises:
    UsageError: it cannot be read, is not a .npy file, or has another size than its header declares.
  """
  try:
    with open_regular(path) as file:
      if file.read(6) != b'\x93NUMPY':
        raise ValueError('its first bytes are others')
    array = np.load(path, mmap_mode='r', allow_pickle=False)
    size = os.path.getsize(path)
  except Exception as error:  # Of a damaged header numpy raises whatever Python's parsers do.
    raise UsageError(f'{path}: cannot be read as a .npy file of numbers: {str(error)[:200]}; copy '
                     'it again, or make it with numpy.save.') from None
  if array.dtype.kind in 'SU':
    raise UsageError(f'{path}: it holds strings, and numbers are read: number the classes, as by '
                     'names, labels = numpy.unique(array, return_inverse=True), and save labels.')
  if array.dtype.name not in DTYPES or not array.size:
    raise UsageError(f'{path}: {array.dtype.name} of shape {list(array.shape)} cannot be read; '
                     'give at least 1 example, and convert the array with .astype() to one of '
                     f"{', '.join(DTYPES)}.")
  if array.offset + array.nbytes != size:
    raise UsageError(f'{path}: damaged: its header declares {array.dtype} of shape '
                     f'{list(array.shape)}, {array.offset + array.nbytes:,} bytes in all, and the '
                     f'file has {size:,}; copy or make it again.')
  if not array.flags.c_contiguous:
    raise UsageError(f'{path}: in Fortran order, which scatters an example over the whole file; '
                     'save numpy.ascontiguousarray(array).')
  return array
