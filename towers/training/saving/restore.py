"""Restore: a checkpoint's values become those of the program's variables.

Checkpoints of another program are refused. But averages of the weights may be turned on or off in
the middle of a run: those that a checkpoint lacks start from its weights, and those that the
program lacks are left behind.
"""

from typing import Any, Dict, Optional

from tensorflow_v1 import Session, tf
from towers.base.usage_error import UsageError, format_lines
from towers.update.averages import NOT_VARIABLES, Averages, name_average


class Restorer:
  """Restores all global variables of the default graph."""

  def __init__(self, averages: Optional[Averages] = None):
    """Prepares; restores nothing.

    Args:
      averages: of the program's weights, or None.
    """
    self._averages = averages
    averaged = set(averages.variables.values()) if averages else set()
    self._variables = [variable for variable in tf.global_variables() if variable not in averaged]
    self._saver = tf.train.Saver(self._variables)
    self._average_saver: Any = averages and tf.train.Saver(list(averages.variables.values()))

  def restore(self, session: Session, path: str) -> str:
    """Restores the checkpoint at a path; returns in words what is new or left of averages, or ''.

    Raises:
      UsageError: it holds other variables.
      tf.errors.OpError, ValueError, RuntimeError: it is damaged.
    """
    reader = tf.train.load_checkpoint(path)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    saved = {name: (tuple(shape), dtypes[name]) for name, shape in shapes.items()
             if name not in NOT_VARIABLES}
    expected = _describe(self._variables)
    averages = {name_average(name) for name in expected} - set(expected)
    has_averages = not averages.isdisjoint(saved)
    if self._averages and has_averages:
      expected.update(_describe(self._averages.variables.values()))
    elif has_averages:
      saved = {name: value for name, value in saved.items() if name not in averages}

    # Before any tensor is read, so that a strange file never makes TensorFlow allocate its claims.
    check_same_variables(path, saved, expected)
    self._saver.restore(session, path)
    if self._averages and has_averages:
      self._average_saver.restore(session, path)
    elif self._averages:
      session.run(self._averages.start_op)
      return f'average_weights: {path} has no averages, so that they start from its weights'
    elif has_averages:
      return f'average_weights is not set: the averages in {path} are left behind'
    return ''


def _describe(variables) -> Dict[str, Any]:
  """Returns (shape, dtype) of variables, by name."""
  return {variable.op.name: (tuple(variable.shape.as_list()), variable.dtype.base_dtype)
          for variable in variables}


def check_same_variables(path: str, saved: Dict[str, Any], expected: Dict[str, Any]) -> None:
  """Raises if a checkpoint and the program have different variables.

  Args:
    path: of the checkpoint.
    saved: (shape, dtype) of the variables in the checkpoint, by name.
    expected: the same of those in the program.

  Raises:
    UsageError: lists the differences.
  """
  lines = []
  for name in sorted(set(saved) & set(expected)):
    (shape, dtype), (other_shape, other_dtype) = saved[name], expected[name]
    if saved[name] != expected[name]:
      names = ('', '') if dtype == other_dtype else (f' {dtype.name}', f' {other_dtype.name}')
      lines.append(f'{name}: {list(shape)}{names[0]} in the checkpoint, '
                   f'{list(other_shape)}{names[1]} in the program')
  lines += [f'only in the checkpoint: {name} {list(saved[name][0])}'
            for name in sorted(set(saved) - set(expected))]
  lines += [f'only in the program: {name} {list(expected[name][0])}'
            for name in sorted(set(expected) - set(saved))]
  if lines:
    raise UsageError(f'The checkpoint {path} belongs to another model or optimizer:\n'
                     f'{format_lines(lines)}\nGive the flags that it was written with, or another '
                     'checkpoint_dir.')
