"""Colour Fashion: Fashion-MNIST made CIFAR-shaped, 32x32x3 with 10 classes. It is not CIFAR-10.

Each garment gets a random tint and a random place on a background of coloured clouds, so neither
colour nor place gives its class away. All draws depend only on the seed and the example's index.
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
  for index, (top, left) in enumerate(offsets):
    garment = np.zeros((SIZE, SIZE, 1))
    garment[top:top + images.shape[1], left:left + images.shape[2]] = images[index] / 255
    # Grey is both the garment's brightness and its opacity.
    cover = np.minimum(1, 4 * garment)
    coloured[index] = 255 * (cover * garment * tints[index] + (1 - cover) * clouds[index])
  return coloured


def _clouds(num_images, random):
  """Returns backgrounds `[n, 32, 32, 3]` in [0, 1]: 5 x 5 random colours, interpolated linearly."""
  points = random.uniform(0.0, 0.8, size=(num_images, 5, 5, 3))
  positions = np.linspace(0, 3.999, SIZE)
  before = positions.astype(int)
  share = (positions - before)[:, None, None]
  rows = points[:, before] * (1 - share) + points[:, before + 1] * share
  share = share[:, 0]
  return rows[:, :, before] * (1 - share) + rows[:, :, before + 1] * share
