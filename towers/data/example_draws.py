"""Draws: random numbers that belong to an example, whatever the order of the examples.

Each is a function of (seed, epoch, example index, position) alone, so that augmentation is the
same in every input mode, for any number of towers and threads, and after a resume. The function is
SplitMix64's, on int64 tensors: a whole batch takes a dozen ops.
"""

import math
from typing import Any, Sequence

import numpy as np

from towers.base.later import tf
from towers.base.splitmix import GOLDEN, as_int64, mix, shift_right
from towers.base.usage_error import UsageError

_FRACTION_BITS = 24  # What a float32 holds exactly.


def draw(indices: Any, *, epoch: Any, seed: int, count: int, first: int = 0) -> Any:
  """Returns float32 `[examples, count]`, each uniform in [0, 1), from the position `first` on.

  Indices of the examples are int64 `[examples]`; the epoch is that of all, or of each.
  """
  state = mix(mix(as_int64(seed) + epoch * GOLDEN, tf.bitwise) + indices, tf.bitwise)
  positions = tf.range(first + 1, first + count + 1, dtype=tf.int64) * GOLDEN
  mixed = mix(state[:, tf.newaxis] + positions, tf.bitwise)
  fractions = shift_right(mixed, 64 - _FRACTION_BITS, tf.bitwise)
  return tf.cast(fractions, tf.float32) * 2.0 ** -_FRACTION_BITS


def take_windows(images: Any, y: Any, x: Any, size: Sequence[int], is_mirrored: Any = None) -> Any:
  """Returns a window of each of `[batch, height, width, channels]`, by one gather of pixels.

  All have one size, height and width, and begin at `y` and `x`, int32 `[batch]`. Those that are
  mirrored, bool `[batch]`, are so from left to right; None for none. The channels are known.
  """
  height, width = size
  num_images, full_height, full_width, _ = tf.unstack(tf.shape(images))
  columns = tf.range(width)
  if is_mirrored is not None:
    columns += tf.cast(is_mirrored, tf.int32)[:, tf.newaxis] * (width - 1 - 2 * columns)
  rows = tf.range(num_images)[:, tf.newaxis] * full_height + y[:, tf.newaxis] + tf.range(height)
  pixels = (rows * full_width)[:, :, tf.newaxis] + (x[:, tf.newaxis] + columns)[:, tf.newaxis]
  return tf.gather(tf.reshape(images, [-1, images.shape.as_list()[-1]]), pixels)


class Draws:
  """The random numbers of an example, or of each example of a batch, one call after the other.

  Of a batch every result has the batch as its first axis.
  """

  def __init__(self, indices: Any, *, epoch: Any, seed: int):
    """Draws for examples of these indices, int64 `[examples]`, or a scalar for one example."""
    self._indices, self._epoch, self._seed = indices, epoch, seed
    self._is_one = indices.shape.ndims == 0
    self._num_drawn = 0

  def uniform(self, shape: Sequence[int] = (), low: float = 0.0, high: float = 1.0) -> Any:
    """Returns float32 of `shape` in [low, high)."""
    if np.ndim(shape) != 1:
      raise UsageError(f'A function of towers.augmented draws of the shape {shape!r}: give sizes, '
                       'as [2], and bounds by name, as draws.uniform(low=0.8, high=1.2).')
    count = int(np.prod(shape, dtype=np.int64))
    indices = self._indices[tf.newaxis] if self._is_one else self._indices
    drawn = draw(indices, epoch=self._epoch, seed=self._seed, first=self._num_drawn, count=count)
    self._num_drawn += count
    drawn = tf.reshape(drawn, list(shape) if self._is_one else [-1, *shape])
    return drawn if (low, high) == (0.0, 1.0) else low + drawn * (high - low)

  def normal(self, shape: Sequence[int] = (), mean: float = 0.0, stddev: float = 1.0) -> Any:
    """Returns float32 of `shape` (Box and Muller 1958)."""
    # Of 1 - u, which is never 0.
    radius = tf.sqrt(-2.0 * tf.math.log1p(-self.uniform(shape)))
    return mean + stddev * radius * tf.cos(2.0 * math.pi * self.uniform(shape))

  def integer(self, low: int, high: Any, shape: Sequence[int] = ()) -> Any:
    """Returns int32 of `shape` in [low, high); `high` may be a tensor."""
    # In float32 no product of the largest draw is rounded up to the other factor.
    return low + tf.cast(self.uniform(shape) * tf.cast(high - low, tf.float32), tf.int32)

  def crop(self, image: Any, size: Sequence[int]) -> Any:
    """Returns a random part of `size`, height and width, of `[height, width, channels]`."""
    if not isinstance(size, (list, tuple, np.ndarray)) or len(size) not in (2, 3):
      raise UsageError(f'draws.crop got the size {size!r}: give two numbers, as '
                       'draws.crop(image, [32, 32]).')
    height, width = size[:2]  # As tf.image.random_crop, whose size has the channels too.
    axis = 0 if self._is_one else 1
    full = tf.shape(image)[axis:axis + 2]
    known = (image.shape.as_list() if image.shape.ndims else [None] * 3)[axis:axis + 2]
    told = (f'draws.crop takes {[height, width]}, height and width, from an image of {{}}: give a '
            'smaller size, or make images large enough before, as by tf.pad.')
    if any(size is not None and size < part for size, part in zip(known, (height, width))):
      raise UsageError(told.format(known))
    with tf.control_dependencies([] if None not in known else [tf.Assert(
        tf.reduce_all(full >= [height, width]), [tf.strings.format(told, full)])]):
      y, x = tf.unstack(self.integer(0, full - [height, width] + 1, [2]), axis=-1)
    if self._is_one:
      part = tf.slice(image, [y, x, 0], [height, width, -1])
      part.set_shape([height, width, image.shape[-1]])
      return part
    return take_windows(image, y, x, size)

  def flip(self, image: Any) -> Any:
    """Returns `[height, width, channels]` mirrored from left to right, half of the time."""
    is_mirrored = self.uniform() < 0.5
    if self._is_one:
      return tf.cond(is_mirrored, lambda: tf.reverse(image, [1]), lambda: tf.identity(image))
    return tf.where(is_mirrored, tf.reverse(image, [2]), image)
