"""Image folder: JPEGs and PNGs of any size, one folder for each class.

  data_dir/train/cat/1.jpg            labels count the classes in the order of their names
  data_dir/train/dog/2.png
  data_dir/validation/cat/3.jpg       or val, or test
"""

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from towers.base.files import open_regular
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.examples import DataSet, Examples
from towers_data.encoded_images import ImageFormat, ImageSource, encoded_examples
from towers_data.folder import check_folder, list_folder, scan_folder

VALIDATION_NAMES = ('validation', 'val', 'test')
DEFAULT_SIZE = 224
_EXTENSIONS = ('.jpg', '.jpeg', '.png')
_NEEDS = 'the folders train and validation, each with a folder of JPEGs or PNGs for every class'


class ImageFiles:
  """JPEGs and PNGs, each a file of its own, by index."""

  def __init__(self, paths: Sequence[str], labels: Sequence[int]):
    """Reads nothing yet."""
    self.paths = list(paths)
    self.labels = np.array(labels, np.int32)

  @property
  def source(self) -> ImageSource:
    """The images and their labels."""
    return ImageSource(len(self.paths), self.read, self.place)

  def read(self, indices: Sequence[int]) -> List[Any]:
    """Returns for each index the file's bytes and its label, or a BadRecordError."""
    results: List[Any] = []
    for index in indices:
      try:
        with open_regular(self.paths[index]) as file:
          results.append((file.read(), self.labels[index]))
      except OSError as error:
        results.append(BadRecordError(f'cannot be read: {error.strerror}'))
    return results

  def place(self, index: int) -> Tuple[str, int, int]:
    """Returns the file, the offset 0 and the record 0: a file is one record."""
    return self.paths[index], 0, 0


def load_image_folder(data_dir: Any, *, bad_records: BadRecords, image_size: Optional[int] = None,
                      max_image_pixels: int, augment: str = 'none', seed: int = 0) -> DataSet:
  """Loads both splits of a folder.

  Returns:
    DataSet with images `[batch, image_size, image_size, 3]` uint8 and labels `[batch]` int32.

  Raises:
    UsageError: folders that are missing or empty, or classes that only validation has.
  """
  classes, splits = find_image_files(data_dir)
  size = image_size or DEFAULT_SIZE
  format = ImageFormat(size=size, channels=3, max_pixels=max_image_pixels)

  def examples_of(split, augment):
    return encoded_examples(splits[split].source, format=format, augment=augment, seed=seed,
                            bad_records=bad_records, name=f'images_{split}')

  return DataSet(
      train=examples_of('train', augment), validation=examples_of('validation', 'none'),
      image_shape=(size, size, 3), num_classes=max(len(classes), 2), bad_records=bad_records,
      source=f'{len(classes):,} classes of image files, read by index: every mode and tower takes '
      'exact shares')


def find_image_files(data_dir: Any) -> Tuple[List[str], Dict[str, ImageFiles]]:
  """Returns the names of the classes, and the files of 'train' and 'validation', both sorted.

  Raises:
    UsageError: folders that are missing or empty, or classes that only validation has.
  """
  folder = check_folder(data_dir, data='images', needs=_NEEDS)
  validation = [name for name in VALIDATION_NAMES if os.path.isdir(os.path.join(folder, name))]
  missing = [] if os.path.isdir(os.path.join(folder, 'train')) else ['train']
  if not validation:
    missing.append('validation (or val, or test)')
  if missing:
    raise UsageError(f"data_dir '{folder}' lacks the folder {' and '.join(missing)}; it needs "
                     f"{_NEEDS}. It holds {list_folder(folder)}.")

  train_dir, validation_dir = (os.path.join(folder, name) for name in ('train', validation[0]))
  classes = _subfolders(train_dir)
  unknown = set(_subfolders(validation_dir)) - set(classes)
  if unknown:
    raise UsageError(f"{validation_dir}: the classes {', '.join(sorted(unknown))} have no folder "
                     "in train, so nothing could learn them; rename or remove them.")
  for class_name in classes:
    class_dir = os.path.join(train_dir, class_name)
    if not _images(class_dir):
      raise UsageError(f'{class_dir}: no JPEG or PNG, so there is nothing to learn the class from; '
                       f'it holds {list_folder(class_dir)}.')
  return classes, {'train': _find_images(train_dir, classes),
                   'validation': _find_images(validation_dir, classes)}


def _find_images(split_dir, classes) -> ImageFiles:
  paths: List[str] = []
  labels: List[int] = []
  for label, class_name in enumerate(classes):
    found = _images(os.path.join(split_dir, class_name))
    paths += found
    labels += [label] * len(found)
  if not paths:
    raise UsageError(f'{split_dir}: no folder of a class with JPEGs or PNGs; it holds '
                     f'{list_folder(split_dir)}.')
  return ImageFiles(paths, labels)


def _subfolders(folder):
  return [entry.name for entry in scan_folder(folder) if entry.is_folder]


def _images(folder):
  if not os.path.isdir(folder):
    return []
  return [entry.path for entry in scan_folder(folder)
          if entry.name.lower().endswith(_EXTENSIONS) and not entry.is_folder]


def load_images(folder: str, *, size: int, channels: int, max_pixels: int,
                bad_records: BadRecords) -> Tuple[List[str], Examples]:
  """Returns the names of a folder's images, without classes, and their examples as for validation.
  """
  paths = _images(folder)
  examples = encoded_examples(
      ImageFiles(paths, [0] * len(paths)).source, format=ImageFormat(size, channels, max_pixels),
      augment='none', seed=0, bad_records=bad_records, name='images')
  return [os.path.basename(path) for path in paths], examples
