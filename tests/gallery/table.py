"""Prints a table of the gallery, a row for each name that the command line gives."""

import sys
from typing import Callable, Collection, Sequence

import pytest


def print_table(names: Sequence[str], known: Collection[str], header: str,
                print_row: Callable[[str], None]) -> None:
  """Prints a header and the rows of names; says on stderr what is not installed."""
  unknown = [name for name in names if name not in known]
  if unknown:
    sys.exit(f"{unknown[0]} is not in the gallery: choose of {', '.join(known)}.")
  print(f"{header}\n|{'---|' * (header.count('|') - 1)}")
  for name in names:
    try:
      print_row(name)
    except pytest.skip.Exception as skipped:
      print(f'{name}: {skipped}', file=sys.stderr)
