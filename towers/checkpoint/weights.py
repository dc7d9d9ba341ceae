"""Weights: those of a run that measured best, for a graph that does not train."""

import os
import sys
from typing import Optional

from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import list_steps
from towers.checkpoint.history import History
from towers.checkpoint.restore import check_same_variables, read_values
from towers.tensorflow_v1 import Session, tf
from towers.update.moving_averages import AVERAGES_TENSOR, name_average
from towers.warm_start.slices import (
  Tensor,
  VariableSlice,
  find_slice,
  open_reader,
  read_tensors,
)
from towers.warm_start.warm_start import load_values


def find_best(folder: str, metric: Optional[str], *, or_newest: bool = True) -> int:
  """Returns a folder's best step by a metric (None: the run's), the newest without validations.

  Raises:
    UsageError: there is no checkpoint, or none of a validation and it may not be the newest.
  """
  steps = list_steps(folder)
  if not steps:
    problem = ('has no checkpoint' if os.path.isdir(folder) else
               'is a file' if os.path.isfile(folder) else 'does not exist')
    raise UsageError(f'checkpoint_dir={folder} {problem}: give the folder of a run that has saved.')
  history = History(metric=metric)
  history.read(folder, sys.maxsize)
  history.check_metric()
  found = [step for step in history.best_first() if step in steps]
  if not found and not or_newest:
    raise UsageError(f'{folder} has no best checkpoint: no validation of one has a '
                     f'{history.metric.name} that is a number. Write '
                     f"session.restore('{folder}') for the newest one.")
  return (found + steps)[0]


def restore_weights(session: Session, path: str) -> None:
  """Gives the default graph's variables a checkpoint's weights, or their averages, and no more.

  A checkpoint of another model, or a damaged one, is a UsageError.
  """
  variables = tf.global_variables()
  try:
    reader = open_reader(path)
    tensors = read_tensors(reader)
    slices = {variable: find_slice(variable, tensors) for variable in variables}
    averages = {variable: name_average(variable.op.name) for variable in variables
                if name_average(variable.op.name) in tensors}
    if averages and not reader.has_tensor(AVERAGES_TENSOR):
      write_line(f'{min(averages.values())} in {path} is an average of the model itself, which '
                 'validation did not measure: the weights are taken. A variable of this name in '
                 'predict reads it.')
      averages = {}
    slices.update({variable: VariableSlice(name, Tensor(variable.shape, variable.dtype.base_dtype))
                  for variable, name in averages.items()})
    expected = {piece.name: piece.tensor for piece in slices.values()}
    check_same_variables(
        path, {name: tensor for name, tensor in tensors.items() if name in expected}, expected,
        fix='Give the settings that it was written with, or another checkpoint_dir.')
    load_values(session, read_values(reader, slices))
  except UsageError:
    raise
  except Exception as error:  # A damaged file makes TensorFlow raise anything.
    raise UsageError(f'{path} cannot be read: {find_reason(error)}. Put a copy that is whole '
                     'there.') from None
