"""Data: from files and arrays to the splits that the input modes read.

  from towers import data
  data_set = data.load('sample')              # or any name in data.DATA_SETS
  data_set.train, data_set.validation         # Examples: elements to shard, and how to parse them

Nothing imports TensorFlow before a graph is built: wrong flags and damaged files fail at once.
"""

import functools
import gzip
import os
from typing import Any, Callable, Dict, NamedTuple, Optional

import numpy as np

from towers.base.files import open_regular
from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError, check_choice
from towers.data.arrays import from_arrays
from towers.data.augmented import augment_arrays
from towers.data.bad_records import BadRecords
from towers.data.datasets import from_dataset
from towers.data.examples import DataSet, Examples
from towers.data.records import from_tfrecords
from towers.extras import FUNCTIONS, load_extra

__all__ = [
    'DATA_SETS', 'BadRecords', 'DataSet', 'Examples', 'LoadSettings', 'decode_images',
    'from_arrays', 'from_dataset', 'from_tfds', 'from_tfrecords', 'load',
    'load_cifar', 'load_idx_folder', 'load_image_folder', 'load_npy', 'load_synthetic',
    'load_tfds_folder', 'load_tfrecord_folder']

# What towers-data loads, and the settings that each has a use for.
_OF_TOWERS_DATA = {
    'fashion_mnist': (), 'mnist': (), 'synthetic': (), 'cifar10': (), 'cifar100': (),
    'npy': ('num_classes',),
    'images': ('image_size', 'max_image_pixels'),
    'tfrecord': ('image_size', 'max_image_pixels', 'num_classes', 'first_label'),
    'tfds': ('image_size', 'max_image_pixels')}
_SAMPLE_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fashion_mnist_sample')


class LoadSettings(NamedTuple):
  """How to load a data set; a setting that a data set has no use for is an error.

  Attributes:
    data_dir: the folder of the files, for data sets that have files.
    seed: of 'synthetic' and of augmentation.
    augment: of the training split, one of `augment.KINDS`.
    image_size: height and width of decoded images, in pixels; None for the data's own choice.
    num_classes: of 'tfrecord' and 'npy'; None for the data's own.
    first_label: of 'tfrecord', the label that becomes 0; None for the data's own.
    on_bad_record: one of `bad_records.POLICIES`.
    max_image_pixels: larger encoded images are refused.
  """
  data_dir: Optional[Any] = None
  seed: int = 0
  augment: str = 'none'
  image_size: Optional[int] = None
  num_classes: Optional[int] = None
  first_label: Optional[int] = None
  on_bad_record: str = 'fail'
  max_image_pixels: int = 64000000


def load(name: str, **settings: Any) -> DataSet:
  """Loads a data set by its name, one of `DATA_SETS`; the settings are those of `LoadSettings`.

  Returns:
    DataSet with batches of images `[batch, height, width, channels]` and labels `[batch]` int32.
    Images are uint8, but for .npy files of float32.

  Raises:
    UsageError: an unknown name, a setting that is missing or that the data set has no use for, or
      files that cannot be what they should be.
  """
  check_choice('data', name, DATA_SETS)
  given = LoadSettings(**settings)
  for setting, names in _ONLY_FOR.items():
    value = getattr(given, setting)
    if value is not None and name not in names:
      raise UsageError(f"Data set '{name}' has no use for {setting}, but {setting} is '{value}'; "
                       f"leave {setting} out, or choose a data set that has one: "
                       f"{', '.join(names)}.")
  if given.data_dir is not None:
    check_local_path('data_dir', given.data_dir)
  return DATA_SETS[name](given)


def _load_sample(settings: LoadSettings) -> DataSet:
  """Returns the part of Fashion-MNIST that stands beside this file."""
  def read(name, num_header_bytes):
    with open_regular(os.path.join(_SAMPLE_DIR, f'{name}-ubyte.gz')) as file:
      return np.frombuffer(gzip.decompress(file.read()), np.uint8, offset=num_header_bytes)

  train, validation = [
      from_arrays(read(f'{files}-images-idx3', 16).reshape([-1, 28, 28, 1]),
                  read(f'{files}-labels-idx1', 8).astype(np.int32), name=f'sample_{split}')
      for files, split in (('train', 'train'), ('t10k', 'validation'))]
  train = augment_arrays(train, kind=settings.augment, seed=settings.seed)
  return DataSet(train, validation, image_shape=(28, 28, 1), num_classes=10)


def _load_extra_data(name: str, settings: LoadSettings) -> DataSet:
  used = {setting: getattr(settings, setting) for setting in _OF_TOWERS_DATA[name]}
  return load_extra(f'data={name}')(settings.data_dir, augment=settings.augment, seed=settings.seed,
                                    bad_records=BadRecords(settings.on_bad_record), **used)


DATA_SETS: Dict[str, Callable[[LoadSettings], DataSet]] = {
    'sample': _load_sample,
    **{name: functools.partial(_load_extra_data, name) for name in _OF_TOWERS_DATA}}
# The data sets that have a use for a setting; elsewhere it is a mistake.
_ONLY_FOR = {
    'data_dir': tuple(name for name in _OF_TOWERS_DATA if name != 'synthetic'),
    **{setting: tuple(name for name, used in _OF_TOWERS_DATA.items() if setting in used)
       for setting in ('image_size', 'num_classes', 'first_label')}}


def __getattr__(name: str) -> Any:
  if f'towers.data.{name}' not in FUNCTIONS:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return load_extra(f'towers.data.{name}')
