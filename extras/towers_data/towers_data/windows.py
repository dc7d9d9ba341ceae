"""Windows: which part of an encoded image is decoded.

  none, cifar   the middle
  imagenet      a random part of 8 to 100 % of the area and an aspect of 3/4 to 4/3, which is then
                mirrored half of the time (Szegedy et al. 2015, "Going deeper with convolutions",
                section 6)

Validation always takes the middle.
"""

import math
from typing import Any

from towers.base.later import tf

_TRIES = 10
_MIN_AREA, _MAX_ASPECT = 0.08, 4 / 3
# Of the shorter side: 224 of 256, as most published ImageNet accuracies were measured.
_CENTRAL_SHARE = 0.875
# How many random numbers each kind of augmentation draws for an example.
NUM_DRAWS = {'none': 0, 'cifar': 3, 'imagenet': 4 * _TRIES + 1}


def choose_central_windows(sizes: Any, image_size: int) -> Any:
  """Returns the squares in the middle, each as `[y, x, height, width]`: int32 `[images, 4]`.

  They are 0.875 of the shorter side, but no smaller than `image_size`, what they are resized to,
  if the image has so many pixels. Sizes are heights and widths, int32 `[images, 2]`.
  """
  shorter = tf.reduce_min(sizes, 1, keepdims=True)
  sides = tf.cast(tf.round(tf.cast(shorter, tf.float32) * _CENTRAL_SHARE), tf.int32)
  sides = tf.maximum(tf.maximum(sides, tf.minimum(shorter, image_size)), 1)
  return tf.concat([(sizes - sides) // 2, sides, sides], 1)


def choose_random_windows(sizes: Any, draws: Any) -> Any:
  """Returns a random part of each image, as `[y, x, height, width]`: int32 `[images, 4]`.

  It is the first of ten random parts that fits, or else, as in very long images, the largest square
  in the middle. Sizes are as above, and draws uniform in [0, 1), float32 `[images, at least 40]`.
  """
  area, aspect, y, x = tf.unstack(tf.reshape(draws[:, :4 * _TRIES], [-1, 4, _TRIES]), axis=1)
  pixels = tf.cast(tf.reduce_prod(sizes, 1, keepdims=True), tf.float32)
  area = pixels * (_MIN_AREA + (1 - _MIN_AREA) * area)
  aspect = tf.exp((2 * aspect - 1) * math.log(_MAX_ASPECT))
  sides = tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], 2)
  tried = tf.cast(tf.round(sides), tf.int32)

  fits = tf.reduce_all(tf.logical_and(tried >= 1, tried <= sizes[:, tf.newaxis]), 2)
  first_fitting = tf.argmax(tf.cast(fits, tf.int32), 1, output_type=tf.int32)
  first = tf.stack([tf.range(tf.shape(sizes)[0]), first_fitting], 1)
  chosen = tf.gather_nd(tried, first)
  room = sizes - chosen
  # The largest draw is 1 - 2^-24: in float32 no product with it is rounded up to the other factor.
  shares = tf.stack([tf.gather_nd(y, first), tf.gather_nd(x, first)], 1)
  corners = tf.cast(shares * tf.cast(room + 1, tf.float32), tf.int32)

  shorter = tf.reduce_min(sizes, 1, keepdims=True)
  middle = tf.concat([(sizes - shorter) // 2, shorter, shorter], 1)
  return tf.where(tf.gather_nd(fits, first), tf.concat([corners, chosen], 1), middle)


def mirror(image: Any, draw: Any) -> Any:
  """Returns an image `[height, width, channels]`, mirrored if `draw`, of [0, 1), is below a half.
  """
  return tf.cond(draw < 0.5, lambda: tf.reverse(image, [1]), lambda: image)
