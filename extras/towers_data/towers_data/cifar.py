"""CIFAR-10 and CIFAR-100 in their binary versions: a folder of files of records of one size.

  CIFAR-10     label 0-9, then 1,024 red, 1,024 green and 1,024 blue pixels, row by row  3,073 bytes
  CIFAR-100    coarse label, fine label 0-99, then the same                              3,074 bytes

All of it is 184 MB, so it is read at once into arrays: gathering batches is then faster than
reading any file.

Format: "Binary version" on the page of Krizhevsky, "Learning multiple layers of features from tiny
images".
"""

import functools
import os
from typing import Any, List, NamedTuple, Tuple

import numpy as np

from towers.base.files import open_regular
from towers.base.usage_error import UsageError
from towers.data.arrays import from_arrays
from towers.data.augmented import augment_arrays
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet
from towers_data.folder import check_files, check_folder

IMAGE_SHAPE = (32, 32, 3)
_IMAGE_BYTES = 32 * 32 * 3


class CifarFormat(NamedTuple):
  """What differs between CIFAR-10 and CIFAR-100."""
  folder: str  # What their archives unpack to.
  train: Tuple[str, ...]  # Names of the files to learn from.
  validation: Tuple[str, ...]  # Names of the files to measure on.
  num_labels: int  # Label bytes of a record; the last one is the class.
  num_classes: int  # Labels are 0 … num_classes - 1.


CIFARS = {
    'cifar10': CifarFormat(folder='cifar-10-batches-bin',
                           train=tuple(f'data_batch_{number}.bin' for number in range(1, 6)),
                           validation=('test_batch.bin',), num_labels=1, num_classes=10),
    'cifar100': CifarFormat(folder='cifar-100-binary', train=('train.bin',),
                            validation=('test.bin',), num_labels=2, num_classes=100),
}


def load_cifar(name: str, data_dir: Any, *, bad_records: BadRecords, augment: str = 'none',
               seed: int = 0) -> DataSet:
  """Loads both splits.

  The folder is that of the files, or the one that their archive was unpacked in. Damage is a label
  out of range, or bytes after a file's last whole record.

  Raises:
    UsageError: files that are missing or, by the policy, damaged.
  """
  layout = CIFARS[name]
  names = layout.train + layout.validation
  folder = check_folder(data_dir, data=name,
                        needs='the files of its binary version: ' + ', '.join(names))
  if os.path.isdir(os.path.join(folder, layout.folder)):
    folder = os.path.join(folder, layout.folder)
  check_files(folder, names, fix=f"'{name}' reads the binary version.")

  splits = []
  for split, files in (('train', layout.train), ('validation', layout.validation)):
    parts = [read_cifar(os.path.join(folder, file), layout, bad_records) for file in files]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts))
    if not len(labels):
      raise UsageError(f"{folder}: no record of {', '.join(files)} is whole, so there is nothing "
                       "to read.")
    splits.append(from_arrays(images, labels, name=f'{name}_{split}'))
  return DataSet(train=augment_arrays(splits[0], kind=augment, seed=seed), validation=splits[1],
                 image_shape=IMAGE_SHAPE, num_classes=layout.num_classes,
                 source="files of CIFAR's binary version, held in memory once for all towers",
                 bad_records=bad_records)


load_cifar10 = functools.partial(load_cifar, 'cifar10')
load_cifar100 = functools.partial(load_cifar, 'cifar100')


def read_cifar(path: str, layout: CifarFormat,
               bad_records: BadRecords) -> Tuple[np.ndarray, np.ndarray]:
  """Reads one file.

  Returns:
    Images `[n, 32, 32, 3]` uint8 and labels `[n]` int32.

  Raises:
    UsageError: the file cannot be read or, under the policy 'fail', is damaged.
  """
  record_bytes = layout.num_labels + _IMAGE_BYTES
  try:
    with open_regular(path) as file:
      content = np.frombuffer(file.read(), np.uint8)
  except OSError as error:
    raise UsageError(f'{path}: cannot be read: {error.strerror}; check its permissions.') from None

  num_records, left = divmod(len(content), record_bytes)
  if left:
    bad_records.report(path, num_records * record_bytes, num_records,
                       f'truncated: {left:,} bytes are left, and a record has {record_bytes:,}')
  elif not num_records:
    bad_records.report(path, 0, None, 'the file is empty')

  records = content[:num_records * record_bytes].reshape(num_records, record_bytes)
  labels = records[:, layout.num_labels - 1].astype(np.int32)
  wrong: List[int] = np.flatnonzero(labels >= layout.num_classes).tolist()
  for record in wrong:
    bad_records.report(
        path, record * record_bytes, record,
        f'the label {labels[record]} lies outside 0 to {layout.num_classes - 1}')

  images = records[:, layout.num_labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
  if wrong:
    images, labels = np.delete(images, wrong, axis=0), np.delete(labels, wrong)
  return np.ascontiguousarray(images), labels
