"""Warm start: the variables of a program start from a file.

  file ── tensors by name ──► matching ──► fed as initial values ──► the variables start

The values are fed in place of initial values, so that all which follows from these starts right:
replicas on every tower, and variables whose initial value is made of another's. A run that resumes
reads its checkpoint alone.
"""

from typing import Dict, Iterable, List, Set, Union

import numpy as np

from towers.graph.walk import find_needed
from towers.tensorflow_v1 import Session, Tensor, Variable, tf
from towers.warm_start.matching import InitFrom, init_from, match
from towers.warm_start.slices import find_slice, read_values
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
    """Starts the variables again, from the file; returns a table of what it has started."""
    with open_weights(self.source) as opened:
      slices = {variable: find_slice(variable, opened.tensors) for variable in self._variables}
      matches = match(self._settings, opened.tensors,
                      {piece.name: piece.tensor for piece in slices.values()})
      values = read_values(opened.read, {
          variable: piece._replace(name=matches.source[piece.name])
          for variable, piece in slices.items() if piece.name in matches.source})
    load_values(session, values)
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
