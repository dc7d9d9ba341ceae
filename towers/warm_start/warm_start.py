"""Warm start: the variables of a program start from a file.

  file ── tensors by name ──► matching ──► fed as initial values ──► the variables start

The values are fed in place of initial values, so that all which follows from these starts right:
replicas on every tower, and variables whose initial value is made of another's. A run that resumes
reads its checkpoint alone.
"""

from typing import Any, Dict, Iterable, List, Set, Tuple, Union

import numpy as np

from towers.graph.walk import find_needed
from towers.tensorflow_v1 import Session, Tensor, Variable, tf
from towers.warm_start.matching import InitFrom, init_from, match
from towers.warm_start.slices import VariableSlice, find_slice
from towers.warm_start.weights_file import open_weights


class WarmStart:
  """What starts a program's variables, by name, beside their initializers.

  Attributes:
    source: the file's path.
  """

  def __init__(self, source: Union[str, InitFrom], variables: Iterable[Variable]):
    """Reads nothing. Integers that are not trained, such as counters, start anew.

    `source` is a path or of `init_from`.
    """
    self._settings = source if isinstance(source, InitFrom) else init_from(source)
    self.source = self._settings.path
    self._variables = [variable for variable in variables
                       if variable.dtype.base_dtype.is_floating or variable.trainable]

  def start(self, session: Session) -> str:
    """Starts the variables again, from the file; returns a table of what it has started.

    Raises:
      UsageError: the file is missing or damaged, or does not fit the program, see `matching`.
    """
    slices: Dict[str, List[Tuple[Variable, VariableSlice]]] = {}
    wholes: Dict[str, Any] = {}
    with open_weights(self.source) as opened:
      for variable in self._variables:
        piece = find_slice(variable, opened.tensors)
        wholes[piece.name] = piece.tensor
        slices.setdefault(piece.name, []).append((variable, piece))
      matches = match(self._settings, opened.tensors, wholes)
      values = {name: opened.read(source) for name, source in matches.source.items()}
    load_values(session, {variable: piece.take(value) for name, value in values.items()
                          for variable, piece in slices[name]})
    return (f'initial weights: {self.source}, {opened.kind} of {len(opened.tensors)} tensors\n'
            f'{matches.format()}')


def load_values(session: Session, values: Dict[Variable, np.ndarray]) -> None:
  """Starts variables again, from values in place of their initial ones, in few runs and no new op.

  All others keep their values, except those whose initial value is made of such a variable's.
  """
  waiting, started = dict(values), set(values)
  while waiting:
    # An initial value that several variables share is fed to one after the other.
    taken = {variable.initializer.inputs[1]: variable for variable in waiting}
    followers = _find_followers(session, set(taken), started)
    session.run([variable.initializer for variable in [*taken.values(), *followers]], {
        value: np.asarray(waiting.pop(variable)).astype(variable.dtype.as_numpy_dtype)
        for value, variable in taken.items()})


def _find_followers(session: Session, values: Set[Tensor], started: Set[Variable]
                    ) -> List[Variable]:
  """Returns the variables whose initial value is made of `values`, but for those in `started`."""
  ops = {value.op for value in values}
  with session.graph.as_default():
    return [variable for variable in tf.global_variables()
            if variable not in started and ops & find_needed([variable.initializer.inputs[1].op])]
