"""Augment: where to crop, and what to mirror, from numbers that were drawn before (see `draws`).

  none       the middle of the image
  cifar      padded by 4 zeros on each side, cropped at random, mirrored half of the time (He et al. 2016, section 4.2)
  imagenet   a random part of 8 to 100 % of the area and an aspect of 3/4 to 4/3, resized, mirrored half of the time
             (Szegedy et al. 2015, "Going deeper with convolutions", section 6)

Validation always takes the middle.
"""

import math
from typing import Any

from data.draws import draw
from data.examples import Examples
from usage_error import UsageError

KINDS = ('none', 'cifar', 'imagenet')

_PADDING = 4
_TRIES = 10
_MIN_AREA, _MAX_ASPECT = 0.08, 4 / 3
# Of the shorter side: 224 of 256, as most published ImageNet accuracies were measured.
_CENTRAL_SHARE = 0.875

# How many numbers each kind draws for an example.
NUM_DRAWS = {'none': 0, 'cifar': 3, 'imagenet': 4 * _TRIES + 1}


def augment_arrays(examples: Examples, *, kind: str, seed: int) -> Examples:
  """Returns a split of arrays (images, labels), augmented.

  Args:
    examples: of `from_arrays`, so that elements are the numbers of examples.
    kind: 'none' or 'cifar'.
    seed: of the draws.

  Raises:
    UsageError: a kind that needs encoded images.
  """
  if kind == 'none':
    return examples
  if kind != 'cifar':
    raise UsageError('{}: augment={} crops images of any size before they are resized, and these arrays have one size '
                     'already: use augment=cifar, which shifts and mirrors them.'.format(examples.name, kind))
  gather = examples.parse_batch
  assert gather is not None, 'arrays are gathered batch by batch'

  def parse_batch(numbers, *tensors, epoch):
    images, labels = gather(numbers, *tensors)
    return pad_crop_mirror(images, draw(numbers, epoch=epoch, seed=seed, count=NUM_DRAWS[kind])), labels

  return examples._replace(parse_batch=parse_batch, takes_epoch=True)


def choose_central_window(size: Any, image_size: int) -> Any:
  """Returns the square in the middle, as `[y, x, height, width]` int32.

  It is 0.875 of the shorter side, but no smaller than `image_size` if the image has so many pixels: an image of exactly
  that size is taken as it is.

  Args:
    size: height and width, int32 `[2]`.
    image_size: in pixels, what it will be resized to.
  """
  from tensorflow_v1 import tf
  shorter = tf.reduce_min(size)
  side = tf.cast(tf.round(tf.cast(shorter, tf.float32) * _CENTRAL_SHARE), tf.int32)
  side = tf.maximum(tf.maximum(side, tf.minimum(shorter, image_size)), 1)
  return tf.concat([(size - side) // 2, [side, side]], 0)


def choose_random_window(size: Any, draws: Any) -> Any:
  """Returns a random part of the image, as `[y, x, height, width]` int32.

  Ten parts are tried; if none of them fits, as in very long images, it is the largest square in the middle.

  Args:
    size: height and width, int32 `[2]`.
    draws: uniform in [0, 1), float32 `[at least 40]`.
  """
  from tensorflow_v1 import tf
  area, aspect, y, x = tf.unstack(tf.reshape(draws[:4 * _TRIES], [4, _TRIES]))
  height, width = tf.unstack(tf.cast(size, tf.float32))
  area = height * width * (_MIN_AREA + (1 - _MIN_AREA) * area)
  aspect = tf.exp((2 * aspect - 1) * math.log(_MAX_ASPECT))
  sizes = tf.cast(tf.round(tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], 1)), tf.int32)
  fits = tf.reduce_all(tf.logical_and(sizes >= 1, sizes <= size), 1)
  chosen = tf.argmax(tf.cast(fits, tf.int32), output_type=tf.int32)
  room = tf.cast(size - sizes[chosen] + 1, tf.float32)
  corner = tf.cast(tf.stack([y[chosen], x[chosen]]) * room, tf.int32)
  # A product just below the room may be rounded up to it.
  corner = tf.minimum(corner, size - sizes[chosen])
  shorter = tf.reduce_min(size)
  middle = tf.concat([(size - shorter) // 2, [shorter, shorter]], 0)
  return tf.where(fits[chosen], tf.concat([corner, sizes[chosen]], 0), middle)


def mirror(image: Any, number: Any) -> Any:
  """Returns an image `[height, width, channels]`, mirrored if `number`, drawn from [0, 1), is below a half."""
  from tensorflow_v1 import tf
  return tf.cond(number < 0.5, lambda: tf.reverse(image, [1]), lambda: image)


def pad_crop_mirror(images: Any, draws: Any) -> Any:
  """Returns images of the same shape and dtype, each shifted by up to 4 pixels into zeros, half of them mirrored.

  Args:
    images: `[batch, height, width, channels]`, of which height, width and channels are known.
    draws: uniform in [0, 1), float32 `[batch, 3]`.
  """
  from tensorflow_v1 import tf
  height, width, channels = images.shape.as_list()[1:]
  padded = tf.pad(images, [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]])
  padded_height, padded_width = height + 2 * _PADDING, width + 2 * _PADDING
  shifts = tf.cast(draws[:, :2] * (2 * _PADDING + 1), tf.int32)
  columns = tf.range(width)[tf.newaxis]
  columns = tf.where(tf.tile(draws[:, 2:] < 0.5, [1, width]), tf.tile(width - 1 - columns, [tf.shape(draws)[0], 1]),
                     tf.tile(columns, [tf.shape(draws)[0], 1])) + shifts[:, 1:]
  rows = tf.range(height)[tf.newaxis] + shifts[:, :1]
  # One index for each pixel of the whole batch: a gather of rows of `channels`.
  rows += tf.range(tf.shape(images)[0])[:, tf.newaxis] * padded_height
  pixels = rows[:, :, tf.newaxis] * padded_width + columns[:, tf.newaxis, :]
  return tf.gather(tf.reshape(padded, [-1, channels]), pixels)
