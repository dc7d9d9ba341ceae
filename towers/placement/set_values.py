"""Values that a model assigns while it is built, such as weights that Keras loads from a file.

  weights='file.h5', load_weights, set_weights, load_model, Embedding(weights=…)
        │ assign, in Keras's session
        ▼
  the values of assigned variables ──► tf.py_func ──► initial values, on every tower

Keras loads a file into a session of its own, so that the training session would start from random
weights. So while the first tower is built, Keras gets a session from here. The values wait in
Python's memory, not in the graph, which must stay below 2 GB. A restored checkpoint replaces them
like any initial value.
"""

import contextlib
from typing import Any, Dict, Iterator

from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.graph.writes import READERS
from towers.placement.host import HOST
from towers.tensorflow_v1 import Variable, tf

_READS_VALUE = ('ReadVariableOp', 'ResourceGather', 'ResourceGatherNd')


@contextlib.contextmanager
def keep_set_values() -> Iterator[None]:
  """Makes the values that a model assigns within the context initial values of its variables.

  Raises:
    UsageError: the model reads a variable that Keras has set before, in another session.
  """
  before = {variable: len(variable.handle.consumers()) for variable in _find_variables()
            if getattr(variable, '_keras_initialized', False) and _is_loaded(variable)}
  session = _LazySession(tf.get_default_graph())
  try:
    # Keras uses the default session.
    with tf.Session.as_default(session):
      yield
    values = _find_set_values(session)
  except tf.errors.FailedPreconditionError as error:
    if error.op is None or error.op.type not in _READS_VALUE:
      raise
    raise UsageError(
        f'While the model was built, it read the variable {error.op.inputs[0].op.name}, which has '
        'no value there: if a model takes its weights from another one, make and load that one too '
        'inside of the model function, or in the function of KerasModel.') from None
  finally:
    session.close()
  _check_read([
      variable for variable, num_consumers in before.items()
      if any(op.type in _READS_VALUE for op in variable.handle.consumers()[num_consumers:])])
  _start_from(values)


class _LazySession:
  """A session on CPUs that opens when anything but its graph is used."""

  def __init__(self, graph):
    self.graph = graph
    self._opened: Any = None

  def __getattr__(self, name):
    if self._opened is None:
      # On GPUs it would take all of their memory, so that GPU ops run on the host here. It has
      # threads of its own, since the first session decides for good how many shared ones there are.
      config = tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True,
                              use_per_session_threads=True)
      self._opened = tf.Session(graph=self.graph, config=config)
    return getattr(self._opened, name)

  def close(self):
    if self._opened is not None:
      self._opened.close()
    self._opened = None


def _find_variables():
  return [variable for variable in tf.global_variables() + tf.local_variables()
          if hasattr(variable, 'handle')]


def _is_loaded(variable):
  """Returns whether an op assigns values of Python or of a file to a variable."""
  assigns = [op for op in variable.handle.consumers()
             if op.type == 'AssignVariableOp' and op is not variable.initializer]
  return any(source.type in ('Placeholder', 'RestoreV2')
             for op in assigns for source in find_needed([op.inputs[1].op]))


def _check_read(variables):
  if variables:
    raise UsageError(
        f'The model reads the variable {variables[0].op.name} and {len(variables) - 1} more that '
        'Keras has set before the towers were built (weights=…, load_weights, set_weights), in a '
        'session of its own, whose values the towers would never see: make and load the Keras '
        'model in the function of KerasModel, or in the first call of the model function.')


def _find_set_values(session) -> Dict[Variable, Any]:
  """Returns the values of variables that an op other than their initializer sets."""
  if session._opened is None:
    return {}
  for variable in _find_variables():
    # So that Keras initializes them again in its next session.
    variable._keras_initialized = False
  with tf.name_scope(None), tf.name_scope('set_values'):
    may_be_set = [variable for variable in _find_variables()
                  if any(op.type not in READERS and op is not variable.initializer
                         for op in variable.handle.consumers())]
    has_value = session.run([tf.is_variable_initialized(variable) for variable in may_be_set])
    found = [variable for variable, is_there in zip(may_be_set, has_value) if is_there]
    return dict(zip(found, session.run(found)))


def _start_from(values: Dict[Variable, Any]) -> None:
  for variable, value in values.items():
    with tf.name_scope(None), tf.control_dependencies(None), tf.device(HOST):
      loaded = tf.py_func(lambda value=value: value, [], variable.dtype.base_dtype,
                          name=f'set_values/{variable.op.name}')
    loaded.set_shape(variable.shape)
    variable.initializer._update_input(1, loaded)
    variable._initial_value = loaded
