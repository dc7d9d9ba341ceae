"""Prints how far N towers of each program are from one.  python -m tests.gallery [program ...]

A program whose package is not installed is left out; `.ci/gallery table` installs all.
"""

import sys

from tests.gallery.programs import PROGRAMS
from tests.gallery.table import print_table
from tests.gallery.training import check, largest_difference, train


def print_row(name: str) -> None:
  """Trains a program on 1, 2 and 3 towers, called and cloned, and prints what differs."""
  program = PROGRAMS[name]
  one = train(name, 1, 'reuse')
  furthest = max(largest_difference(one, train(name, num_towers, kind))
                 for num_towers in (2, 3) for kind in ('reuse', 'clone'))
  report = check(name)
  verdict = 'agrees' if report.agrees else f"names {program.cause or report.causes}"
  print(f"| {program.title} | {program.version} | {', '.join(program.targets)} | 1, 2, 3 | "
        f"{furthest:.2g} | {verdict} | {program.changed} |", flush=True)


if __name__ == '__main__':
  print_table(
      sys.argv[1:] or [name for name, program in PROGRAMS.items() if program.runs_here], PROGRAMS,
      '| Program | Package | Targets | Towers | Largest difference | `towers.check` | '
      'Lines changed |', print_row)
