"""Matching: which tensor of a file starts which variable of the program.

  name in the file ── names ──► name in the program ──┬─► matched
                                                      └─► left over: the program has no such one
  variables that nothing starts: new, or under `reinit`
"""

from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

from towers.base.paths import read_path
from towers.base.usage_error import UsageError, format_lines
from towers.placement.patterns import choose_all, compile_pattern, list_patterns, shorten

Names = Union[None, Mapping[str, Optional[str]], Callable[[str], Optional[str]]]
"""From names in the file to names in the program: a function, which returns None for a tensor to
leave out; or patterns and what replaces the part that they match, of which the first that matches
counts. A name that none matches stays as it is.
"""


class InitFrom(NamedTuple):
  """Where the initial weights come from, see `init_from`."""
  path: str
  names: Names = None
  reinit: Iterable[str] = ()
  setting: str = 'names'  # Which gave the names.


class Matches(NamedTuple):
  """How a file and a program's variables fit."""
  source: Dict[str, str]  # For each variable that the file starts, the name of its tensor.
  new: List[str]  # Variables that the file does not have.
  anew: List[str]  # Variables under `reinit`.
  left_over: List[str]  # Tensors that the program does not have.
  # Variables under `reinit` whose tensor in the file has another shape, in words.
  differ: List[str]

  def format(self) -> str:
    """Returns a table, a line for each kind."""
    rows = [('matched', list(self.source)), ('new', self.new), ('reinit', self.anew),
            ('left over', self.left_over), ('shape differs', self.differ)]
    return '\n'.join(f'  {kind:13}  {len(names):5}  {shorten(names) if names else ""}'.rstrip()
                     for kind, names in rows)


def init_from(path: str, *, names: Names = None, reinit: Iterable[str] = ()) -> InitFrom:
  """Returns where a program's initial weights come from, for `towers.Program(init_from=…)`.

  Args:
    path: a folder of TensorFlow checkpoints, of which the newest counts; a checkpoint's path
      without suffix, V1 or V2; or a Keras .h5 file.
    names: from names in the file to names in the program: a dict from patterns to replacements, as
      `{'resnet/': 'model/'}`, or a function, which returns None for a tensor to leave out.
    reinit: patterns of the program's variables that start anew, as `['logits/']`.

  Raises:
    UsageError: a pattern is no regular expression.
  """
  for pattern in names if isinstance(names, Mapping) else ():
    compile_pattern('names', pattern)
  for pattern in list_patterns(reinit):
    compile_pattern('reinit', pattern)
  path = read_path(path, line="init_from='checkpoints'")
  return InitFrom(path, names, tuple(list_patterns(reinit)))


def match(settings: InitFrom, tensors: Mapping[str, Any], variables: Mapping[str, Any]) -> Matches:
  """Returns which tensor of the file starts which variable of the program.

  Both are by name, as `slices.Tensor`s.
  """
  anew = dict.fromkeys(choose_all('reinit', settings.reinit, variables,
                                  what='variable of the model'))
  found = _find_sources(settings, tensors, variables)
  differ = {name: f'{name} {_describe(tensors[given])} in the file, '
                  f'{_describe(variables[name])} in the program'
            for name, given in found.items() if not _fits(tensors[given], variables[name])}
  refused = [name for name in differ if name not in anew]
  if refused:
    raise UsageError(
        f'init_from={settings.path} does not fit the program:\n'
        f'{format_lines([differ[name] for name in refused])}\n'
        f"Let these variables start anew, as reinit={refused[0].rsplit('/', 1)[0]}, or build "
        'the model that the file is of.')
  source = {name: given for name, given in found.items() if name not in differ and name not in anew}
  if not source:
    raise UsageError(f'init_from={settings.path} starts no variable: the file has '
                     f'{shorten(tensors)}, and the program {shorten(variables)}. Map the names, as '
                     'init_map=resnet/=model/ or, in Python, '
                     "towers.init_from(path, names={'resnet/': 'model/'}).")
  used = set(found.values())
  return Matches(source, [name for name in variables if name not in found and name not in anew],
                 list(anew), [name for name in tensors if name not in used], list(differ.values()))


def _find_sources(settings, tensors, variables) -> Dict[str, str]:
  """Returns for each variable the tensor of its name; one that is renamed comes first."""
  renamed = rename(settings.names, tensors, setting=settings.setting, path=settings.path)
  for pattern, new in settings.names.items() if isinstance(settings.names, Mapping) else ():
    given = [new_name for new_name, rule in renamed.values() if rule == pattern]
    if new is not None and not set(given) & set(variables):
      raise UsageError(f'{_write(settings.setting, pattern, new)} makes {shorten(given)}, and the '
                       f'program has no such variable: there are {shorten(variables)}.')
  found: Dict[str, str] = {}
  for name, (new_name, rule) in renamed.items():
    other = found.get(new_name)
    if other is not None and (rule is None) == (renamed[other][1] is None):
      raise UsageError(f'{settings.setting} gives {new_name} two tensors of {settings.path}: '
                       f'{other} and {name}. Let each tensor have a name of its own.')
    if new_name in variables and (other is None or rule is not None):
      found[new_name] = name
  return {name: found[name] for name in variables if name in found}


def rename(names: Names, tensors: Iterable[str], *, setting: str, path: str
           ) -> Dict[str, Tuple[str, Optional[str]]]:
  """Returns for each tensor of a file its name in the program and its pattern, or None.

  A pattern of `names`, which were given in `setting`, may lead to None, to leave a tensor out.
  """
  if callable(names):
    given = {name: names(name) for name in tensors}
    return {name: (new_name, None if new_name == name else '') for name, new_name in given.items()
            if new_name is not None}
  rules = [(pattern, compile_pattern(setting, pattern), new)
           for pattern, new in (names or {}).items()]
  renamed, used = {}, set()
  for name in tensors:
    matches = [(pattern, new, compiled.match(name)) for pattern, compiled, new in rules]
    pattern, new, matched = next((rule for rule in matches if rule[2]), (None, '', None))
    used.add(pattern)
    try:
      beginning = matched.expand(new) if matched and new is not None else ''
    except Exception as error:  # re.error, or an IndexError for a group that is not there.
      raise UsageError(f'{_write(setting, pattern, new)}: {error}.') from None
    if new is not None:
      renamed[name] = (beginning + name[matched.end() if matched else 0:], pattern)
  for pattern, _, new in rules:
    if pattern not in used:
      raise UsageError(f'{_write(setting, pattern, new)} matches no tensor of {path}: there are '
                       f'{shorten(tensors)}. A pattern is matched with the beginning of a name, '
                       'and the first that matches counts.')
  return renamed


def _write(setting, pattern, new):
  """Returns a pattern as it was given: by a flag, or by a dict in Python."""
  return (f'{setting}={pattern}={new}' if setting == 'init_map' else
          f'{setting}={{{pattern!r}: {new!r}}}')


def _fits(tensor, variable) -> bool:
  dtype = np.dtype(tensor.dtype.as_numpy_dtype)
  same_kind = np.can_cast(dtype, variable.dtype.as_numpy_dtype, 'same_kind') or dtype.kind == 'V'
  return tensor.shape.as_list() == variable.shape.as_list() and same_kind


def _describe(tensor) -> str:
  return f'{tensor.shape.as_list()} {tensor.dtype.name}'
