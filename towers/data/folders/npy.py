"""Npy: numpy's own files, mapped into memory and only read where batches are gathered from them.

A folder holds {train,validation}_{images,labels}.npy. Mapped files may be larger than memory: the
system reads the pages that a batch touches, and drops them when it needs the room.

  \\x93NUMPY  version  header length
  {'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28, 28), }
  elements

Numpy reads the header, and the file's size must be what it declares. `numpy.load` would map the
file too, but its message for a truncated file has no sizes, and its product of a damaged shape may
overflow. Nothing is ever unpickled.

Format: numpy's enhancement proposal 1, "A simple file format for numpy arrays".
"""

import os
from typing import Any, Tuple

import numpy as np

from towers.base.files import open_regular
from towers.base.usage_error import UsageError
from towers.data.arrays import DTYPES, from_arrays
from towers.data.augment import augment_arrays
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet
from towers.data.folders.folder import check_folder, list_folder

# By version: the number of bytes of the header's length, and what reads from there.
_VERSIONS = {(1, 0): (2, np.lib.format.read_array_header_1_0),
             (2, 0): (4, np.lib.format.read_array_header_2_0)}
# What later versions of numpy read; the header of numbers has some hundred.
_MAX_HEADER_BYTES = 10000
_NEEDS = 'train_images.npy, train_labels.npy, validation_images.npy and validation_labels.npy'


def load_npy(data_dir: Any, *, bad_records: BadRecords, num_classes: Any = None,
             augment: str = 'none', seed: int = 0) -> DataSet:
  """Loads both splits of a folder.

  Args:
    data_dir: the folder.
    bad_records: the policy for labels out of range.
    num_classes: labels must lie in 0 … num_classes - 1; None for one more than the largest label to
      learn from.
    augment: of the training split, 'none' or 'cifar'.
    seed: of augmentation.

  Returns:
    DataSet with images `[batch, height, width, channels]`, uint8 or float32 as in the files, and
    labels `[batch]` int32.

  Raises:
    UsageError: files that are missing, damaged or do not belong together.
  """
  folder = check_folder(data_dir, data='npy', needs=_NEEDS)
  paths = {(split, kind): os.path.join(folder, f'{split}_{kind}.npy')
           for split in ('train', 'validation') for kind in ('images', 'labels')}
  missing = [os.path.basename(path) for path in paths.values() if not os.path.isfile(path)]
  if missing:
    raise UsageError(f"data_dir '{folder}' lacks {len(missing)} of 4 files: {', '.join(missing)}. "
                     f"It holds {list_folder(folder)}.")

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
        path, index, f'the label {labels[index]} lies outside 0 to {num_classes - 1}, which '
        f'num_classes={num_classes} allows', record=index)
  return np.flatnonzero(is_good)


def _only_good(examples, good):
  """Returns the split of the examples whose indices are in `good`; copies no array."""
  if len(good) == examples.num_examples:
    return examples
  if not len(good):
    raise UsageError(f'{examples.name}: no label is in range, so there is nothing to read.')

  def parse_batch(indices, *tensors):
    from tensorflow_v1 import tf
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
      dtype, shape = _read_header(path, file)
      offset = file.tell()
    size = os.path.getsize(path)
  except OSError as error:
    raise UsageError(f'{path}: cannot be read: {error.strerror}; check the path and its '
                     'permissions.') from None

  num_bytes = dtype.itemsize
  for length in shape:
    num_bytes *= length
  declared = offset + num_bytes
  if declared != size:
    damage = 'truncated' if size < declared else 'damaged'
    raise UsageError(f'{path}: {damage}: its header declares {dtype} of shape {list(shape)}, '
                     f'{declared:,} bytes in all, and the file has {size:,}; copy or make it '
                     'again.')
  if 0 in shape:
    raise UsageError(f'{path}: shape {list(shape)} has no elements; give at least 1 example.')
  return np.memmap(path, dtype, mode='r', offset=offset, shape=shape)


def _read_header(path: str, file: Any) -> Tuple[np.dtype, Tuple[int, ...]]:
  """Returns the dtype and the shape; the elements follow in the file."""
  try:
    length_bytes, read = _VERSIONS[np.lib.format.read_magic(file)]
  except (ValueError, KeyError):
    raise UsageError(f'{path}: not a .npy file, whose first bytes are \\x93NUMPY and a version of '
                     '1 or 2; make it with numpy.save.') from None
  length = int.from_bytes(file.peek(length_bytes)[:length_bytes], 'little')
  if length > _MAX_HEADER_BYTES:
    raise UsageError(f'{path}: damaged: its header declares a length of {length:,} bytes.')
  try:
    shape, is_fortran, dtype = read(file)
    if min(shape, default=0) < 0 or dtype.kind not in 'biufc':
      raise ValueError(f'{dtype} of shape {shape}')
  except Exception as error:
    # Where the text is not a dictionary, numpy raises whatever Python's parsers do.
    raise UsageError(f'{path}: its header is not that of an array of numbers: {str(error)[:200]}; '
                     'make it with numpy.save, of an array of ints or floats.') from None
  if dtype.name not in DTYPES:
    raise UsageError(f"{path}: dtype {dtype.name} cannot be read; convert the array with .astype() "
                     f"to one of {', '.join(DTYPES)}.")
  if is_fortran:
    raise UsageError(f'{path}: in Fortran order, which scatters an example over the whole file; '
                     'save numpy.ascontiguousarray(array).')
  return dtype, shape
