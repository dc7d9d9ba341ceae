"""What a model sets its variables to while it is built, as Keras does that loads a file.

  weights='file.h5', load_weights, set_weights, load_model, Embedding(weights=…)
        │ assign, in a session of Keras's own
        ▼
  the values of what was assigned ──► tf.py_func ──► initial values, on every tower

A graph's variables have their values in a session. Keras opens one of its own to load a file
into, and the session that trains would start from random weights. While the first tower is built,
Keras gets a session from here. It is opened when it is first asked for, takes no GPU, and is
closed when the tower is built. The values wait in Python's memory, never in the graph, which must
stay below 2 GB. A checkpoint that is restored later replaces them as it does any initial value.
"""

import contextlib
from typing import Any, Dict, Iterator

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.placement.host import HOST

_READS_VALUE = ('ReadVariableOp', 'ResourceGather', 'ResourceGatherNd')
# What takes a variable's handle and leaves its value as it is.
_READS = (*_READS_VALUE, 'VarIsInitializedOp', 'VariableShape')


@contextlib.contextmanager
def keep_set_values() -> Iterator[None]:
  """Makes initial values of what a model sets its variables to inside of the context.

  Towers' copies of variables follow them, see `replicas`.

  Raises:
    UsageError: the model, or Keras while it builds the model, reads a variable that Keras has
      set before, in another session.
  """
  before = {variable: len(variable.handle.consumers()) for variable in _find_variables()
            if getattr(variable, '_keras_initialized', False) and _is_loaded(variable)}
  session = _LazySession(tf.get_default_graph())
  try:
    # The default session is the one that Keras takes.
    with tf.Session.as_default(session):
      yield
    values = _find_set_values(session)
  except tf.errors.FailedPreconditionError as error:
    if error.op is None or error.op.type not in _READS_VALUE:
      raise
    raise UsageError(
        f'While the model was built, the variable {error.op.inputs[0].op.name} was read, which has '
        'no value there: a model that another one takes its weights from is to be made, and '
        'loaded, inside of the model function too, or in the function of KerasModel.') from None
  finally:
    session.close()
  _check_read([variable for variable, number in before.items()
               if any(op.type in _READS_VALUE for op in variable.handle.consumers()[number:])])
  _start_from(values)


class _LazySession:
  """A session on CPUs that is opened when it is asked for anything but its graph."""

  def __init__(self, graph):
    self.graph = graph
    self._opened: Any = None

  @property
  def is_open(self):
    return self._opened is not None

  def __getattr__(self, name):
    if self._opened is None:
      # With GPUs it would take all of their memory: what stands there stands on the host here.
      # Threads of its own, since shared ones are as many for good as the first session asks for.
      config = tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True,
                              use_per_session_threads=True)
      self._opened = tf.Session(graph=self.graph, config=config)
    return getattr(self._opened, name)

  def close(self):
    if self.is_open:
      self._opened.close()
    self._opened = None


def _find_variables():
  return [variable for variable in tf.global_variables() + tf.local_variables()
          if hasattr(variable, 'handle')]


def _is_loaded(variable):
  """Whether values of Python or of a file can be assigned to a variable."""
  return any(
      op.type == 'AssignVariableOp' and op is not variable.initializer
      and any(source.type in ('Placeholder', 'RestoreV2')
              for source in find_needed([op.inputs[1].op]))
      for op in variable.handle.consumers())


def _check_read(variables):
  if variables:
    raise UsageError(
        f'The model reads the variable {variables[0].op.name} and {len(variables) - 1} more that '
        'Keras has set before the towers were built (weights=…, load_weights, set_weights), in a '
        'session of its own, whose values the towers would never see: make the Keras model, and '
        'load it, in the function of KerasModel, or in the model function when that is first '
        'called.')


def _find_set_values(session) -> Dict[Any, Any]:
  """Returns, by variable, the values of those that anything but their initializer sets."""
  if not session.is_open:
    return {}
  for variable in _find_variables():
    # Another session that Keras opens is to initialize them anew.
    variable._keras_initialized = False
  with tf.name_scope(None), tf.name_scope('set_values'):
    may_be_set = [variable for variable in _find_variables()
                  if any(op.type not in _READS and op is not variable.initializer
                         for op in variable.handle.consumers())]
    has_value = session.run([tf.is_variable_initialized(variable) for variable in may_be_set])
    found = [variable for variable, is_there in zip(may_be_set, has_value) if is_there]
    return dict(zip(found, session.run(found)))


def _start_from(values: Dict[Any, Any]) -> None:
  """Replaces the initial values of variables."""
  for variable, value in values.items():
    with tf.name_scope(None), tf.control_dependencies(None), tf.device(HOST):
      loaded = tf.py_func(lambda value=value: value, [], variable.dtype.base_dtype,
                          name=f'set_values/{variable.op.name}')
    loaded.set_shape(variable.shape)
    variable.initializer._update_input(1, loaded)
    variable._initial_value = loaded
