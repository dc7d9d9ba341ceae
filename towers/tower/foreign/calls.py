"""Calls of models that bring along what another loop needs: placeholders, and an optimizer.

  placeholder   that nothing feeds: refused if the result needs it, see `placeholders`
  input         of a queue or an iterator of its own: refused if the result needs it
  optimizer     makes neither updates nor slots, since the program's own one trains
  step counter  of such an optimizer: counts the steps of the program; global_step is its own, and
                is there for who asks for it, as Estimator makes it before its model
  session       that the model makes: runs on the host, and what it assigns are first values
"""

import contextlib
import re
from typing import Any, Callable, Dict, Iterator, List, Type

from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.graph.source_lines import format_op
from towers.graph.walk import find_dependents, find_needed, list_ops
from towers.placement.counters import get_global_step
from towers.placement.set_values import READS_VALUE, LazySession
from towers.placement.variables import TOWER_SCOPE
from towers.tensorflow_v1 import (
    BaseSession,
    Graph,
    Operation,
    Optimizer,
    naming_layers,
    replaced,
    tf,
)
from towers.tower.all_towers import leave_out_unfed

# Collections: of each call that goes on the number of the last op before it; of variables that
# follow the step in another dtype; of optimizers that models make their classes' names.
_BEGUN = 'towers/begun_calls'
_FOLLOWERS = 'towers/step_followers'
IDLE_OPTIMIZERS = 'towers/idle_optimizers'
_TAKES_EXAMPLES = re.compile('IteratorGetNext|QueueDequeue|ReaderRead')
# What takes a class that makes a graph.
OWN_GRAPH = ('make all inside of the model, and a class that makes a tf.Graph() for itself within '
             "unittest.mock.patch('tensorflow.Graph', tf.get_default_graph)")


def call_as_is(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
  """Returns what a model, or a function of a batch, returns.

  Raises:
    UsageError: it needs a placeholder that nothing feeds, examples that are not of the batch, its
      own optimizer, or a session.
  """
  graph = tf.get_default_graph()
  before = graph.get_operations()
  graph.add_to_collection(_BEGUN, before[-1]._id if before else -1)
  try:
    with _idle_optimizers(graph) as idle, _joined_sessions(graph), _making_step(graph), \
        naming_layers(graph), tf.variable_creator_scope(_give_step), tf.variable_scope(
            tf.get_variable_scope(), custom_getter=_get_step, auxiliary_name_scope=False):
      returned = function(*args, **named)
  except tf.errors.OpError as error:
    if error.op is not None and error.op.type in READS_VALUE and is_made_before(error.op):
      raise UsageError(
          f'While the model was built, it read the variable {error.op.inputs[0].op.name}, which '
          'has no value there: if a model takes its weights from another one, make and load that '
          'one too inside of the model function, or in the function of KerasModel.') from None
    raise UsageError(
        'The model runs a session of its own, which failed: it has no batch, and the values of '
        'this call alone. Make the class without session.run, as program.session() runs all. '
        f'TensorFlow says: {find_reason(error)}') from error
  finally:
    graph.get_collection_ref(_BEGUN).pop()
  values = tf.nest.flatten(returned, expand_composites=True)
  for value in values:
    if getattr(value, 'graph', graph) is not graph:
      raise UsageError(f'The model returns {value!r}, which is of another graph: {OWN_GRAPH}.')
  placeholders = [op for op in graph.get_operations()[len(before):] if op.type == 'Placeholder']
  tensors = [*filter(tf.is_tensor, values)]
  _check_sources(tensors, tf.nest.flatten([args, named], expand_composites=True))
  if placeholders or idle:
    _check([*tensors, *tf.get_collection(tf.GraphKeys.UPDATE_OPS)], placeholders, idle)
  leave_out_unfed(placeholders)
  return returned


def is_made_before(op: Operation) -> bool:
  """Returns whether an op was made before the call of the model that goes on, if one does."""
  graph = tf.get_default_graph()
  begun = graph.get_collection(_BEGUN)
  return bool(begun) and (op.graph is not graph or op._id <= begun[-1])


@contextlib.contextmanager
def _idle_optimizers(graph: Graph) -> Iterator[Dict[Operation, str]]:
  """Keeps optimizers from updating a graph; yields the ops they return, with their names."""
  idle: Dict[Operation, str] = {}

  def stand_in_for(method):
    def act(optimizer, *args, **named):
      # Another thread may build another program.
      if tf.get_default_graph() is not graph:
        return method(optimizer, *args, **named)
      step = named.get('global_step', args[1] if len(args) > 1 else None)
      steps = tf.get_collection(tf.GraphKeys.GLOBAL_STEP) + tf.get_collection(_FOLLOWERS)
      if step is not None and not any(step is own for own in steps):
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(step, 1))
      op, name = tf.no_op('idle_optimizer'), type(optimizer).__name__
      tf.add_to_collection(IDLE_OPTIMIZERS, name)
      idle[op] = name
      return op

    return act

  with replaced(*((kind, name, stand_in_for(vars(kind)[name])) for kind in _list_kinds(Optimizer)
                  for name in ('minimize', 'apply_gradients') if name in vars(kind))):
    yield idle


