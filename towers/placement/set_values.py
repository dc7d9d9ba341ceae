"""Values that a model assigns while it is built, such as weights that Keras loads from a file.

  weights='file.h5', load_weights, set_weights, load_model, Embedding(weights=…)
        │ assign, in Keras's session         a Saver's restore(), in a session that the model makes
        ▼                                                          │
  the values of assigned variables ◄───────────────────────────────┘
        └──► tf.py_func ──► initial values, on every tower

Both load a file into a session of their own, so that the training session would start from random
weights; and that session lacks the towers' devices. So while a model is called, all of these run
in one from here, and what runs in it for the first tower counts. The values wait in Python's
memory, not in the graph, which must stay below 2 GB. A restored checkpoint replaces them like any
initial value.
"""

import contextlib
from typing import Any, Dict, Iterator, List

from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed, list_ops
from towers.graph.writes import READERS
from towers.placement.host import HOST
from towers.tensorflow_v1 import Graph, Operation, Variable, tf

# Ops that fail where their variable has no value.
READS_VALUE = ('ReadVariableOp', 'ResourceGather', 'ResourceGatherNd')


@contextlib.contextmanager
def keep_set_values() -> Iterator[None]:
  """Makes the values that a model assigns within the context initial values of its variables."""
  before = {variable: len(variable.handle.consumers()) for variable in _find_variables()
            if getattr(variable, '_keras_initialized', False) and _is_loaded(variable)}
  with contextlib.closing(LazySession(tf.get_default_graph())) as session:
    # Keras uses the default session.
    with tf.Session.as_default(session):
      yield
    values = _find_set_values(session)
  read = [variable for variable, num_consumers in before.items() if any(
      op.type in READS_VALUE for op in variable.handle.consumers()[num_consumers:])]
  if read:
    raise UsageError(
        f'The model reads the variable {read[0].op.name} and {len(read) - 1} more that Keras has '
        'set before the towers were built (weights=…, load_weights, set_weights), in a session of '
        'its own, whose values the towers would never see: make and load the Keras model in the '
        'function of KerasModel, or in the first call of the model function.')
  for variable, value in values.items():
    with tf.name_scope(None), tf.control_dependencies(None), tf.device(HOST):
      loaded = tf.py_func(lambda value=value: value, [], variable.dtype.base_dtype,
                          name=f'set_values/{variable.op.name}')
    loaded.set_shape(variable.shape)
    variable.initializer._update_input(1, loaded)
    variable._initial_value = loaded


class LazySession:
  """A session on CPUs that opens when anything but its graph is used.

  Attributes:
    graph: its graph.
    opened: the session, once it is open.
    ran, fed: the ops that were fetched, and those that were fed.
  """

  def __init__(self, graph: Graph):
    self.graph, self.opened = graph, None
    self.ran: List[Operation] = []
    self.fed: List[Operation] = []

  def run(self, fetches: Any, feed_dict: Any = None, **named: Any) -> Any:
    """Does what a session does."""
    self.ran += list_ops(tf.nest.flatten(fetches, expand_composites=True))
    self.fed += list_ops(feed_dict or ())
    return self.__getattr__('run')(fetches, feed_dict, **named)

  def __getattr__(self, name):
    if self.opened is None:
      # On GPUs it would take all of their memory, so that GPU ops run on the host here. It has
      # threads of its own, since the first session decides for good how many shared ones there are.
      config = tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True,
                              use_per_session_threads=True)
      self.opened = tf.Session(graph=self.graph, config=config)
    return getattr(self.opened, name)

  def close(self) -> None:
    """Closes the session, if it is open."""
    if self.opened is not None:
      self.opened.close()
    self.opened = None


def _find_variables():
  return [variable for variable in tf.global_variables() + tf.local_variables()
          if hasattr(variable, 'handle')]


def _is_loaded(variable):
  """Returns whether an op assigns values of Python or of a file to a variable."""
  assigns = [op for op in variable.handle.consumers()
             if op.type == 'AssignVariableOp' and op is not variable.initializer]
  return any(source.type in ('Placeholder', 'RestoreV2')
             for op in assigns for source in find_needed([op.inputs[1].op]))


def _find_set_values(session) -> Dict[Variable, Any]:
  """Returns the values of variables that an op other than their initializer sets."""
  if not session.ran:
    return {}
  ran = find_needed(session.ran)
  found = []
  for variable in _find_variables():
    # So that Keras initializes them again in its next session.
    variable._keras_initialized = False
    # What feeds an initializer sets its variable, as `variable.load(value, session)` does.
    if any(op in ran and op.type not in READERS and (
        op is not variable.initializer or op.inputs[1].op in session.fed)
           for op in variable.handle.consumers()):
      found.append(variable)
  with tf.name_scope(None), tf.name_scope('set_values'):
    return dict(zip(found, session.run(found)))
