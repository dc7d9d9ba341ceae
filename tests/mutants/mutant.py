"""A mutant: one fault of one line, and the tests that must see it."""

import os
import re
from typing import List, NamedTuple, Sequence, Tuple


class Mutant(NamedTuple):
  """A fault that a person might make.

  Attributes:
    path: the file, from the root of the tree.
    old: text that occurs once in the file.
    new: its replacement.
    breaks: what is wrong then, in words.
    tests: pytest's node ids of fast tests, of which at least one must fail.
    equivalent: why the replacement changes nothing, so the tests pass; '' for a fault.
  """
  path: str
  old: str
  new: str
  breaks: str
  tests: Tuple[str, ...]
  equivalent: str = ''

  def apply(self, root: str) -> str:
    """Puts the fault into the tree at `root`; returns the file's text without the fault.

    Raises:
      ValueError: the old text does not occur exactly once.
    """
    path = os.path.join(root, self.path)
    with open(path, encoding='utf-8') as file:
      text = file.read()
    count = text.count(self.old)
    if count != 1:
      raise ValueError(f'{self.path} has {count} times, and not once: {self.old}')
    with open(path, 'w', encoding='utf-8') as file:
      file.write(text.replace(self.old, self.new))
    return text

  def restore(self, root: str, text: str) -> None:
    """Writes back what `apply` returned."""
    with open(os.path.join(root, self.path), 'w', encoding='utf-8') as file:
      file.write(text)


def mutants_of(path: str, *, tests: str, faults: Sequence[Sequence[str]]) -> List[Mutant]:
  """Returns the mutants of one file.

  Args:
    path: the file.
    tests: the file of tests that are named without one.
    faults: (old, new, breaks, tests separated by spaces), and the reason of an equivalent one.
  """
  mutants = []
  for old, new, breaks, names, *equivalent in faults:
    # Ids of parameters contain spaces too.
    nodes = [name if '::' in name else f'{tests}::{name}'
             for name in re.split(r' (?=tests?[_/])', names)]
    mutants.append(Mutant(path, old, new, breaks, tuple(nodes), *equivalent))
  return mutants
