"""The page of mutants: results as a Markdown table, below the text that explains it."""

from typing import List, Sequence

from tests.mutants.mutant import Mutant
from tests.mutants.runner import Result

HEADER = ['| What is wrong | File | Instead of | stands | Result | Seen by |',
          '|---|---|---|---|---|---|']


def format_row(result: Result) -> str:
  """Returns the row of a result."""
  seen_by = ', '.join(map(_code, result.mutant.tests))
  if result.verdict == 'equivalent':
    seen_by = result.mutant.equivalent
  return f'{row_start(result.mutant)} | {result.verdict} | {seen_by} |'


def row_start(mutant: Mutant) -> str:
  """Returns the first cells of a mutant's row, which identify the mutant."""
  cells = [mutant.breaks, _code(mutant.path), _code(mutant.old), _code(mutant.new)]
  return '| ' + ' | '.join(cells)


def format_table(results: Sequence[Result]) -> str:
  """Returns a table with a row for each result."""
  return '\n'.join(HEADER + list(map(format_row, results)))


def update_page(path: str, results: Sequence[Result], mutants: Sequence[Mutant]) -> None:
  """Updates the table at the end of a page; rows of mutants without a result stay.

  Args:
    path: the page.
    results: of some mutants.
    mutants: all mutants, in the order of the rows.
  """
  with open(path, encoding='utf-8') as file:
    text, table = file.read().split('\n'.join(HEADER) + '\n')
  rows = table.splitlines() + list(map(format_row, results))
  kept: List[str] = []
  for mutant in mutants:
    # The last is the newest.
    kept += [row for row in rows if row.startswith(row_start(mutant) + ' | ')][-1:]
  with open(path, 'w', encoding='utf-8') as file:
    file.write('\n'.join([text + HEADER[0]] + HEADER[1:] + kept) + '\n')


def _code(text):
  """Returns text as code for a cell, on one line and with escaped bars."""
  return '`' + ' '.join(text.split()).replace('|', '\\|') + '`'
