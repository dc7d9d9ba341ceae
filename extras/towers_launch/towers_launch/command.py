"""The flags of a starter of workers, and the command after `--` that each worker runs."""

import argparse
import shutil
from typing import Mapping, Sequence

from towers.base.usage_error import UsageError
from towers_launch.tf_config import Parser


def parse_with_command(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
  """Returns the flags, with the words after `--` as `command`.

  Raises:
    UsageError: a wrong flag.
    SystemExit: after --help.
  """
  words = [*arguments, '--']
  end_of_flags = words.index('--')
  given, unknown = parser.parse_known_args(words[:end_of_flags])
  if unknown:
    raise UsageError(f'{unknown[0]} is no flag of {parser.prog}: the command and its flags stand '
                     'after --. See --help.')
  given.command = words[end_of_flags + 1:-1]
  return given


def check_least(given: argparse.Namespace, least: Mapping[str, float]) -> None:
  """Refuses flags that are given and below the least value of their name; raises UsageError."""
  for name, value in least.items():
    found = getattr(given, name)
    if found is not None and not found >= value:
      raise UsageError(f'{name}={found} must be at least {value:g}.')


def check_command(command: Sequence[str]) -> None:
  """Refuses words that start no program; raises UsageError."""
  if not command:
    raise UsageError('there is no command to start: give it after --, as in --workers=2 -- python '
                     'main.py.')
  if shutil.which(command[0]) is None:
    raise UsageError(f'the command {command[0]} is not found, or is no program: give its '
                     'path, or put its folder on PATH.')
