"""Puts one fault at a time into a copy of the tree, and runs the fast tests that must see it.

  python -m tests.mutants --jobs=2                       # all of them
  python -m tests.mutants --only=towers/plan             # those whose file or words hold this
  python -m tests.mutants --write=docs/mutants.md        # and writes their rows into the page

First all these tests must pass without a fault. A fault that survives is either one that a new test
must see, or no fault at all: then its entry says why. The working tree stays as it is. Exit code 1
if a fault survives.
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
                                   description=__doc__.split('\n')[0])
  parser.add_argument('--only', default='', metavar='PATTERN',
                      help='a regular expression, searched in file, fault and words')
  parser.add_argument('--jobs', type=int, default=1, help='mutants at a time')
  parser.add_argument('--seconds', type=float, default=180.0,
                      help='after which the tests of a mutant count as hanging')
  parser.add_argument('--target', default=sys.executable, metavar='PYTHON',
                      help='the python that runs the tests')
  parser.add_argument('--write', metavar='FILE', help='a page that ends with the table')
  options = parser.parse_args(arguments)
  mutants = [mutant for mutant in MUTANTS if re.search(
      options.only, ' '.join([mutant.path, mutant.old, mutant.new, mutant.breaks]))]
  if not mutants:
    parser.error(f'--only={options.only}: no mutant has this.')
  done = []

  def tell(text):
    print(text, file=sys.stderr, flush=True)

  def note(result):
    done.append(result)
    mutant = result.mutant
    tell(f'{len(done)} of {len(mutants)}: {result.verdict} after {result.seconds:.0f} s: '
         f'{mutant.path}: {mutant.breaks}')
    if not result.is_as_it_should_be:
      tell(result.output)

  tell(f'{len(mutants)} mutants; first their tests without any')
  try:
    results = run_mutants(mutants, root=ROOT, python=os.path.abspath(options.target),
                          jobs=options.jobs, seconds=options.seconds, note=note)
  except BaselineError as error:
    tell(f'tests.mutants: {error}')
    return 2
  print(format_table(results))
  if options.write:
    update_page(options.write, results, MUTANTS)
  return 0 if all(result.is_as_it_should_be for result in results) else 1


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
