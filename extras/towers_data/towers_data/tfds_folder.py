"""Tfds folder: what tensorflow-datasets has prepared, read as it is and without it.

  data_dir/features.json                            what an example is
  data_dir/dataset_info.json                        splits, and the number of records of each file
  data_dir/mnist-train.tfrecord-00000-of-00001 …    records are `tf.train.Example`

  data.load('tfds', data_dir='~/tensorflow_datasets/mnist/3.0.1')        # images and classes
  towers.from_tfds('~/tensorflow_datasets/imdb_reviews/plain_text/1.0.0', 'train')     # dicts
"""

import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from towers.base.json_files import parse_json, read_text
from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet, Examples
from towers.data.formats.tfrecord import Records
from towers.data.records import open_records, record_examples
from towers_data.encoded_images import ImageFormat, encoded_examples
from towers_data.folder import check_files, check_folder, list_folder
from towers_data.image_folder import DEFAULT_SIZE, VALIDATION_NAMES
from towers_data.labelled_example import labelled_source
from towers_data.tfds_features import (
  Feature,
  Features,
  flatten_features,
  parse_record,
  read_features,
)

_FEATURES, _INFO = 'features.json', 'dataset_info.json'
_NEEDS = f'{_FEATURES}, {_INFO} and TFRecord files, as tensorflow-datasets prepares them'
_TEMPLATE = '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}'


def from_tfds(folder: Any, split: str = 'train', *, on_bad_record: str = 'fail',
              name: Optional[str] = None) -> Examples:
  """Makes a split of a folder that tensorflow-datasets has prepared, which need not be installed.

  Args:
    folder: the one of a version, as '~/tensorflow_datasets/mnist/3.0.1'.
    split: 'train', 'test' or another that the folder has.
    on_bad_record: 'fail' ends a run at a damaged record, 'skip' leaves it out and logs it.
    name: of the split in messages and name scopes; None for 'tfds_train' and so on.

  Returns:
    Examples. Its batches are dicts, nested as the features are: images `[batch, height, width,
    channels]` uint8, labels `[batch]` int64, tensors in their dtypes, texts as strings.

  Raises:
    UsageError: files that are missing or damaged, a split that the folder does not have, or a
      feature of another class, dtype or shape.
  """
  opened = _open(folder)
  bad_records = BadRecords(on_bad_record)
  return record_examples(
      opened.open_split(split, bad_records), lambda record: parse_record(record, opened.features),
      name=name or re.sub(r'\W', '_', f'tfds_{split}'), bad_records=bad_records)


def load_tfds_folder(data_dir: Any, *, bad_records: BadRecords, image_size: Optional[int] = None,
                     max_image_pixels: int, augment: str = 'none', seed: int = 0) -> DataSet:
  """Loads both splits of a folder of labelled images.

  The folder is that of a version; images get their own size if it is one and no other is given, or
  else 224. Damaged lengths are found while loading, and payloads later.

  Returns:
    DataSet with images `[batch, image_size, image_size, channels]` uint8 and labels `[batch]`
    int32.

  Raises:
    UsageError: files that are missing or, by the policy, damaged; no image, no class, or several
      of them; no split to validate on.
  """
  opened = _open(data_dir)
  image, label = opened.find_image_and_label()
  height, width, channels = image.shape
  size = image_size or (height if height == width and height else DEFAULT_SIZE)
  assert channels is not None
  format = ImageFormat(size=size, channels=channels, max_pixels=max_image_pixels)

  def load(split, name, augment):
    records = opened.open_split(split, bad_records)
    source = labelled_source(records, num_classes=label.num_classes, first_label=0,
                             names=(image.path, label.path))
    return encoded_examples(source, format=format, augment=augment, seed=seed,
                            bad_records=bad_records, name=name)

  validation = next((name for name in VALIDATION_NAMES if name in opened.splits), None)
  if validation is None:
    raise UsageError(f"{opened.folder}: no split {', '.join(VALIDATION_NAMES)} to validate on; it "
                     f"has {', '.join(opened.splits)}. Use towers.from_tfds for single splits.")
  return DataSet(
      train=load('train', 'tfds_train', augment),
      validation=load(validation, 'tfds_validation', 'none'),
      image_shape=(size, size, channels), num_classes=label.num_classes, bad_records=bad_records,
      source=f'{opened.dataset} as tensorflow-datasets prepared it, read by record index: every '
      'mode and tower takes exact shares')


