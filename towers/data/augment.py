"""Augment: where to crop and what to mirror, from an example's own random numbers (see `draws`).

  none       the middle of the image
  cifar      padded by 4 zeros on each side, cropped at random, mirrored half of the time
             (He et al. 2016, section 4.2)
  imagenet   a random part of 8 to 100 % of the area and an aspect of 3/4 to 4/3, resized, mirrored
             half of the time (Szegedy et al. 2015, "Going deeper with convolutions", section 6)

Validation always takes the middle.
"""

import math
from typing import Any

from towers.base.usage_error import UsageError
from towers.data.augmented import augmented
from towers.data.examples import Examples

KINDS = ('none', 'cifar', 'imagenet')

_PADDING = 4
_TRIES = 10
_MIN_AREA, _MAX_ASPECT = 0.08, 4 / 3
# Of the shorter side: 224 of 256, as most published ImageNet accuracies were measured.
_CENTRAL_SHARE = 0.875

# How many random numbers each kind draws for an example.
NUM_DRAWS = {'none': 0, 'cifar': 3, 'imagenet': 4 * _TRIES + 1}


def augment_arrays(examples: Examples, *, kind: str, seed: int) -> Examples:
  """Returns a split of arrays (images, labels), augmented.

  Raises:
    UsageError: a kind that needs encoded images.
  """
  if kind == 'none':
    return examples
  if kind != 'cifar':
    raise UsageError(f'{examples.name}: augment={kind} crops images of any size before they are '
                     'resized, and these arrays have one size already: use augment=cifar, which '
                     'shifts and mirrors them.')

  def augment(batch, draws):
    images, labels = batch
    return pad_crop_mirror(images, draws.uniform([NUM_DRAWS[kind]])), labels

  return augmented(examples, augment, seed=seed, of_batches=True)


def choose_central_windows(sizes: Any, image_size: int) -> Any:
  """Returns the squares in the middle, each as `[y, x, height, width]`: int32 `[images, 4]`.

  They are 0.875 of the shorter side, but no smaller than `image_size`, what they are resized to,
  if the image has so many pixels. Sizes are heights and widths, int32 `[images, 2]`.
  """
  from tensorflow_v1 import tf
  shorter = tf.reduce_min(sizes, 1, keepdims=True)
  sides = tf.cast(tf.round(tf.cast(shorter, tf.float32) * _CENTRAL_SHARE), tf.int32)
  sides = tf.maximum(tf.maximum(sides, tf.minimum(shorter, image_size)), 1)
  return tf.concat([(sizes - sides) // 2, sides, sides], 1)


def choose_random_windows(sizes: Any, draws: Any) -> Any:
  """Returns a random part of each image, as `[y, x, height, width]`: int32 `[images, 4]`.

  It is the first of ten random parts that fits, or else, as in very long images, the largest square
  in the middle.

  Args:
    sizes: heights and widths, int32 `[images, 2]`.
    draws: uniform in [0, 1), float32 `[images, at least 40]`.
  """
  from tensorflow_v1 import tf
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
  from tensorflow_v1 import tf
  return tf.cond(draw < 0.5, lambda: tf.reverse(image, [1]), lambda: image)


def pad_crop_mirror(images: Any, draws: Any) -> Any:
  """Returns the images, each shifted by up to 4 pixels into zeros, half of them mirrored.

  Args:
    images: `[batch, height, width, channels]` of any dtype; all but the batch is known.
    draws: uniform in [0, 1), float32 `[batch, 3]`.
  """
  from tensorflow_v1 import tf
  height, width, channels = images.shape.as_list()[1:]
  padded = tf.pad(images, [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]])
  padded_height, padded_width = height + 2 * _PADDING, width + 2 * _PADDING
  shifts = tf.cast(draws[:, :2] * (2 * _PADDING + 1), tf.int32)

  columns = tf.range(width)[tf.newaxis]
  columns = tf.where(tf.tile(draws[:, 2:] < 0.5, [1, width]),
                     tf.tile(width - 1 - columns, [tf.shape(draws)[0], 1]),
                     tf.tile(columns, [tf.shape(draws)[0], 1]))
  columns += shifts[:, 1:]
  rows = tf.range(height)[tf.newaxis] + shifts[:, :1]
  # One index for each pixel of the whole batch: a gather of rows of `channels`.
  rows += tf.range(tf.shape(images)[0])[:, tf.newaxis] * padded_height
  pixels = rows[:, :, tf.newaxis] * padded_width + columns[:, tf.newaxis, :]
  return tf.gather(tf.reshape(padded, [-1, channels]), pixels)