@contextlib.contextmanager
def _joined_sessions(graph: Graph) -> Iterator[None]:
  """Runs what a model runs in sessions of its own, which lack devices, in one on the host."""
  session, run = tf.get_default_session(), BaseSession.run
  with contextlib.ExitStack() as stack:
    if not isinstance(session, LazySession):
      session = stack.enter_context(contextlib.closing(LazySession(graph)))

    def run_joined(own, *args, **named):
      if own.graph is not graph or own is session.opened or tf.get_default_graph() is not graph:
        return run(own, *args, **named)
      return session.run(*args, **named)

    stack.enter_context(replaced((BaseSession, 'run', run_joined)))
    yield


@contextlib.contextmanager
def _making_step(graph: Graph) -> Iterator[None]:
  """Makes the global step of a graph where `tf.train.get_global_step` looks for it."""
  get_collection = graph.get_collection
  made: List[str] = []

  def make_and_get(name, scope=None):
    found = get_collection(name, scope)
    if name == tf.GraphKeys.GLOBAL_STEP and not (found or made):
      made.append(name)  # What makes it looks for it too.
      found = [get_global_step()]
    return found

  with replaced((graph, 'get_collection', make_and_get)):
    yield


def _give_step(next_creator, **settings):
  """Gives a model that makes a `global_step` by itself that of the program; a variable creator."""
  scope = tf.get_default_graph().get_name_scope()
  name = re.sub(f'^({TOWER_SCOPE}|/)', '', f"{scope or ''}/{settings.get('name')}")
  if not _is_step(name, settings):
    return next_creator(**settings)
  value = settings['initial_value']
  dtype = tf.convert_to_tensor(value() if callable(value) else value, settings.get('dtype')).dtype
  return _follow_step(dtype.base_dtype, lambda name: next_creator(**dict(settings, name=name)))


def _get_step(getter, name, *args, **settings):
  """Does so for `tf.get_variable`, which would find one of another dtype; a custom getter."""
  if not _is_step(name, settings):
    return getter(name, *args, **settings)
  value = settings.get('initializer')
  dtype = settings.get('dtype') if value is None or callable(value) else (
      tf.convert_to_tensor(value).dtype)
  return _follow_step(tf.as_dtype(dtype).base_dtype,
                      lambda name: getter(name, *args, **settings))


def _follow_step(dtype, make):
  """Returns the step of the program, or one that follows it, of the dtype that a model asks for."""
  step = get_global_step()
  if dtype == step.dtype.base_dtype:
    return step
  follower = make(f'global_step_{dtype.name}')
  tf.add_to_collection(_FOLLOWERS, follower)
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, follower.assign(
      tf.cast(step.read_value() + 1, dtype)))
  return follower


def _is_step(name, settings):
  return (name == 'global_step' and settings.get('trainable') is False
          and tf.GraphKeys.GLOBAL_STEP not in (settings.get('collections') or ()))


def _list_kinds(kind: Type[Any]) -> List[Type[Any]]:
  """Returns a class and all that are derived from it."""
  return list(dict.fromkeys([kind, *(
      inner for derived in kind.__subclasses__() for inner in _list_kinds(derived))]))


def _check(results, placeholders, idle):
  """Refuses results that need a placeholder, or wait for an idle optimizer."""
  needed = find_needed(list_ops(results), within=find_dependents([*idle, *placeholders]))
  for op in filter(needed.__contains__, idle):
    raise UsageError(
        f'What the model returns, or puts into UPDATE_OPS, waits for an update by its own '
        f'{idle[op]}, which is not used: give the optimizer to towers.Program, and let nothing '
        'wait for it; average_weights=0.999 averages weights.')
  for op in filter(needed.__contains__, placeholders):
    raise UsageError(
        f'What the model returns, or puts into UPDATE_OPS, needs the placeholder {format_op(op)}, '
        'which nothing feeds: return towers.fed({placeholder: batch[0], …}, losses).')


def _check_sources(tensors, given):
  """Refuses what a model returns if it needs examples that are not of what it is given."""
  of_batch = find_needed(list_ops(filter(tf.is_tensor, given)))
  # What fills a queue by itself takes rows of the batch.
  sources = [op for op in tf.get_default_graph().get_operations()
             if _TAKES_EXAMPLES.match(op.type) and op not in of_batch
             and not any('Enqueue' in source.type for source in find_needed([op]))]
  needed = find_needed(list_ops(tensors), within=find_dependents(sources))
  for op in filter(needed.__contains__, sources):
    raise UsageError(
        f'What the model returns needs {format_op(op)}, which takes examples by itself, so that '
        'towers would not share them, and none counts: give its files to towers.from_tfrecords or '
        'its data set to towers.from_dataset, and take the batch.')
