"""Flags: the command line of `main.py`, made from the settings."""

import contextlib
import os
import platform
import re
import sys
import textwrap
from typing import Any, Callable, Dict, List, Optional, Sequence

from absl import flags

from towers.base.installed import __version__, find_distributions, find_tensorflow
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.settings.config import Config
from towers.settings.setting import WANTED, Count
from towers.settings.table import GROUPS, SETTINGS, find_meant

_DEFINE: Dict[type, Callable[..., Any]] = {
    int: flags.DEFINE_integer, float: flags.DEFINE_float, bool: flags.DEFINE_boolean,
    list: flags.DEFINE_list}
# Columns of the help: of a flag's name and choices, which move into its text if longer; and all.
_LEFT, _WIDTH = 53, 120
# absl's own names.
_HELP = {**dict.fromkeys(('help', 'helpfull', 'h'), 'show all flags'),
         'helpshort': 'show the most used flags',
         'version': 'show the versions of towers, TensorFlow and Python'}
# The flags of --helpshort: they fit a screen.
COMMON = (
    'data', 'data_dir', 'augment', 'batch_size', 'input_mode', 'staging_depth', 'num_towers',
    'device', 'model', 'batch_norm', 'optimizer', 'learning_rate', 'schedule', 'epochs', 'steps',
    'validation', 'validate_every', 'checkpoint_dir', 'result_file', 'summary_dir', 'report',
    'doctor', 'export_dir', 'predict')


def parse_flags(arguments: Sequence[str],
                others: Optional[flags.FlagValues] = None) -> Optional[Config]:
  """Returns the Config of a command line, or None after printing the help that it asks for.

  The arguments are `sys.argv`, the program's name first, and `others` flags of the program itself,
  which are parsed too. A UsageError names the flag nearest to an unknown one.
  """
  values = flags.FlagValues()
  for name, text in _HELP.items():
    flags.DEFINE_boolean(name, False, text, flag_values=values, allow_hide_cpp=True)
  for setting in SETTINGS.values():
    default = str(setting.default) if setting.kind is Count else setting.default
    define = _DEFINE.get(setting.kind, flags.DEFINE_string)
    define(setting.name, default, setting.help, flag_values=values)
    if setting.alias:
      flags.DEFINE_alias(setting.alias, setting.name, flag_values=values)
  try:
    left = values(list(arguments), known_only=others is not None)[1:]
    if others is not None:
      left = others([arguments[0], *left])[1:]
  except flags.Error as error:
    raise UsageError(f'{_explain(error, [*values, *(others or ())])}\nFlags: python '
                     f'{_name_command(arguments[0])} --helpshort, or --help for all') from None
  if left:
    raise UsageError(f"{' '.join(left)}: not a flag. Flags begin with --, as "
                     f"--{left[0].lstrip('-')}.")
  if values['version'].value:
    write_line(format_versions())
    return None
  if any(values[name].value for name in _HELP):
    write_line(format_help(arguments[0], COMMON if values['helpshort'].value else None))
    return None
  given = {name: _convert(setting, values[name].value) for name, setting in SETTINGS.items()}
  if given['validation'] == 'tower':
    given.update(validation='switch', validation_tower=True)
  return Config(**given)


def _name_command(program):
  name = os.path.basename(program)
  return '-m towers' if name == '__main__.py' else name


def format_help(program: str, names: Optional[Sequence[str]] = None) -> str:
  """Returns the help: flags in groups, in the order of the data path; `names` are those to show."""
  command = _name_command(program)
  lines: List[str] = ['Trains a model on towers: one copy of its graph per GPU.',
                      f'usage: python {command} [--flag=value ...]']
  for group, settings in GROUPS.items():
    shown = [setting for setting in settings if names is None or setting.name in names]
    lines += [f'{group}:'] if shown else []
    for setting in shown:
      left, text = f'  --{setting.name}', setting.help
      if setting.alias:
        left += f', --{setting.alias}'
      if setting.choices and len(left + '|'.join(setting.choices)) < _LEFT:
        left += '=' + '|'.join(setting.choices)
      elif setting.choices:
        text += ': ' + ', '.join(setting.choices)
      lines += textwrap.wrap(
          text + _format_default(setting.default), _WIDTH,
          initial_indent=left.ljust(_LEFT) + ' ', subsequent_indent=' ' * (_LEFT + 1))
  if names is not None:
    lines.append(f'all flags: python {command} --help')
  return '\n'.join(lines)


def format_versions() -> str:
  """Returns the versions of towers, TensorFlow and Python, without importing TensorFlow."""
  tensorflow = find_tensorflow(find_distributions(sys.path))
  return (f"towers {__version__}, "
          f"{f'{tensorflow.name} {tensorflow.version}' if tensorflow else 'no TensorFlow'}, "
          f'Python {platform.python_version()}')


def _explain(error, names):
  """Returns what is wrong with a flag, in our words, and the flag that was meant."""
  wrong_value = re.match(r'flag --(\w+)=(.*?): ', str(error), re.DOTALL)
  if isinstance(error, flags.UnrecognizedFlagError):
    meant = find_meant(error.flagname, names)
    guess = f": did you mean --{' or --'.join(meant)}?" if meant else '.'
    return f'There is no flag --{error.flagname}{guess}'
  if wrong_value and wrong_value[1] in SETTINGS:
    name, value = wrong_value.groups()
    return f'--{name}={value}: it must be {WANTED[SETTINGS[name].kind]}.'
  return str(error)


def _format_default(value):
  """Returns ' (0.1)', or '' for what the text of the help says itself."""
  if value is None or value is False or value == ():
    return ''
  return f' ({value:g})' if isinstance(value, float) else f' ({value})'


def _convert(setting, value):
  """Returns a flag's value as a setting takes it: absl has no numbers in lists, nor a Count."""
  if setting.kind is Count:
    with contextlib.suppress(ValueError):  # 'auto', or refused where all settings are.
      return int(value)
  if setting.kind is list:
    try:
      return tuple(map(float, value))
    except ValueError:
      raise UsageError(f"{setting.name}={','.join(value)}: they must be numbers with commas "
                       "between them, as 30,60.") from None
  return value
