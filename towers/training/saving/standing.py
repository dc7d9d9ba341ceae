"""Standing: where a run stands between two steps, held in memory, to go on from in another graph.

As good as a checkpoint: the values of all variables by name, and the history. A graph of more
micro-batches has the same variables, and the input of any graph can begin at any step.
"""

from typing import Dict, NamedTuple, Optional

import numpy as np

from tensorflow_v1 import Session, tf
from towers.placement.counters import get_global_step
from towers.training.saving.checkpoints import Snapshot
from towers.training.saving.history import History
from towers.warm_start.warm_start import load_values


class Standing(NamedTuple):
  """A step that is done, the values of all variables by name, and the text of the history."""
  step: int
  values: Dict[str, np.ndarray]
  history: str

  def restore(self, session: Session) -> None:
    """Gives the variables of the default graph these values."""
    load_values(session, {variable: self.values[variable.op.name]
                          for variable in tf.global_variables()})


def take_standing(session: Session, history: History,
                  snapshot: Optional[Snapshot] = None) -> Standing:
  """Returns where the run of a session stands, or stood at `snapshot`, in the default graph."""
  variables = tf.global_variables()
  if snapshot is None:
    snapshot = Snapshot(*session.run([get_global_step(), variables]))
  return Standing(int(snapshot.step),
                  {variable.op.name: value for variable, value in zip(variables, snapshot.values)},
                  history.format())
