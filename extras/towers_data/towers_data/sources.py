"""Sources: images of any kind that `python -m towers convert` takes, as JPEGs and PNGs by index."""

import hashlib
import os
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError, BadRecords
from towers_data.cifar import CIFARS, load_cifar
from towers_data.idx.idx_folder import load_idx_folder
from towers_data.image_folder import find_image_files
from towers_data.image_header import check_is_whole, read_image_header
from towers_data.npy_folder import load_npy
from towers_data.png import encode_png

SOURCES = ('images', 'idx', 'npy') + tuple(CIFARS)


class Split(NamedTuple):
  """Images to convert, by index.

  `encode(index)` returns the bytes of a JPEG or PNG, or raises a BadRecordError; `place(index)`
  returns where the image is, as `BadRecords.report` takes it.
  """
  name: str  # 'train' or 'validation'.
  labels: np.ndarray  # `[images]` int.
  encode: Callable[[int], bytes]
  place: Callable[[int], Tuple[str, int, int]]
  source: str  # Identifies what images are made from; shards of another source are made anew.
  num_bytes: int  # The approximate size of all images.


class Sources(NamedTuple):
  """The splits to convert, and what data_set.json says of them."""
  splits: Sequence[Split]  # 'train' and 'validation'.
  classes: List[str]  # Their names; empty where classes have none.
  num_classes: int  # Labels are 0 … num_classes - 1.
  image_size: Optional[int]  # Of all images, if they are square and of one size, else None.
  channels: int  # 1 or 3.


def read_sources(kind: str, data_dir: str, bad_records: BadRecords) -> Sources:
  """Finds the images of one of `SOURCES`; of image files, reads no more than names and sizes.

  Raises:
    UsageError: files are missing or damaged, or images cannot become PNGs without a loss.
  """
  if kind not in SOURCES:
    raise UsageError(f"from={kind}: choose one of {', '.join(SOURCES)}.")

  if kind == 'images':
    classes, files_of_splits = find_image_files(data_dir)
    return Sources([_split_of_files(name, files) for name, files in files_of_splits.items()],
                   classes, max(len(classes), 2), None, 3)
  if kind == 'idx':
    data_set = load_idx_folder(data_dir)
  elif kind == 'npy':
    data_set = load_npy(data_dir, bad_records=bad_records)
  else:
    data_set = load_cifar(kind, data_dir, bad_records=bad_records)

  height, width, channels = data_set.image_shape
  if channels not in (1, 3):
    raise UsageError(f'{data_dir}: images of {channels} channels cannot become PNGs, which have 1 '
                     'or 3.')
  splits = [_split_of_arrays(name, data_dir, examples)
            for name, examples in (('train', data_set.train), ('validation', data_set.validation))]
  return Sources(splits, [], data_set.num_classes, height if height == width else None, channels)


def _split_of_files(name, files) -> Split:
  def encode(index):
    [result] = files.read([index])
    if isinstance(result, BadRecordError):
      raise result
    content = result[0]
    try:
      read_image_header(content)
      check_is_whole(content)
    except ValueError as error:
      raise BadRecordError(str(error)) from None
    return content

  facts = hashlib.sha256()
  num_bytes = 0
  for path, label in zip(files.paths, files.labels.tolist()):
    status = os.stat(path)
    facts.update(f'{path}\x00{label}\x00{status.st_size}\x00{status.st_mtime_ns}\n'.encode(
        errors='surrogateescape'))
    num_bytes += status.st_size
  return Split(name, files.labels, encode, files.place, facts.hexdigest(), num_bytes)


def _split_of_arrays(name, data_dir, examples) -> Split:
  images, labels = examples.arrays[:2]
  # Loaders that leave out bad examples add the indices of the good ones.
  good = examples.arrays[2] if len(examples.arrays) > 2 else np.arange(len(labels))
  if images.dtype != np.uint8:
    raise UsageError(f'{data_dir}: images of dtype {images.dtype} cannot become PNGs without a '
                     'loss; --data=npy trains from them as they are.')
  facts = hashlib.sha256(f'{images.shape}{good.shape}'.encode())
  for begin in range(0, len(images), 1024):
    facts.update(images[begin:begin + 1024].tobytes())
  facts.update(labels.tobytes() + good.tobytes())
  return Split(name, labels[good], lambda index: encode_png(images[good[index]]),
               lambda index: (os.path.join(data_dir, name), 0, int(good[index])),
               facts.hexdigest(), images.nbytes)
