"""Flags of the benchmarks: what cannot be is refused before anything is measured, in a sentence
that tells what can.

Each function returns a `type` of `argparse`, which puts the flag's name before what it raises.
"""

import argparse
import os
import shutil
from typing import Any, Callable, Iterable, List


def at_least(least: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
  """Returns a reader of an int, or a number of another `kind`, from `least` on."""
  def read(text: str) -> Any:
    try:
      value = kind(text)
    except ValueError:
      raise argparse.ArgumentTypeError(f"'{text}' is no "
                                       f"{'whole number' if kind is int else 'number'}") from None
    if not value >= least:
      raise argparse.ArgumentTypeError(f'{text} is too small: it must be at least {least:g}')
    return value
  return read


def several(read: Callable[[str], Any]) -> Callable[[str], List[Any]]:
  """Returns a reader of a list with commas between its parts, each of which `read` reads."""
  return lambda text: [read(part) for part in text.split(',')]


def one_of(names: Iterable[str]) -> Callable[[str], str]:
  """Returns a reader of one of some names."""
  known = list(names)

  def read(text: str) -> str:
    if text not in known:
      raise argparse.ArgumentTypeError(f"there is no '{text}'; choose of {','.join(known)}")
    return text
  return read


def program(text: str) -> str:
  """Reads the name or path of a program."""
  if shutil.which(text) is None:
    raise argparse.ArgumentTypeError(f'there is no program {text}')
  return text


def path_to_write(text: str) -> str:
  """Reads the path of a file that can be written when all is measured."""
  folder = os.path.dirname(os.path.abspath(text))
  if not os.path.isdir(folder):
    raise argparse.ArgumentTypeError(f'{text}: there is no folder {folder}')
  if os.path.isdir(text) or not os.access(text if os.path.exists(text) else folder, os.W_OK):
    raise argparse.ArgumentTypeError(f'{text} cannot be written')
  return text


def path_to_read(text: str) -> str:
  """Reads the path of a file or folder that is there."""
  if not os.path.exists(text):
    raise argparse.ArgumentTypeError(f'there is no {text}')
  return text
