"""Shifts are what numpy makes of the same numbers, and draws decide all of it."""

import numpy as np
import pytest

from tests.harness.small import MODES
from tests.harness.taking import take
from towers.base.usage_error import UsageError
from towers.data import from_arrays
from towers.data.augmented import augment_arrays, pad_crop_mirror
from towers.data.example_draws import draw
from towers.tensorflow_v1 import tf


@pytest.mark.parametrize('shape', [(9, 12, 3), (8, 8, 1)])
def test_shifted_and_mirrored_images_are_numpys(shape):
  random = np.random.RandomState(0)
  images = random.randint(256, size=(40,) + shape).astype(np.uint8)
  draws = random.uniform(size=(40, 3)).astype(np.float32)
  with tf.Graph().as_default(), tf.Session() as session:
    got = session.run(pad_crop_mirror(tf.constant(images), tf.constant(draws)))
  for result, image, (y, x, side) in zip(got, images, draws):
    padded = np.pad(image, [(4, 4), (4, 4), (0, 0)], 'constant')
    y, x = int(y * 9), int(x * 9)
    expected = padded[y:y + shape[0], x:x + shape[1]]
    np.testing.assert_array_equal(result, expected[:, ::-1] if side < 0.5 else expected)


@pytest.mark.nightly(but='next')
@pytest.mark.parametrize('mode', MODES)
def test_augmented_arrays_are_cropped_anew_in_every_epoch_by_each_examples_draws(mode):
  images = np.random.RandomState(0).randint(1, 256, size=(20, 8, 8, 1)).astype(np.uint8)
  examples = augment_arrays(from_arrays(images, np.arange(20)), kind='cifar', seed=3)
  steps, taken = take(examples, mode=mode, num_towers=2, num_steps=6, shuffle=True), []
  with tf.Graph().as_default(), tf.Session() as session:
    for epoch in range(2):
      cropped = np.zeros_like(images)
      for by_tower in steps[3 * epoch:][:3]:
        for (some, labels), count in by_tower:
          cropped[labels[:count]] = some[:count]
      draws = draw(tf.range(20, dtype=tf.int64), epoch=tf.constant(epoch, tf.int64), seed=3,
                   count=3)
      expected = session.run(pad_crop_mirror(tf.constant(images), draws))
      np.testing.assert_array_equal(cropped, expected)
      taken.append(cropped)
  differs = (taken[0] != taken[1]).any(axis=(1, 2, 3))
  assert differs.sum() >= 18


def test_arrays_have_no_use_for_crops_of_encoded_images():
  examples = from_arrays(np.zeros([5, 8, 8, 3], np.uint8), np.zeros([5], np.int32), name='mine')
  assert augment_arrays(examples, kind='none', seed=0) is examples
  with pytest.raises(UsageError, match='mine: augment=imagenet.*augment=cifar'):
    augment_arrays(examples, kind='imagenet', seed=0)
