"""Colour Fashion: a CIFAR-shaped set, 32x32x3 and 10 classes, made of Fashion-MNIST. It is not
CIFAR-10.

Every garment is tinted in a colour of its own and laid anywhere on a background of coloured clouds,
so that neither colour nor place tells its class. What is drawn depends on the seed and the
example's number alone.
"""

import numpy as np

SIZE = 32


def colour(images: np.ndarray, *, seed: int = 0) -> np.ndarray:
  """Returns `[n, 32, 32, 3]` uint8 of grey garments, `[n, 28, 28, 1]` uint8."""
  random = np.random.RandomState(seed)
  num_images = len(images)
  tints = random.uniform(0.3, 1.0, size=(num_images, 1, 1, 3))
  offsets = random.randint(0, SIZE - images.shape[1] + 1, size=(num_images, 2))
  clouds = _clouds(num_images, random)
  coloured = np.empty((num_images, SIZE, SIZE, 3), np.uint8)
  for number, (top, left) in enumerate(offsets):
    garment = np.zeros((SIZE, SIZE, 1))
    garment[top:top + images.shape[1], left:left + images.shape[2]] = images[number] / 255
    # Grey is both: how bright a garment is, and where it covers what is behind.
    cover = np.minimum(1, 4 * garment)
    coloured[number] = 255 * (cover * garment * tints[number] + (1 - cover) * clouds[number])
  return coloured


def _clouds(num_images, random):
  """Returns backgrounds, `[n, 32, 32, 3]` in [0, 1]: colours of 5 x 5 points, with linear passages
  between.
  """
  points = random.uniform(0.0, 0.8, size=(num_images, 5, 5, 3))
  positions = np.linspace(0, 3.999, SIZE)
  before = positions.astype(int)
  share = (positions - before)[:, None, None]
  rows = points[:, before] * (1 - share) + points[:, before + 1] * share
  share = share[:, 0]
  return rows[:, :, before] * (1 - share) + rows[:, :, before + 1] * share
