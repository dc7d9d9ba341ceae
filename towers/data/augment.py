"""Augment: images of arrays, changed by an example's own random numbers (see `example_draws`).

  none       as they are
  cifar      padded by 4 zeros on each side, cropped at random, mirrored half of the time
             (He et al. 2016, section 4.2)
  imagenet   of encoded images alone, which towers-data reads

Validation always takes images as they are, or their middle.
"""

from typing import Any

from towers.base.later import tf
from towers.base.usage_error import UsageError
from towers.data.augmented import augmented
from towers.data.example_draws import take_windows
from towers.data.examples import Examples

KINDS = ('none', 'cifar', 'imagenet')

_PADDING = 4


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
    return pad_crop_mirror(images, draws.uniform([3])), labels

  return augmented(examples, augment, seed=seed, of_batches=True)


def pad_crop_mirror(images: Any, draws: Any) -> Any:
  """Returns the images, each shifted by up to 4 pixels into zeros, half of them mirrored.

  Args:
    images: `[batch, height, width, channels]` of any dtype; all but the batch is known.
    draws: uniform in [0, 1), float32 `[batch, 3]`.
  """
  padded = tf.pad(images, [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]])
  shifts = tf.cast(draws[:, :2] * (2 * _PADDING + 1), tf.int32)
  return take_windows(padded, shifts[:, 0], shifts[:, 1], images.shape.as_list()[1:3],
                      is_mirrored=draws[:, 2] < 0.5)
