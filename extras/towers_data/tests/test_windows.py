"""Windows lie within the image and are as large as they should be, and draws decide all of it."""

import numpy as np
import pytest

from towers.tensorflow_v1 import tf
from towers_data.windows import NUM_DRAWS, choose_central_windows, choose_random_windows, mirror


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
    ((1, 1), 8, [0, 0, 1, 1])])
def test_the_central_window(size, image_size, expected):
  with tf.Graph().as_default(), tf.Session() as session:
    assert session.run(choose_central_windows(tf.constant([size, size]),
                                              image_size)).tolist() == [expected] * 2


def test_mirroring():
  image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
  with tf.Graph().as_default(), tf.Session() as session:
    mirrored, same = session.run(
        [mirror(tf.constant(image), tf.constant(number)) for number in (0.49, 0.5)])
  np.testing.assert_array_equal(mirrored, image[:, ::-1])
  np.testing.assert_array_equal(same, image)
