"""Synthetic: determined by its seed, balanced, and learnable without being known at once."""

import hashlib

import numpy as np
import pytest

from towers.base.usage_error import UsageError
from towers_data.synthetic import load_synthetic


def _nearest_mean_accuracy(data_set):
  """Returns the share of validation images nearest to their class's mean training image."""
  images, labels = (array.astype(np.float32) for array in data_set.train.arrays)
  means = np.stack(
      [images[labels == label].mean(axis=0).ravel() for label in range(data_set.num_classes)])
  images, labels = data_set.validation.arrays
  images = images.reshape(len(images), -1).astype(np.float32)
  scores = images @ means.T - 0.5 * np.sum(means**2, axis=1)
  return np.mean(np.argmax(scores, axis=1) == labels)


def test_the_default_is_shaped_like_cifar_10():
  data_set = load_synthetic()
  assert (data_set.image_shape, data_set.num_classes) == ((32, 32, 3), 10)
  for examples, num_examples in ((data_set.train, 10000), (data_set.validation, 1000)):
    images, labels = examples.arrays
    assert images.shape == (num_examples, 32, 32, 3) and images.dtype == np.uint8
    assert labels.shape == (num_examples,) and labels.dtype == np.int32
    np.testing.assert_array_equal(np.bincount(labels), [num_examples // 10] * 10)


def test_it_can_be_learned_and_from_few_examples_less_well():
  assert _nearest_mean_accuracy(load_synthetic()) > 0.9
  assert 0.2 < _nearest_mean_accuracy(load_synthetic(num_train=500)) < 0.8


def test_the_seed_determines_every_byte():
  def digest(seed):
    data_set = load_synthetic(num_train=100, num_validation=10, seed=seed)
    content = b''.join(
        array.tobytes() for array in data_set.train.arrays + data_set.validation.arrays)
    return hashlib.sha256(content).hexdigest()

  # The very value, since it must be the same under any version of numpy and on any machine.
  assert digest(0) == 'bee16f72e3c78338b8819cc0cecbc3fd890df322ea5492bbd12746db5e468ee7'
  assert digest(1) != digest(0)


def test_splits_differ_and_do_not_depend_on_each_others_length():
  short = load_synthetic(num_train=20, num_validation=30)
  long = load_synthetic(num_train=200, num_validation=30)
  for mine, others in zip(short.validation.arrays, long.validation.arrays):
    np.testing.assert_array_equal(mine, others)
  # Of one length, too, for which the same seed would give the same images.
  for data_set in (short, load_synthetic(num_train=30, num_validation=30)):
    train, validation = data_set.train.arrays[0], data_set.validation.arrays[0]
    assert not np.array_equal(train[:20], validation[:20])


@pytest.mark.parametrize('image_shape', [(28, 28, 1), (1, 1, 1), (33, 7, 2)])
def test_any_shape(image_shape):
  data_set = load_synthetic(image_shape=image_shape, num_classes=3, num_train=8, num_validation=2)
  assert data_set.train.arrays[0].shape == (8,) + image_shape
  assert data_set.image_shape == image_shape
  assert sorted(np.bincount(data_set.train.arrays[1])) == [2, 3, 3]


def test_noise_and_pattern_use_the_range_of_a_byte_without_wrapping():
  images, labels = load_synthetic(num_train=4000, num_validation=1, num_classes=2).train.arrays
  assert (images.min(), images.max()) == (0, 255)
  # Noise of mean 120 and a pattern of 0 to 15: if sums wrapped at 256, all patches would have a
  # mean of 127.5.
  patch_means = images[labels == 0].mean(axis=0).reshape(4, 8, 4, 8, 3).mean(axis=(1, 3))
  assert 119 < patch_means.min() < 122 and 133 < patch_means.max() < 136


@pytest.mark.parametrize('arguments, words', [
    (dict(image_shape=(32, 32)), ['image_shape', '[32, 32]', 'height, width, channels']),
    (dict(image_shape=(32, 0, 3)), ['image_shape', '[32, 0, 3]']),
    (dict(num_train=0), ['synthetic_train', '0 examples', 'at least 1']),
    (dict(seed=-1), ['seed is -1', '4294967295']),
    (dict(seed=2**32), ['seed is 4294967296', '4294967295'])])
def test_arguments_out_of_range(arguments, words):
  with pytest.raises(UsageError) as error:
    load_synthetic(**arguments)
  for word in words:
    assert word in str(error.value)
