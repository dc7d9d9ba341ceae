"""Image folder: JPEGs and PNGs of any size, one folder for each class.

  data_dir/train/cat/1.jpg            the classes are numbered in the order of their names
  data_dir/train/dog/2.png
  data_dir/validation/cat/3.jpg       or val, or test
"""

import os
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.encoded_images import ImageFormat, ImageSource, encoded_examples
from towers.data.examples import DataSet
from towers.data.folders.folder import check_folder, list_folder

EXTENSIONS = ('.jpg', '.jpeg', '.png')
VALIDATION_NAMES = ('validation', 'val', 'test')
DEFAULT_SIZE = 224
_NEEDS = ('the folders train and validation, in each of which every class has a folder of JPEGs or '
          'PNGs')


class ImageFiles:
  """The images of one split, by number."""

  def __init__(self, paths: Sequence[str], labels: Sequence[int]):
    """Reads nothing yet."""
    self.paths = list(paths)
    self.labels = np.array(labels, np.int32)

  def read(self, numbers: Sequence[int]) -> List[Any]:
    """Returns for each number the file's bytes and its label, or a BadRecordError."""
    results: List[Any] = []
    for number in numbers:
      try:
        with open(self.paths[number], 'rb') as file:
          results.append((file.read(), self.labels[number]))
      except OSError as error:
        results.append(BadRecordError(f'cannot be read: {error.strerror}'))
    return results

  def place(self, number: int) -> Tuple[str, int, int]:
    """Returns the file, the offset 0 and the record 0: a file is one record."""
    return self.paths[number], 0, 0


def load_image_folder(data_dir: Any, *, bad_records: BadRecords, image_size: Optional[int] = None,
                      max_image_pixels: int, augment: str = 'none', seed: int = 0) -> DataSet:
  """Loads both splits of a folder.

  Args:
    data_dir: the folder of the folders.
    bad_records: what to do with images that cannot be read.
    image_size: height and width that images get; None for 224.
    max_image_pixels: larger images are refused.
    augment: of the training split.
    seed: of augmentation.

  Returns:
    DataSet with images `[batch, image_size, image_size, 3]` uint8 and labels `[batch]` int32.

  Raises:
    UsageError: folders that are missing or empty, or classes that only validation has.
  """
  classes, splits = find_image_files(data_dir)
  size = image_size or DEFAULT_SIZE
  format = ImageFormat(size=size, channels=3, max_pixels=max_image_pixels)
  examples = [
      encoded_examples(ImageSource(len(files.paths), files.read, files.place), format=format,
                       augment=augment if split == 'train' else 'none', seed=seed,
                       bad_records=bad_records, name='images_' + split) for split, files in splits
  ]
  return DataSet(
      examples[0], examples[1], (size, size, 3), max(len(classes), 2), bad_records=bad_records,
      source=f'{len(classes):,} classes of image files, read by number: every mode and '
      'tower takes exact shares')


def find_image_files(data_dir: Any) -> Tuple[List[str], List[Tuple[str, ImageFiles]]]:
  """Returns the names of the classes, and (name, files) of both splits, in the order of class and
  file names.

  Raises:
    UsageError: folders that are missing or empty, or classes that only validation has.
  """
  folder = check_folder(data_dir, data='images', needs=_NEEDS)
  validation = [name for name in VALIDATION_NAMES if os.path.isdir(os.path.join(folder, name))]
  missing = [
      name for name, is_there in (('train', os.path.isdir(os.path.join(folder, 'train'))),
                                  ('validation (or val, or test)', validation)) if not is_there
  ]
  if missing:
    raise UsageError(f"data_dir '{folder}' lacks the folder {' and '.join(missing)}; it needs "
                     f"{_NEEDS}. It holds {list_folder(folder)}.")
  classes = _subfolders(os.path.join(folder, 'train'))
  unknown = set(_subfolders(os.path.join(folder, validation[0]))) - set(classes)
  if unknown:
    raise UsageError(f"{os.path.join(folder, validation[0])}: the classes "
                     f"{', '.join(sorted(unknown))} have no folder in train, so nothing could "
                     "learn them; rename or remove them.")
  splits = []
  for split, name in (('train', 'train'), ('validation', validation[0])):
    paths: List[str] = []
    labels: List[int] = []
    for label, class_name in enumerate(classes):
      found = _images(os.path.join(folder, name, class_name))
      if not found and split == 'train':
        raise UsageError(f'{os.path.join(folder, name, class_name)}: no JPEG or PNG, so there is '
                         'nothing to learn the class from; it holds '
                         f'{list_folder(os.path.join(folder, name, class_name))}.')
      paths += found
      labels += [label] * len(found)
    if not paths:
      raise UsageError(f'{os.path.join(folder, name)}: no folder of a class with JPEGs or PNGs; it '
                       f'holds {list_folder(os.path.join(folder, name))}.')
    splits.append((split, ImageFiles(paths, labels)))
  return classes, splits


def _subfolders(folder):
  return sorted(entry.name
                for entry in os.scandir(folder)
                if entry.is_dir() and not entry.name.startswith('.'))


def _images(folder):
  if not os.path.isdir(folder):
    return []
  return sorted(entry.path
                for entry in os.scandir(folder)
                if entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith('.') and
                entry.is_file())
