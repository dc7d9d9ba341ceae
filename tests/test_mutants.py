"""The list of faults fits this tree, its tests are fast, and the runner finds survivors."""

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT
from tests.conftest import COLLECTED
from tests.mutants.faults import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.page import HEADER, format_row, format_table, row_start, update_page
from tests.mutants.runner import BaselineError, Result, run_mutants

CODE = """import time


def add(left, right):
  return left + right


def count(numbers):
  while numbers and numbers[-1] is None:
    numbers = numbers[:-1]
  return len(numbers)
"""
TESTS = """from code_of_two import add, count


def test_add():
  assert add(2, 3) == 5


def test_add_nothing():
  assert add(2, 0) == 2


def test_count():
  assert count([1, None]) == 1


def test_wrong():
  assert add(2, 2) == 5
"""


def read(path):
  with open(os.path.join(ROOT, path), encoding='utf-8') as file:
    return file.read()


def test_every_fault_stands_in_its_file_once_and_is_told_once():
  assert len(MUTANTS) >= 80
  assert len({(mutant.path, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
  for mutant in MUTANTS:
    assert read(mutant.path).count(mutant.old) == 1, (
        f'{mutant.path} has changed: {mutant.old}: write its entry in tests/mutants/faults anew, '
        'and try it: python -m tests.mutants --only=PATTERN --write=docs/mutants.md')
    assert mutant.new != mutant.old and mutant.breaks and mutant.tests


def collect_fast_tests(collected, paths):
  """Returns the names of the fast tests in some files, with and without their parameters."""
  names = [item.nodeid for item in collected if not item.get_closest_marker('slow')]
  if not paths <= {name.split('::')[0] for name in names}:  # These tests were started alone.
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '--collect-only', '-q', '--whole_grids', '-m', 'not slow',
         '-p', 'no:cacheprovider', '-p', 'no:xdist', *paths],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:]
    names = done.stdout.splitlines()
  return {*names, *(name.split('[')[0] for name in names)}


def test_every_named_test_is_there_and_fast(request):
  tests = {test for mutant in MUTANTS for test in mutant.tests}
  assert not tests - collect_fast_tests(
      request.config.stash[COLLECTED], {test.split('::')[0] for test in tests})


def test_every_fault_has_its_row_in_the_docs():
  laws, table = read('docs/mutants.md').split('\n'.join(HEADER))
  rows = table.strip().splitlines()
  assert len(rows) == len(MUTANTS)
  for row, mutant in zip(rows, MUTANTS):
    verdict = 'equivalent' if mutant.equivalent else 'killed'
    assert row.startswith(f'{row_start(mutant)} | {verdict}'), row
  for path, name in re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', laws):
    assert f'def {name}(' in read(path), f'{path}::{name}'


@pytest.fixture
def tree(tmp_path):
  (tmp_path / 'code_of_two.py').write_text(CODE)
  (tmp_path / 'test_two.py').write_text(TESTS)
  return tmp_path


def mutant_of(old, new, *tests, equivalent=''):
  nodes = tuple(f'test_two.py::{test}' for test in tests)
  return Mutant('code_of_two.py', old, new, 'what is wrong', nodes, equivalent)


@pytest.mark.slow
def test_the_runner_tells_what_is_killed_hangs_survives_and_is_no_fault(tree):
  mutants = [mutant_of('left + right', 'left - right', 'test_add'),
             mutant_of('left + right', 'left - 1 * right', 'test_add_nothing'),
             mutant_of('left + right', 'right + left', 'test_add', equivalent='sums commute'),
             mutant_of('left + right', 'left * right', 'test_add', equivalent='it is not'),
             mutant_of('numbers = numbers[:-1]', 'numbers = numbers', 'test_count'),
             mutant_of('return left + right', 'return left +', 'test_add')]
  noted = []
  results = run_mutants(mutants, root=str(tree), python=sys.executable, jobs=3, seconds=10,
                        note=noted.append)
  assert [result.verdict for result in results] == [
      'killed', 'survived', 'equivalent', 'killed', 'killed (hangs)', 'no test ran']
  assert [result.is_as_it_should_be for result in results] == [
      True, False, True, False, True, False]
  assert sorted(map(id, noted)) == sorted(map(id, results))
  assert (tree / 'code_of_two.py').read_text() == CODE
  table = format_table(results)
  assert ('| what is wrong | `code_of_two.py` | `left + right` | `left - right` | killed '
          '| `test_two.py::test_add` |') in table
  assert '| equivalent | sums commute |' in table
  page = tree / 'page.md'
  others = [format_row(Result(mutant, 'killed', 0.0, '')) for mutant in (
      mutants[2], mutant_of('gone', 'else', 'test_add'))]
  page.write_text('\n'.join(['# Faults', '', *HEADER, *others, '']))
  update_page(str(page), results[:2] + results[3:], mutants)
  rows = table.splitlines()
  rows[len(HEADER) + 2] = others[0]
  assert page.read_text().splitlines() == ['# Faults', '', *rows]
  update_page(str(page), results, mutants)
  assert page.read_text() == f'# Faults\n\n{table}\n'


def test_tests_that_fail_by_themselves_or_are_not_there_are_told_first(tree):
  for test in ('test_wrong', 'test_of_nothing'):
    with pytest.raises(BaselineError, match=test):
      run_mutants([mutant_of('left + right', 'left - right', test)], root=str(tree),
                  python=sys.executable)


def test_text_that_is_not_there_once_is_told(tree):
  for old in ('nothing', 'numbers'):
    with pytest.raises(ValueError, match=f'and not once: {old}'):
      mutant_of(old, 'else', 'test_add').apply(str(tree))
  assert (tree / 'code_of_two.py').read_text() == CODE