class _Folder(NamedTuple):
  """A folder's two descriptions."""
  folder: str  # Its path.
  dataset: str  # The data set's name.
  features: Features  # Of every example.
  splits: Dict[str, List[Tuple[str, int]]]  # Names of each one's files, and how many records.
  supervised: Tuple[str, ...]  # Names of what is learned from, and of what is; where they are said.

  def open_split(self, split: str, bad_records: BadRecords) -> Records:
    """Returns the records of a split."""
    if split not in self.splits:
      raise UsageError(f"{self.folder}: there is no split '{split}'; choose one of "
                       f"{', '.join(self.splits)}.")
    counts = {file: count for file, count in self.splits[split] if count}
    missing = [file for file in counts if not os.path.isfile(os.path.join(self.folder, file))]
    if missing:
      raise UsageError(f"{self.folder}: {len(missing):,} of {len(counts):,} files of the split "
                       f"'{split}' are missing, the first of which is {missing[0]}; it holds "
                       f'{list_folder(self.folder)}. A preparation or copy may not be finished.')
    return open_records([os.path.join(self.folder, file) for file in counts], bad_records,
                        counts=counts, counted_by=_INFO)

  def find_image_and_label(self) -> Tuple[Feature, Feature]:
    """Returns the features to classify, and the classes."""
    flat = flatten_features(self.features)
    found = []
    for kind in ('Image', 'ClassLabel'):
      of_kind = [feature for feature in flat.values() if feature.kind == kind]
      chosen = [feature for feature in of_kind if feature.path in self.supervised]
      if len(chosen or of_kind) != 1:
        names = ', '.join(feature.path for feature in of_kind) or 'none'
        raise UsageError(
            f'{self.folder}: data=tfds classifies images, and needs one feature of the class '
            f"{kind}; there are {len(of_kind)}: {names} (of {', '.join(flat)}). Read any features "
            'as dicts with towers.from_tfds.')
      found += chosen or of_kind
    image, label = found
    if label.num_classes < 2:
      raise UsageError(f"{self.folder}: the feature '{label.path}' has {label.num_classes} "
                       'classes; a model needs at least 2.')
    return image, label


def _open(data_dir: Any) -> _Folder:
  """Returns a folder's descriptions; raises a UsageError if it has none, or others."""
  if data_dir is not None:
    check_local_path('data_dir', data_dir)
    data_dir = os.path.expanduser(os.fspath(data_dir))
  folder = check_folder(data_dir, data='tfds', needs=_NEEDS)
  check_files(folder, (_FEATURES, _INFO),
              fix=f'It needs {_NEEDS}: the folder of a version, as mnist/3.0.1.')
  features = read_features(os.path.join(folder, _FEATURES))
  path = os.path.join(folder, _INFO)
  try:
    info = parse_json(read_text(path))
    file_format = info.get('fileFormat', 'tfrecord')
    if file_format != 'tfrecord':
      raise UsageError(f'{path}: the files are of the format {file_format}, and only tfrecord is '
                       'read: prepare it with file_format=tfrecord.')
    splits = {split['name']: _find_files(info['name'], split) for split in info['splits']}
    return _Folder(folder, info['name'], features, splits, _find_supervised(info))
  except UsageError:
    raise
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    raise UsageError(f'{path}: cannot be read as what tensorflow-datasets writes: '
                     f'{type(error).__name__}: {error}') from None


def _find_files(dataset, split) -> List[Tuple[str, int]]:
  """Returns the name of each file of a split, and how many records it has."""
  lengths = [int(length) for length in split['shardLengths']]
  files = []
  for index, length in enumerate(lengths):
    facts = dict(DATASET=dataset, SPLIT=split['name'], FILEFORMAT='tfrecord',
                 SHARD_INDEX=f'{index:05d}', NUM_SHARDS=f'{len(lengths):05d}',
                 SHARD_X_OF_Y=f'{index:05d}-of-{len(lengths):05d}')
    files.append(((split.get('filepathTemplate') or _TEMPLATE).format(**facts), length))
  return files


def _find_supervised(info) -> Tuple[str, ...]:
  keys = info.get('supervisedKeys', {})
  items = [item['featureKey'] for item in keys.get('tuple', {}).get('items', ())
           if 'featureKey' in item]
  return tuple(items or [keys[key] for key in ('input', 'output') if key in keys])
