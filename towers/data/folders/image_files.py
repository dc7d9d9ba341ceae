"""Image files: JPEGs and PNGs, each a file of its own, by index."""

from typing import Any, List, Sequence, Tuple

import numpy as np

from towers.base.files import open_regular
from towers.data.bad_records import BadRecordError

EXTENSIONS = ('.jpg', '.jpeg', '.png')


class ImageFiles:
  """The images of one split, by index."""

  def __init__(self, paths: Sequence[str], labels: Sequence[int]):
    """Reads nothing yet."""
    self.paths = list(paths)
    self.labels = np.array(labels, np.int32)

  def read(self, indices: Sequence[int]) -> List[Any]:
    """Returns for each index the file's bytes and its label, or a BadRecordError."""
    results: List[Any] = []
    for index in indices:
      try:
        with open_regular(self.paths[index]) as file:
          results.append((file.read(), self.labels[index]))
      except OSError as error:
        results.append(BadRecordError(f'cannot be read: {error.strerror}'))
    return results

  def place(self, index: int) -> Tuple[str, int, int]:
    """Returns the file, the offset 0 and the record 0: a file is one record."""
    return self.paths[index], 0, 0
