"""Crops lie within the image, shifts are what numpy makes of the same numbers, and draws decide all
of it.
"""

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness.small import MODES
from towers.base.usage_error import UsageError
from towers.data import from_arrays
from towers.data.augment import (
  NUM_DRAWS,
  augment_arrays,
  choose_central_windows,
  choose_random_windows,
  mirror,
  pad_crop_mirror,
)
from towers.data.draws import draw


def test_random_windows_lie_within_the_image_and_cover_what_they_should():
  random = np.random.RandomState(0)
  with tf.Graph().as_default(), tf.Session() as session:
    size, draws = tf.placeholder(tf.int32, [2]), tf.placeholder(tf.float32, [NUM_DRAWS['imagenet']])
    choose = session.make_callable(
        choose_random_windows(size[tf.newaxis], draws[tf.newaxis])[0], [size, draws])
    shares, aspects = [], []
    for _ in range(300):
      height, width = random.randint(30, 600, size=2)
      y, x, window_height, window_width = choose([height, width], random.uniform(size=NUM_DRAWS[
          'imagenet']))
      assert y >= 0 and x >= 0
      assert 1 <= window_height <= height - y and 1 <= window_width <= width - x
      if 0.75 < height / width < 4 / 3:
        shares.append(window_height * window_width / (height * width))
        aspects.append(window_width / window_height)
    assert 0.07 < min(shares) < 0.2 and 0.8 < max(shares) <= 1
    assert 0.72 < min(aspects) < 0.85 and 1.2 < max(aspects) < 1.38
    # The largest draws below 1 reach the last row and column, not one beyond; no part fits a line.
    assert choose([100, 100], np.full(NUM_DRAWS['imagenet'], 1 - 2.0**-24))[0] >= 0
    assert choose([1, 500], np.full(NUM_DRAWS['imagenet'], 0.5)).tolist() == [0, 249, 1, 1]


def test_the_largest_draws_reach_the_last_row_and_column_and_none_beyond():
  tries = NUM_DRAWS['imagenet'] // 4
  draws = np.full([4, tries], 1 - 2.0 ** -24, np.float32)
  draws[:2] = [[0.0], [0.5]]  # The smallest squares.
  sizes = np.repeat(np.arange(5, 1200)[:, None], 2, 1)
  with tf.Graph().as_default(), tf.Session() as session:
    windows = session.run(choose_random_windows(
        tf.constant(sizes, tf.int32), tf.constant(np.repeat(draws.reshape(1, -1), len(sizes), 0))))
  np.testing.assert_array_equal(windows[:, :2] + windows[:, 2:], sizes)


@pytest.mark.parametrize('size, image_size, expected', [
    ((375, 500), 224, [23, 86, 328, 328]),   # 0.875 of the shorter side.
    ((32, 32), 32, [0, 0, 32, 32]),          # Just right: nothing is cut off.
    ((240, 300), 224, [8, 38, 224, 224]),    # No smaller than what is asked for.
    ((20, 10), 224, [5, 0, 10, 10]),
    ((1, 1), 8, [0, 0, 1, 1]),
])
def test_the_central_window(size, image_size, expected):
  with tf.Graph().as_default(), tf.Session() as session:
    assert session.run(choose_central_windows(tf.constant([size, size]),
                                              image_size)).tolist() == [expected] * 2


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
  taken = []
  with tf.Graph().as_default(), tf.Session() as session:
    plan = towers.build_plan(num_examples=20, batch_size=8, num_towers=2)
    inputs = towers.build_inputs(examples, mode=mode, plan=plan, shuffle=True)
    batches = [(batch.tensors, tf.convert_to_tensor(batch.num_examples))
               for batch in inputs.next_batches()]
    session.run(inputs.initializer, inputs.feed_dict(0))
    for epoch in range(2):
      cropped = np.zeros_like(images)
      for _ in range(plan.steps_per_epoch):
        for (some, labels), count in session.run(batches):
          cropped[labels[:count]] = some[:count]
      draws = draw(tf.range(20, dtype=tf.int64), epoch=tf.constant(epoch, tf.int64), seed=3,
                   count=3)
      expected = session.run(pad_crop_mirror(tf.constant(images), draws))
      np.testing.assert_array_equal(cropped, expected)
      taken.append(cropped)
  differs = (taken[0] != taken[1]).any(axis=(1, 2, 3))
  assert differs.sum() >= 18


def test_mirroring():
  image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
  with tf.Graph().as_default(), tf.Session() as session:
    mirrored, same = session.run(
        [mirror(tf.constant(image), tf.constant(number)) for number in (0.49, 0.5)])
  np.testing.assert_array_equal(mirrored, image[:, ::-1])
  np.testing.assert_array_equal(same, image)


def test_arrays_have_no_use_for_crops_of_encoded_images():
  examples = from_arrays(np.zeros([5, 8, 8, 3], np.uint8), np.zeros([5], np.int32), name='mine')
  assert augment_arrays(examples, kind='none', seed=0) is examples
  with pytest.raises(UsageError, match='mine: augment=imagenet.*augment=cifar'):
    augment_arrays(examples, kind='imagenet', seed=0)
