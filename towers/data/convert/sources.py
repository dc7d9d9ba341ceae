"""Sources: images of any kind that `towers.data.convert` takes, as JPEGs and PNGs by number."""

import hashlib
import os
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.folders.cifar import CIFARS, load_cifar
from towers.data.folders.idx_folder import load_idx_folder
from towers.data.folders.image_folder import find_image_files
from towers.data.folders.npy import load_npy
from towers.data.formats.image_header import check_is_whole, read_image_header
from towers.data.formats.png import encode_png

SOURCES = ('images', 'idx', 'npy') + tuple(CIFARS)


class Split(NamedTuple):
  """Images to convert, by number.

  Attributes:
    name: 'train' or 'validation'.
    labels: `[images]` int.
    encode: `encode(number)` returns the bytes of a JPEG or PNG, or raises a BadRecordError.
    place: `place(number)` returns the file and the record's number in it, for messages.
    source: what the images are made from; another one asks for other shards.
    num_bytes: about how large they are all together.
  """
  name: str
  labels: np.ndarray
  encode: Callable[[int], bytes]
  place: Callable[[int], Tuple[str, int]]
  source: str
  num_bytes: int


class Sources(NamedTuple):
  """What is converted.

  Attributes:
    splits: both.
    classes: their names, or none where they have no names.
    num_classes: how many.
    image_size: height and width of all images if they are square and of one size, else None.
    channels: 1 or 3.
  """
  splits: Sequence[Split]
  classes: List[str]
  num_classes: int
  image_size: Optional[int]
  channels: int


def read_sources(kind: str, data_dir: str, bad_records: BadRecords) -> Sources:
  """Reads what is to be known before anything is converted; of files, no more than their names and
  sizes.

  Args:
    kind: one of `SOURCES`.
    data_dir: the folder of them.
    bad_records: told of damaged ones.

  Raises:
    UsageError: what is missing or damaged, or would not be the same as a PNG.
  """
  if kind not in SOURCES:
    raise UsageError(f"from={kind}: choose one of {', '.join(SOURCES)}.")
  if kind == 'images':
    classes, files_of_splits = find_image_files(data_dir)
    return Sources([_split_of_files(name, files) for name, files in files_of_splits], classes,
                   max(len(classes), 2), None, 3)
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
  def encode(number):
    [result] = files.read([number])
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
  return Split(name, files.labels, encode, lambda number: (files.paths[number], 0),
               facts.hexdigest(), num_bytes)


def _split_of_arrays(name, data_dir, examples) -> Split:
  images, labels = examples.arrays[:2]
  numbers = examples.arrays[2] if len(examples.arrays) > 2 else np.arange(len(labels))
  if images.dtype != np.uint8:
    raise UsageError(f'{data_dir}: images of dtype {images.dtype} cannot become PNGs without a '
                     'loss; --data=npy trains from them as they are.')
  facts = hashlib.sha256(f'{images.shape}{numbers.shape}'.encode())
  for begin in range(0, len(images), 1024):
    facts.update(images[begin:begin + 1024].tobytes())
  facts.update(labels.tobytes() + numbers.tobytes())
  return Split(name, labels[numbers], lambda number: encode_png(images[numbers[number]]),
               lambda number: (os.path.join(data_dir, name), int(numbers[number])),
               facts.hexdigest(), images.nbytes)
