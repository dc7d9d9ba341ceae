"""Synthetic: images that need no files, are of any shape and can be learned.

Each class has a coarse coloured pattern, and each example is its class's pattern under noise
fifteen times as strong: accuracy climbs over the first epoch, and shows that a net learns.
"""

from typing import Any, Tuple

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.arrays import from_arrays
from towers.data.augmented import augment_arrays
from towers.data.bad_records import BadRecords
from towers.data.examples import DataSet

# The pattern changes every so many pixels, so that it survives pooling and strides.
_PATCH_PIXELS = 8
# Pattern 0 to 15 and noise 0 to 240 add up within a uint8.
_PATTERN_BITS = 4
_BLOCK = 64  # Images at a time, which stay in the processor's cache.
_MAX_SEED = 2**32 - 1


def load_synthetic(*, image_shape: Tuple[int, int, int] = (32, 32, 3), num_classes: int = 10,
                   num_train: int = 10000, num_validation: int = 1000, seed: int = 0) -> DataSet:
  """Makes a synthetic data set, CIFAR-shaped by default.

  Args:
    image_shape: `[height, width, channels]`.
    num_classes: each as frequent as the others, up to one example.
    num_train: examples to learn from.
    num_validation: examples to measure on, which do not depend on `num_train`.
    seed: 0 to 2^32 - 1; under any version of numpy it makes the same bytes.

  Returns:
    DataSet with batches of images `[batch, height, width, channels]` uint8 and labels `[batch]`
    int32.
  """
  image_shape = tuple(image_shape)  # type: ignore[assignment]
  if len(image_shape) != 3 or min(image_shape) < 1:
    raise UsageError(f'image_shape is {list(image_shape)}; it needs 3 numbers of 1 or more: '
                     'height, width, channels.')
  if not 0 <= seed <= _MAX_SEED:
    raise UsageError(f'seed is {seed}; synthetic data needs 0 to {_MAX_SEED}.')

  patterns = _patterns(image_shape, num_classes, np.random.RandomState([seed, 0]))
  # A stream of random numbers for each split: the length of one does not change the other.
  train = _images_and_labels(patterns, num_train, np.random.RandomState([seed, 1]))
  validation = _images_and_labels(patterns, num_validation, np.random.RandomState([seed, 2]))
  return DataSet(
      train=from_arrays(*train, name='synthetic_train'),
      validation=from_arrays(*validation, name='synthetic_validation'),
      image_shape=image_shape, num_classes=num_classes)


def load(data_dir: Any, *, bad_records: BadRecords, augment: str = 'none',
         seed: int = 0) -> DataSet:
  """Makes what a flag names, which reads no file."""
  del data_dir, bad_records
  data_set = load_synthetic(seed=seed)
  return data_set._replace(train=augment_arrays(data_set.train, kind=augment, seed=seed))


def _patterns(image_shape: Tuple[int, int, int], num_classes: int,
              random: np.random.RandomState) -> np.ndarray:
  """Returns one pattern for each class, [num_classes, height, width, channels] uint8."""
  height, width, channels = image_shape
  coarse = random.randint(
      2 ** _PATTERN_BITS,
      size=(num_classes, -(-height // _PATCH_PIXELS), -(-width // _PATCH_PIXELS), channels))
  fine = coarse.astype(np.uint8).repeat(_PATCH_PIXELS, axis=1).repeat(_PATCH_PIXELS, axis=2)
  return fine[:, :height, :width]


def _images_and_labels(patterns: np.ndarray, num_examples: int, random: np.random.RandomState
                       ) -> Tuple[np.ndarray, np.ndarray]:
  """Returns images [examples, height, width, channels] uint8 and labels [examples] int32."""
  num_classes = len(patterns)
  labels = random.permutation(np.arange(num_examples, dtype=np.int32) % num_classes)
  shape = (num_examples,) + patterns.shape[1:]
  # Raw bytes are the fastest random numbers that numpy has, several times as fast as normal ones.
  noise = bytearray(random.bytes(int(np.prod(shape))))
  images = np.frombuffer(noise, dtype=np.uint8).reshape(shape)
  for begin in range(0, num_examples, _BLOCK):
    block = images[begin:begin + _BLOCK]
    # 0 to 255 becomes 0 to 240, in place and without a detour through floats.
    block -= block >> _PATTERN_BITS
    block += patterns[labels[begin:begin + _BLOCK]]
  return images, labels
