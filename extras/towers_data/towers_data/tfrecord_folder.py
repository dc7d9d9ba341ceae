"""TFRecord folder: sharded files of encoded images, in ImageNet's layout.

  data_dir/train-00000-of-01024 …         records are tf.train.Example with the features
  data_dir/validation-00000-of-00128 …      image/encoded        a JPEG or PNG
                                            image/class/label    an int: 1 … 1000 there,
                                                                 0 is the background

`python -m towers convert` also writes a data_set.json: the number of classes, the first label,
and the number of records of each file.
"""

import os
import re
from typing import Any, Dict, List, Optional

from towers.base.json_files import read_sealed
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet
from towers.data.records import open_records
from towers_data.encoded_images import ImageFormat, encoded_examples
from towers_data.folder import check_folder, list_folder, scan_folder
from towers_data.image_folder import DEFAULT_SIZE, VALIDATION_NAMES
from towers_data.labelled_example import labelled_source

DESCRIPTION = 'data_set.json'
DESCRIPTION_FORMAT = 'towers data set 1'
_SCHEMA = dict(format=str, converted_from=object, num_classes=object, first_label=object,
               classes=object, image_size=object, channels=object,
               shards={str: {'records': int, str: object}})
_IMAGENET_CLASSES, _IMAGENET_FIRST_LABEL = 1000, 1
_SHARD = re.compile(r'(.*)-(\d{5})-of-(\d{5})(\..*)?\Z')
_NO_RECORDS = ('.json', '.txt', '.md', '.tmp', '.csv')
# Of the numbers in data_set.json: the least and the most.
_LIMITS = {'first_label': (-1 << 31, (1 << 31) - 1), 'num_classes': (2, (1 << 31) - 1),
           'channels': (1, 3), 'image_size': (1, 1 << 16)}
_NEEDS = 'TFRecord files whose names begin with train and validation, as train-00000-of-01024'


def load_tfrecord_folder(data_dir: Any, *, bad_records: BadRecords,
                         image_size: Optional[int] = None, num_classes: Optional[int] = None,
                         first_label: Optional[int] = None, max_image_pixels: int,
                         augment: str = 'none', seed: int = 0) -> DataSet:
  """Loads both splits of a folder.

  Where settings are None they are what data_set.json says, or 224 pixels, 1000 classes from 1 on.
  Damaged lengths are found while loading, and payloads later.

  Returns:
    DataSet with images `[batch, image_size, image_size, channels]` uint8 and labels `[batch]`
    int32.

  Raises:
    UsageError: files that are missing or, by the policy, damaged.
  """
  folder = check_folder(data_dir, data='tfrecord', needs=_NEEDS)
  description = read_description(folder)
  files = find_shards(folder)
  format = ImageFormat(
      size=image_size or description.get('image_size') or DEFAULT_SIZE,
      channels=description.get('channels', 3), max_pixels=max_image_pixels)
  num_classes = num_classes or description.get('num_classes', _IMAGENET_CLASSES)
  if first_label is None:
    first_label = description.get('first_label', _IMAGENET_FIRST_LABEL)

  counts = {file: shard['records'] for file, shard in description.get('shards', {}).items()}

  def load(split, augment):
    records = open_records(files[split], bad_records, counts=counts, counted_by=DESCRIPTION)
    source = labelled_source(records, num_classes=num_classes, first_label=first_label)
    return encoded_examples(source, format=format, augment=augment, seed=seed,
                            bad_records=bad_records, name=f'tfrecord_{split}')

  return DataSet(
      train=load('train', augment), validation=load('validation', 'none'),
      image_shape=(format.size, format.size, format.channels), num_classes=num_classes,
      bad_records=bad_records,
      source=f"{len(files['train']):,} + {len(files['validation']):,} TFRecord files, read by "
      "record index: every mode and tower takes exact shares, whatever the sizes of files")


def find_shards(folder: str) -> Dict[str, List[str]]:
  """Returns the paths of 'train' and 'validation', in the order of their names.

  Raises:
    UsageError: a split without files, or a set of shards that is not whole.
  """
  names = [entry.name for entry in scan_folder(folder)
           if not entry.is_folder and not entry.name.endswith(_NO_RECORDS)]
  found = {}
  for split, prefixes in (('train', ('train',)), ('validation', VALIDATION_NAMES)):
    for prefix in prefixes:
      of_split = [name for name in names if re.match(prefix + r'(?![a-z])', name)]
      if of_split:
        _check_shards(folder, of_split)
        found[split] = [os.path.join(folder, name) for name in of_split]
        break
    else:
      raise UsageError(f"data_dir '{folder}' has no file of the split {split} "
                       f"({', '.join(prefix + '-*' for prefix in prefixes)}); it needs "
                       f"{_NEEDS}. It holds {list_folder(folder)}.")
  return found


def _check_shards(folder, names):
  """Raises if names count shards, as 7 of 16, and are not one whole set."""
  sets: Dict[Any, List[int]] = {}
  for name in names:
    match = _SHARD.match(name)
    if match:
      sets.setdefault((match.group(1), int(match.group(3))), []).append(int(match.group(2)))
  if len({total for _, total in sets}) > 1:
    found = ', '.join(f'{prefix}-…-of-{total:05d}' for prefix, total in sorted(sets))
    raise UsageError(f"data_dir '{folder}' has files of several conversions: {found}; keep one of "
                     "them.")
  for (prefix, total), indices in sets.items():
    missing = sorted(set(range(total)) - set(indices))
    if missing:
      raise UsageError(f"data_dir '{folder}' lacks {len(missing):,} of {total:,} files of "
                       f"{prefix}, the first of which is {prefix}-{missing[0]:05d}-of-{total:05d}; "
                       "a conversion or copy may not be finished.")


def read_description(folder: str) -> Dict[str, Any]:
  """Returns what data_set.json says, or nothing if there is none.

  Raises:
    UsageError: it is damaged.
  """
  path = os.path.join(folder, DESCRIPTION)
  if not os.path.exists(path):
    return {}
  try:
    description = read_sealed(path, _SCHEMA)
    if description['format'] != DESCRIPTION_FORMAT:
      raise ValueError(f"its format is {str(description['format'])[:60]!r}")
    numbers = {name: description.get(name) for name in _LIMITS}
    numbers.update({f'records of {name}': shard['records']
                    for name, shard in description['shards'].items()})
    for name, value in numbers.items():
      least, most = _LIMITS.get(name, (0, 1 << 62))
      is_left_out = value is None and name == 'image_size'
      if not is_left_out and not (type(value) is int and least <= value <= most):
        raise ValueError(f'{name} is {str(value)[:60]!r}, and must be from {least} to {most:,}')
    if description['channels'] == 2:
      raise ValueError('channels is 2, and must be 1 or 3')
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise UsageError(
        f'{path}: damaged: {error}; make it again with python -m towers convert.') from None
  return description
