"""Npy: numpy's own files, mapped into memory and not read before batches are gathered from them.

A folder holds {train,validation}_{images,labels}.npy. Mapped files may be larger than memory: the
system reads the pages that a batch touches, and drops them when it needs the room.

  \\x93NUMPY  version  header length  {'descr': '|u1', 'fortran_order': False, 'shape': (60000, 28,
  28), }  elements

Numpy reads the header, and the file's size must be what it declares. `numpy.load` would map the
file too, but of one that is cut off it tells no sizes, and its product of a damaged shape may
overflow. Nothing is ever unpickled.

Format: numpy's enhancement proposal 1, "A simple file format for numpy arrays".
"""

import os
from typing import Any, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.arrays import DTYPES, from_arrays
from towers.data.augment import augment_arrays
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet
from towers.data.folders.folder import check_folder, list_folder

# By version: how many bytes tell the header's length, and what reads from there.
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
    bad_records: what to do with labels out of range.
    num_classes: labels must lie in 0 … num_classes - 1; None for one more than the largest label to
      learn from.
    augment: of the training split, 'none' or 'cifar'.
    seed: of augmentation.

  Returns:
    DataSet with images `[batch, height, width, channels]` uint8 or float32, whichever the files
    have, and labels `[batch]` int32.

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

  arrays = {}
  for split in ('train', 'validation'):
    images_path, labels_path = paths[split, 'images'], paths[split, 'labels']
    images, labels = map_npy(images_path), map_npy(labels_path)
    if images.ndim == 3:
      images = images[..., np.newaxis]
    if images.ndim != 4 or images.dtype not in (np.uint8, np.float32):
      raise UsageError(f'{images_path}: {images.dtype} of shape {list(images.shape)} where uint8 '
                       'or float32 [n, height, width, channels] were expected; convert it with '
                       '.astype().')
    if labels.ndim != 1 or labels.dtype.kind not in 'iu':
      raise UsageError(f'{labels_path}: {labels.dtype} of shape {list(labels.shape)} where ints '
                       '[n] were expected; images and labels may be swapped.')
    if len(images) != len(labels):
      raise UsageError(f'{images_path} has {len(images)} images, and {labels_path} has '
                       f'{len(labels)} labels; take both files from one data set.')
    if num_classes is None:
      num_classes = max(int(labels.max()) + 1, 2)
    good = _good_labels(labels_path, labels, num_classes, bad_records)
    arrays[split] = images, labels.astype(np.int32), good
  shapes = [arrays[split][0].shape[1:] for split in arrays]
  if shapes[0] != shapes[1] or arrays['train'][0].dtype != arrays['validation'][0].dtype:
    raise UsageError(f"{folder}: training images are {arrays['train'][0].dtype} of shape "
                     f"{list(shapes[0])}, and those to validate {arrays['validation'][0].dtype} "
                     f"of {list(shapes[1])}; they must be alike.")

  train, validation = (_without_bad(from_arrays(images, labels, name='npy_' + split), good)
                       for split, (images, labels, good) in arrays.items())
  return DataSet(augment_arrays(train, kind=augment, seed=seed), validation, shapes[0], num_classes,
                 source='.npy files, mapped into memory once for all towers',
                 bad_records=bad_records)


def _good_labels(path, labels, num_classes, bad_records):
  """Returns the numbers of the examples whose label is in range; reports the others."""
  is_good = np.logical_and(labels >= 0, labels < num_classes)
  for number in np.flatnonzero(~is_good).tolist():
    bad_records.report(
        path, number, f'the label {labels[number]} lies outside 0 to '
        f'{num_classes - 1}, which num_classes={num_classes} allows', record=number)
  return np.flatnonzero(is_good)


def _without_bad(examples, good):
  """Returns a split without the examples whose numbers are not in `good`; the arrays stay as they
  are, uncopied.
  """
  if len(good) == examples.num_examples:
    return examples
  if not len(good):
    raise UsageError(f'{examples.name}: no label is in range, so there is nothing to read.')

  def parse_batch(numbers, *tensors):
    from tensorflow_v1 import tf
    return examples.parse_batch(tf.gather(tensors[-1], numbers), *tensors[:-1])

  return examples._replace(num_examples=len(good),
                           elements=from_arrays(good, name=examples.name).elements,
                           parse_batch=parse_batch, arrays=examples.arrays + (good,))


def map_npy(path: str) -> np.ndarray:
  """Maps a .npy file into memory, to be read only.

  Raises:
    UsageError: it cannot be read, is no such file, or its size is not what its header declares.
  """
  try:
    with open(path, 'rb') as file:
      dtype, shape = _read_header(path, file)
      offset = file.tell()
    size = os.path.getsize(path)
  except OSError as error:
    raise UsageError(f'{path}: cannot be read: {error.strerror}; check the path and its '
                     'permissions.') \
        from None
  num_bytes = dtype.itemsize
  for length in shape:
    num_bytes *= length
  if offset + num_bytes != size:
    raise UsageError(f"{path}: {'truncated' if size < offset + num_bytes else 'damaged'}: its "
                     f"header declares {dtype} of shape {list(shape)}, {offset + num_bytes:,} "
                     f"bytes in all, and the file has {size:,}; copy or make it again.")
  if 0 in shape:
    raise UsageError(f'{path}: shape {list(shape)} has no elements; give at least 1 example.')
  return np.memmap(path, dtype, mode='r', offset=offset, shape=shape)


def _read_header(path: str, file: Any) -> Tuple[np.dtype, Tuple[int, ...]]:
  """Returns dtype and shape; the elements begin where the file stands then."""
  try:
    length_bytes, read = _VERSIONS[np.lib.format.read_magic(file)]
  except (ValueError, KeyError):
    raise UsageError(f'{path}: not a .npy file, whose first bytes are \\x93NUMPY and a version of '
                     '1 or 2; make it with '
                     'numpy.save.') from None
  length = int.from_bytes(file.peek(length_bytes)[:length_bytes], 'little')
  if length > _MAX_HEADER_BYTES:
    raise UsageError(f'{path}: damaged: its header declares a length of {length:,} bytes.')
  try:
    shape, is_fortran, dtype = read(file)
    if min(shape, default=0) < 0 or dtype.kind not in 'biufc':
      raise ValueError(f'{dtype} of shape {shape}')
  except Exception as error:
    # Of text that is no dictionary, numpy raises what the parsers of Python do.
    raise UsageError(f'{path}: its header is not one of an array of numbers: {str(error)[:200]}; '
                     'make it with '
                     'numpy.save, of an array of ints or floats.') from None
  if dtype.name not in DTYPES:
    raise UsageError(f"{path}: dtype {dtype.name} cannot be read; convert the array with .astype() "
                     f"to one of {', '.join(DTYPES)}.")
  if is_fortran:
    raise UsageError(f'{path}: in Fortran order, in which an example is spread over the whole '
                     'file; save numpy.ascontiguousarray(array).')
  return dtype, shape
