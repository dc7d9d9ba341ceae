"""A mutant: one fault of one line, and the tests that must see it."""

import os
import re
from typing import List, NamedTuple, Sequence, Tuple


class Mutant(NamedTuple):
  """A fault that a person might make.

  Attributes:
    path: the file, from the root of the tree.
    old: what stands there, once.
    new: what stands there instead.
    breaks: what is wrong then, in words.
    tests: pytest's node ids of the fast tests that must fail, of which one is enough.
    equivalent: why nothing that the program does changes, so that the tests pass; '' for a fault.
  """
  path: str
  old: str
  new: str
  breaks: str
  tests: Tuple[str, ...]
  equivalent: str = ''

  def apply(self, root: str) -> str:
    """Puts the fault into the tree at `root`; returns the text of the file as it was.

    Raises:
      ValueError: the old text does not stand there exactly once.
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
    tests: the file of those tests that are named without one.
    faults: (old, new, breaks, tests with spaces between them), and why it is equivalent if it is.
  """
  mutants = []
  for old, new, breaks, names, *equivalent in faults:
    # Ids of parameters have spaces too.
    nodes = [name if '::' in name else f'{tests}::{name}'
             for name in re.split(r' (?=tests?[_/])', names)]
    mutants.append(Mutant(path, old, new, breaks, tuple(nodes), *equivalent))
  return mutants
