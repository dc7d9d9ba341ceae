"""Prints how far N towers of each repository are from one.

  python -m tests.gallery.field [repository ...]

FIELD_FOLDER names the folder that has the repositories; one that it does not have is left out.
"""

import sys

from tests.gallery.field.programs import REPOSITORIES
from tests.gallery.field.training import floor, train
from tests.gallery.table import print_table
from tests.gallery.training import largest_difference


def print_row(name: str) -> None:
  """Trains a repository on 1, 2 and 3 towers, and prints what differs."""
  repository = REPOSITORIES[name]
  one = train(name, 1)
  furthest = max(largest_difference(one, train(name, num_towers)) for num_towers in (2, 3))
  print(f"| {repository.address}, {repository.lines} | {repository.needs} | {furthest:.1g}, "
        f"{floor(name, one):.1g} |", flush=True)


if __name__ == '__main__':
  print_table(
      sys.argv[1:] or list(REPOSITORIES), REPOSITORIES,
      '| Repository, lines of glue | What it needs | Towers, last bits |', print_row)
