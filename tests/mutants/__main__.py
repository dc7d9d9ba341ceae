"""Puts one fault at a time into a copy of the tree, and runs the fast tests that must see it.

  python -m tests.mutants --jobs=2                       # all of them
  python -m tests.mutants --only=towers/input/plan       # those whose file or words contain this
  python -m tests.mutants --write=docs/mutants.md        # also updates their rows in the page

First all these tests must pass without a fault. A fault that survives either needs a new test, or
is no fault at all: then its entry says why. The working tree stays unchanged. Exit code 1 if a
fault survives.
"""

import argparse
import os
import re
import sys

from tests import ROOT
from tests.mutants.faults import MUTANTS
from tests.mutants.page import format_table, update_page
from tests.mutants.runner import BaselineError, run_mutants


def main(arguments):
  """Runs the command line; returns the exit code."""
  parser = argparse.ArgumentParser(prog='python -m tests.mutants',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('--only', default='', metavar='PATTERN',
                      help='a regular expression, searched in file, fault and words')
  parser.add_argument('--jobs', type=int, default=1, help='mutants at a time')
  parser.add_argument('--seconds', type=float, default=180.0,
                      help='after which the tests of a mutant count as hanging')
  parser.add_argument('--target', default=sys.executable, metavar='PYTHON',
                      help='the python that runs the tests')
  parser.add_argument('--write', metavar='FILE', help='a page that ends with the table')
  options = parser.parse_args(arguments)

  def text_of(mutant):
    return ' '.join([mutant.path, mutant.old, mutant.new, mutant.breaks])

  mutants = [mutant for mutant in MUTANTS if re.search(options.only, text_of(mutant))]
  if not mutants:
    parser.error(f'--only={options.only} matches no mutant.')
  done = []

  def log(text):
    print(text, file=sys.stderr, flush=True)

  def note(result):
    done.append(result)
    mutant = result.mutant
    log(f'{len(done)} of {len(mutants)}: {result.verdict} after {result.seconds:.0f} s: '
        f'{mutant.path}: {mutant.breaks}')
    if not result.is_as_it_should_be:
      log(result.output)

  log(f'{len(mutants)} mutants; first their tests without any')
  try:
    results = run_mutants(mutants, root=ROOT, python=os.path.abspath(options.target),
                          jobs=options.jobs, seconds=options.seconds, note=note)
  except BaselineError as error:
    log(f'tests.mutants: {error}')
    return 2
  print(format_table(results))
  if options.write:
    update_page(options.write, results, MUTANTS)
  return 0 if all(result.is_as_it_should_be for result in results) else 1


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
