"""Restore: a checkpoint's values become those of the program's variables, all of them or none.

                        variable                  in the checkpoint
  of a model            hidden/weights            hidden/weights
  of a partitioner      table/part_1              rows 4 to 7 of table, however that was cut

Checkpoints of another program are refused, unless the caller says what is new in it, and what has
another name. Averages of the weights may be turned on or off in the middle of a run: those that a
checkpoint lacks start from its weights, and those that the program lacks are left behind.

Which checkpoint is taken, and when an older one, is decided in `checkpoints`.
"""

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from towers.base.usage_error import UsageError, format_lines
from towers.checkpoint.data import Data
from towers.checkpoint.files import open_reader
from towers.placement.patterns import choose_all
from towers.tensorflow_v1 import Session, Variable, tf
from towers.update.averages import NOT_VARIABLES, Averages, name_average
from towers.warm_start.matching import Names, rename
from towers.warm_start.parts import Part, Tensor, find_part
from towers.warm_start.warm_start import load_values


def read_tensors(reader: Any) -> Dict[str, Tensor]:
  """Returns what a checkpoint holds of variables, by name."""
  dtypes = reader.get_variable_to_dtype_map()
  return {name: Tensor(tf.TensorShape(shape), dtypes[name])
          for name, shape in reader.get_variable_to_shape_map().items()
          if name not in NOT_VARIABLES}


def read_values(reader: Any, parts: Mapping[Variable, Part]) -> Dict[Variable, Any]:
  """Returns the values of variables that a checkpoint holds; reads each tensor once."""
  tensors = {name: reader.get_tensor(name) for name in {part.name for part in parts.values()}}
  return {variable: part.take(tensors[part.name]) for variable, part in parts.items()}


def restore(session: Session, path: str, *, averages: Optional[Averages] = None,
            names: Names = None, new: Sequence[str] = (), data: Optional[Data] = None) -> str:
  """Gives all global variables of the default graph their values in a checkpoint.

  In the session they have their initial values. The path is without file suffixes; `names` and
  `new` say how the checkpoint may differ, as `map` and `new` of `towers.Session.restore`, and
  `data` what the run trains on, None if it may be any. Returns what is new or left of averages, in
  words; ''.

  Raises:
    UsageError: the checkpoint holds other variables, or is of other data.
    Exception: it is damaged; TensorFlow raises anything. No variable has changed.
  """
  reader = open_reader(path)
  tensors = read_tensors(reader)
  sources = _find_sources(path, names, tensors)
  saved = {name: tensors[source] for name, source in sources.items()}
  averaged = set(averages.variables.values()) if averages else set()
  parts = {variable: find_part(variable, saved) for variable in tf.global_variables()}
  expected = {part.name: part.tensor for variable, part in parts.items()
              if variable not in averaged}
  of_weights = {name_average(name) for name in expected} - set(expected)
  has_averages = not of_weights.isdisjoint(saved)
  if averages and has_averages:
    expected.update({parts[variable].name: parts[variable].tensor for variable in averaged})
  elif has_averages:
    saved = {name: tensor for name, tensor in saved.items() if name not in of_weights}
  kept = _choose_new(path, new, saved, expected)
  saved = {name: tensor for name, tensor in saved.items() if name not in kept}
  # Before any tensor is read, so that a strange file never makes TensorFlow allocate its claims.
  check_same_variables(
      path, saved, {name: tensor for name, tensor in expected.items() if name not in kept},
      fix='Give the flags that it was written with, or another checkpoint_dir; or go on with the '
          'step and the slots of what both have, by {}.')
  if data is not None:
    data.check(reader, path)

  started = read_values(reader, {
      variable: part._replace(name=sources[part.name]) for variable, part in parts.items()
      if part.name in saved})
  if averages and not has_averages:
    started.update({averages.variables[name]: started[weight]
                    for name, weight in averages.weights.items() if weight in started})
  load_values(session, started)
  if averages and not has_averages:
    return f'average_weights: {path} has no averages, so that they start from its weights'
  if has_averages and not averages:
    return f'average_weights is not set: the averages in {path} are left behind'
  return ''


def _find_sources(path, names, tensors) -> Dict[str, str]:
  """Returns the name in the checkpoint of each name in the program."""
  sources: Dict[str, str] = {}
  for name, (given, _) in rename(names, tensors, setting='map', path=path).items():
    if given in sources:
      raise UsageError(f'map gives {given} two tensors of {path}: {sources[given]} and {name}. Let '
                       'one of them lead to None.')
    sources[given] = name
  return sources


def _choose_new(path, new, saved, expected):
  """Returns the names under `new`; refuses one that the checkpoint has."""
  kept = set(choose_all('new', new, expected, what='variable of the program'))
  there = sorted(name for name in kept if name in saved and _fits(saved[name], expected[name]))
  if there:
    raise UsageError(f'new: {path} has {there[0]}. Name what it lacks, as {there[0]}/ for the '
                     f'slots; or leave the value behind, by map={{{there[0] + "$"!r}: None}}.')
  return kept


def check_same_variables(path: str, saved: Mapping[str, Any], expected: Mapping[str, Any], *,
                         fix: str) -> None:
  """Refuses a checkpoint whose `Tensor`s by name are not those that the program expects.

  The UsageError lists the differences, and ends in `fix`, with {} for the call that keeps the rest.
  """
  changed = [name for name in sorted(set(saved) & set(expected))
             if not _fits(saved[name], expected[name])]
  gone, new = sorted(set(saved) - set(expected)), sorted(set(expected) - set(saved))
  lines = []
  for name in changed:
    (shape, dtype), (other_shape, other_dtype) = saved[name], expected[name]
    names = ('', '') if dtype == other_dtype else (f' {dtype.name}', f' {other_dtype.name}')
    lines.append(f'{name}: {_show(shape)}{names[0]} in the checkpoint, '
                 f'{_show(other_shape)}{names[1]} in the program')
  lines += [f'only in the checkpoint: {name} {_show(saved[name][0])}' for name in gone]
  lines += [f'only in the program: {name} {_show(expected[name][0])}' for name in new]
  if lines:
    raise UsageError(f'The checkpoint {path} belongs to another model or optimizer:\n'
                     f'{format_lines(lines)}\n' +
                     fix.format(_format_call(changed + new, gone, {*saved, *expected})))


def _format_call(new, gone, names):
  """Returns the call that takes over what both have."""
  others = names.difference(new, gone)
  arguments = []
  if gone:
    left = ', '.join(f'{pattern!r}: None' for pattern in _shorten(gone, others))
    arguments.append(f'map={{{left}}}')
  if new:
    arguments.append(f'new={_shorten(new, others)!r}')
  return f"session.restore(folder, {', '.join(arguments)})"


def _shorten(names, others) -> List[str]:
  """Returns patterns that match names and not others; slots by the name of their variable."""
  patterns: List[str] = []
  for name in sorted(names):
    if not any(re.match(pattern, name) for pattern in patterns):
      pattern = name.replace('.', r'\.')
      is_wide = any(re.match(pattern, other) for other in others)
      patterns.append(pattern + '(/|$)' if is_wide else pattern)
  return patterns


def _fits(saved, expected) -> bool:
  return saved.shape.is_compatible_with(expected.shape) and saved.dtype == expected.dtype


def _show(shape):
  return 'of any shape' if shape.dims is None else str(shape.as_list())
