"""Types of the benchmarks' flags: bad values are refused before anything is measured.

Each is, or returns, a `type` of `argparse`, which puts the flag's name before the message.
"""

import argparse
import os
from typing import Any, Callable, Iterable, List


def at_least(least: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
  """Returns a reader of an int, or another `kind` of number, that is not below `least`."""
  def read(text: str) -> Any:
    try:
      value = kind(text)
    except ValueError:
      expected = 'an integer' if kind is int else 'a number'
      raise argparse.ArgumentTypeError(f"'{text}' is not {expected}") from None
    if not value >= least:
      raise argparse.ArgumentTypeError(f'{text} is too small: it must be at least {least:g}')
    return value
  return read


def several(read: Callable[[str], Any]) -> Callable[[str], List[Any]]:
  """Returns a reader of a comma-separated list whose parts `read` reads."""
  return lambda text: [read(part) for part in text.split(',')]


def one_of(names: Iterable[str]) -> Callable[[str], str]:
  """Returns a reader of one of `names`."""
  known = list(names)

  def read(text: str) -> str:
    if text not in known:
      raise argparse.ArgumentTypeError(f"there is no '{text}'; choose from {','.join(known)}")
    return text
  return read


def path_to_write(text: str) -> str:
  """Reads the path of a file that can be written."""
  folder = os.path.dirname(os.path.abspath(text))
  if not os.path.isdir(folder):
    raise argparse.ArgumentTypeError(f'{text}: there is no folder {folder}')
  if os.path.isdir(text) or not os.access(text if os.path.exists(text) else folder, os.W_OK):
    raise argparse.ArgumentTypeError(f'{text} cannot be written')
  return text


def path_to_read(text: str) -> str:
  """Reads the path of a file or folder that exists."""
  if not os.path.exists(text):
    raise argparse.ArgumentTypeError(f'there is no {text}')
  return text
