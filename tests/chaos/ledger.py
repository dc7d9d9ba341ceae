"""Faults by kind: tried, survived, lost."""

import collections
from typing import Counter, List


class Ledger:
  """Counts faults; those of a chain survive or are lost with it."""

  def __init__(self) -> None:
    self.tried: Counter[str] = collections.Counter()
    self.lost: Counter[str] = collections.Counter()
    self._open: List[str] = []

  def strike(self, name: str) -> None:
    self.tried[name] += 1
    self._open.append(name)

  def survive(self) -> None:
    self._open = []

  def lose(self) -> None:
    self.lost.update(self._open)
    self._open = []

  def format(self) -> str:
    rows = ['| Fault | Tried | Survived | Lost |', '|---|---|---|---|']
    for name in sorted(self.tried):
      rows.append(f'| {name} | {self.tried[name]} | {self.tried[name] - self.lost[name]} | '
                  f'{self.lost[name]} |')
    tried, lost = sum(self.tried.values()), sum(self.lost.values())
    rows.append(f'| all | {tried} | {tried - lost} | {lost} |')
    return '\n'.join(rows)
