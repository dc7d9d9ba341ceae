"""Writes a page that shows the reports of several runs side by side.

  python -m towers.training.reporting first.html second.html --output=both.html
"""

import argparse
import os
import sys
from typing import Optional, Sequence

from towers.base.files import write_whole
from towers.base.output import open_closed_streams, write_line
from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers.training.reporting.page import format_page, read_runs


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Runs a command line; returns the exit code."""
  parser = argparse.ArgumentParser(description='Shows runs side by side.')
  parser.add_argument('pages', nargs='+', help='pages that --report wrote')
  parser.add_argument('--output', required=True, help='page to write')
  open_closed_streams()
  given = parser.parse_args(arguments)
  try:
    _compare(given.pages, given.output)
  except UsageError as error:
    write_line(f'towers.training.reporting: error: {error}', sys.stderr)
    return 2
  return 0


def _compare(pages, output):
  for path in pages:
    check_local_path('pages', path)
  check_local_path('output', output)

  names, runs = [], []
  for path in pages:
    for run in read_runs(path):
      names.append(os.path.splitext(os.path.basename(path))[0])
      runs.append(run)
  try:
    write_whole(output, format_page(names, runs).encode())
  except OSError as error:
    raise UsageError(f'{output} cannot be written: {error.strerror}') from None
  write_line(f'{len(runs)} runs in {output}')


if __name__ == '__main__':
  sys.exit(main())
