"""Restores the variables of a program from a checkpoint, or says how the two differ."""

from typing import Any, Dict, Sequence

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.input.order import ORDER_TENSOR

_SHOWN = 8


def restore_variables(session: Any, saver: Any, path: str, variables: Sequence[Any]) -> None:
  """Restores the checkpoint at a path.

  Raises:
    UsageError: it holds other variables.
    tf.errors.OpError, ValueError, RuntimeError: it is damaged.
  """
  reader = tf.train.load_checkpoint(path)
  shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
  saved = {name: (tuple(shape), dtypes[name]) for name, shape in shapes.items()
           if name != ORDER_TENSOR}
  expected = {
      variable.op.name: (tuple(variable.shape.as_list()), variable.dtype.base_dtype)
      for variable in variables}
  # Before any tensor is read, so that a strange file never makes TensorFlow allocate its claims.
  check_same_variables(path, saved, expected)
  saver.restore(session, path)


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
      lines.append(f'  {name}: {list(shape)}{names[0]} in the checkpoint, '
                   f'{list(other_shape)}{names[1]} in the program')
  lines += [f'  only in the checkpoint: {name} {list(saved[name][0])}'
            for name in sorted(set(saved) - set(expected))]
  lines += [f'  only in the program: {name} {list(expected[name][0])}'
            for name in sorted(set(expected) - set(saved))]
  if lines:
    more = [f'  … and {len(lines) - _SHOWN} more'] if len(lines) > _SHOWN else []
    text = '\n'.join(lines[:_SHOWN] + more)
    raise UsageError(f'The checkpoint {path} belongs to another model or optimizer:\n{text}\nGive '
                     'the flags that it was written with, or another checkpoint_dir.')
