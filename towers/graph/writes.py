"""Writes: the ops that change variables, whoever built them, and when in a step they run.

  variable ──► handle ─┬─► ReadVariableOp, gather …   readers
                       ├─► Switch, Enter … ─► assign  a write in a branch of tf.cond or in a loop
                       └─► If, While, a call          a write if their function holds one

What UPDATE_OPS hold need not be the write itself: the assignment of a resource variable returns a
read that comes after it, and a tf.group, a tf.cond or a control dependency hides it just as well.
So every op that takes a variable counts as a write unless it is known to read.

A write is *early* where a tower's loss or gradients wait for it, as batch normalisation that
updates in place, and *late* where only UPDATE_OPS do.
"""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.graph.walk import find_dependents, find_needed

_VARIABLES = ('VarHandleOp', 'VariableV2', 'Variable')
_READERS = frozenset((
    'ReadVariableOp', 'VarIsInitializedOp', 'VariableShape', 'ResourceGather', 'ResourceGatherNd',
    'DisableCopyOnRead', 'ReadVariableXlaSplitND', 'IsVariableInitialized'))
# What a handle, or a ref variable, goes through unchanged.
_ENTERS = ('Enter', 'RefEnter')
_PASSES = frozenset(_ENTERS + (
    'Identity', 'IdentityN', 'Switch', 'Merge', 'Exit', 'NextIteration', 'RefIdentity', 'RefSwitch',
    'RefMerge', 'RefExit', 'RefNextIteration', 'RefSelect'))


class Write(NamedTuple):
  """An op that changes variables.

  Attributes:
    op: that runs.
    variables: the ops of the variables that it changes; empty for an update of something else.
    entries: the ops that must wait for it to wait: itself, or for one in a loop all ops by which
      values enter the outermost loop, since nothing outside can hold up a single op inside.
  """
  op: Any
  variables: List[Any]
  entries: List[Any]

  def wait_for(self, op: Any) -> None:
    """Makes it run after `op`, and only if that is not dead."""
    for entry in self.entries:
      entry._add_control_input(op)


class StepWrites(NamedTuple):
  """The writes of a step, each in the order of their names.

  Attributes:
    early: that the losses or gradients of towers wait for.
    late: that UPDATE_OPS alone wait for.
  """
  early: List[Write]
  late: List[Write]


def find_step_writes(of_towers: Iterable[Any], update_ops: Iterable[Any] = (),
                     ends: Iterable[Any] = ()) -> StepWrites:
  """Finds what a step writes before its weights are updated.

  Args:
    of_towers: losses and gradients of towers: tensors, IndexedSlices or None.
    update_ops: that run with the step: ops, or what stands for one.
    ends: tensors and ops that need not be part of a tower, and that no late write can be before.
  """
  tower_ops, updates = _find_ops(of_towers), _find_ops(update_ops)
  writes = {write.op: write for write in find_writes(tf.get_default_graph())}
  for op in updates:
    if op not in writes and op.type not in _READERS and op.op_def.is_stateful:
      writes[op] = Write(op, [], [op])
  # From the writes forward: for most nothing waits, and the walk is over; back through a deep net
  # it would take a second.
  after = find_dependents([op for write in writes.values() for op in [write.op] + write.entries])
  in_towers = find_needed(tower_ops, within=after)
  awaited = in_towers | find_needed(_find_ops(ends), within=after)
  updating = find_needed(updates, within=after)
  early: List[Write] = []
  late: List[Write] = []
  for write in sorted(writes.values(), key=lambda write: write.op.name):
    if write.op in in_towers:
      early.append(write)
    elif write.op in updating and write.op not in awaited:
      # A loop that the loss waits for cannot wait for it, though the loss may not need the write.
      (late if awaited.isdisjoint(write.entries) else early).append(write)
  return StepWrites(early, late)


def check_updates(update_ops: Iterable[Any]) -> None:
  """Refuses update ops that nothing can wait for.

  Raises:
    UsageError: names the op and the fix.
  """
  for op in _find_ops(update_ops):
    context = op._get_control_flow_context()
    if context is not None and op.type in ('Exit', 'RefExit'):
      context = context.outer_context  # What a loop returns is there outside.
    if context is not None and context.GetWhileContext() is not None:
      raise UsageError(
          f'The op {op.name} in tf.GraphKeys.UPDATE_OPS is part of a loop, so that no step can '
          'wait for it: let a value that the loop returns wait for it, by tf.control_dependencies, '
          'and put what the loop returns into UPDATE_OPS instead.')


def check_once(writes: StepWrites, *, num_towers: int, accumulates: bool) -> None:
  """Refuses early writes that would run more than once in a step, or that nothing can undo.

  Raises:
    UsageError: names the op, the variable and the fix.
  """
  for write in writes.early:
    for variable in write.variables:
      told = (f'The op {write.op.name} changes the variable {variable.name} while the loss is '
              'computed')
      fix = 'put it into tf.GraphKeys.UPDATE_OPS and let the loss not wait for it'
      if num_towers > 1 or accumulates:
        raise UsageError(
            f'{told}, so that it would run {"for every micro-batch " if accumulates else ""}on '
            f'each of {num_towers} towers in one step, in any order: {fix} (for slim and tf.layers '
            'leave updates_collections at its default), or train with one tower and accumulate=1.')
      if variable.type != 'VarHandleOp':
        raise UsageError(
            f'{told}, and a step that is not finite cannot give a ref variable back what it held: '
            f'make it with use_resource=True, or {fix}.')


def check_replicated(writes: StepWrites) -> None:
  """Refuses writes to trainable variables, of which every tower or worker has a copy.

  Raises:
    UsageError: names the op, the variable and the fix.
  """
  trained = {variable.op.name for variable in tf.trainable_variables()}
  for write in writes.early + writes.late:
    for variable in write.variables:
      if variable.name in trained:
        raise UsageError(
            f'The op {write.op.name} changes the trainable variable {variable.name} on the first '
            'tower of a worker alone, but every tower or worker has a copy of it: make it with '
            'trainable=False, or train with one worker and variables=host, first or balanced.')


def check_measuring(losses: Iterable[Any], is_validating: Any) -> None:
  """Refuses early writes that would run in validation as well.

  Args:
    losses: of towers that train and validate in turn.
    is_validating: the switch between the two.

  Raises:
    UsageError: names the op, the variable and the fix.
  """
  for write in find_step_writes(losses).early:
    if not _is_switched(write.op, is_validating):
      raise UsageError(
          f'The op {write.op.name} changes the variable {write.variables[0].name} whenever the '
          'loss is computed, in validation too: make it inside of tf.cond(is_training, ...), or '
          'put '
          'it into tf.GraphKeys.UPDATE_OPS and let the loss not wait for it.')


def _is_switched(op, switch) -> bool:
  """Whether an op stands in a branch, taken or not as a switch is thrown."""
  preds = [op.inputs[0]] if op.type == 'If' else []
  context = op._get_control_flow_context()
  while context is not None:
    preds += [context.pred] if hasattr(context, 'pred') else []
    context = context.outer_context
  return switch.op in find_needed([pred.op for pred in preds])


def find_writes(graph: Any, variables: Optional[Iterable[Any]] = None) -> List[Write]:
  """Returns every op of a graph that changes a variable, those that no step runs included.

  Args:
    graph: to look through.
    variables: the ops of the variables, or None for all.
  """
  changed: Dict[Any, List[Any]] = {}
  frames: Dict[Any, str] = {}
  if variables is None:
    variables = [op for op in graph.get_operations() if op.type in _VARIABLES]
  for variable in variables:
    for op, frame in _find_writers(variable):
      changed.setdefault(op, []).append(variable)
      frames[op] = frame
  wanted = set(frames.values()) - {''}
  enters: Dict[str, List[Any]] = {frame: [] for frame in wanted}
  for op in graph.get_operations() if wanted else ():
    if op.type in _ENTERS:
      enters.get(_get_frame(op), []).append(op)
  return [Write(op, written, enters.get(frames[op], [op])) for op, written in changed.items()]


def _find_writers(variable):
  """Yields the ops that change a variable, each with the name of its outermost loop, or ''."""
  pending = [(tensor, '') for tensor in variable.outputs]
  seen: Set[Any] = set()
  while pending:
    tensor, frame = pending.pop()
    for op in tensor.consumers():
      if op in seen:
        continue
      seen.add(op)
      is_pass = op.type in _PASSES
      if not is_pass and _changes(op, tensor):
        yield op, frame
      inner = frame or (_get_frame(op) if op.type in _ENTERS else '')
      # A write of a ref variable gives the variable once more.
      pending.extend((output, inner) for output in op.outputs
                     if output.dtype._is_ref_dtype or is_pass and output.dtype == tf.resource)


def _changes(op, tensor):
  """Whether an op that takes a variable by `tensor` changes it."""
  if op.type in _READERS:
    return False
  places = [place for place, value in enumerate(op.inputs) if value is tensor]
  if tensor.dtype._is_ref_dtype:
    return any(op._input_types[place]._is_ref_dtype for place in places)
  functions = _find_functions(op.node_def)
  num_inputs = len(op.inputs)
  return not functions or any(_function_changes(op.graph, name, num_inputs - place)
                              for name in functions for place in places)


def _find_functions(node):
  """Returns the names of the functions that a node calls."""
  return [function.name for value in node.attr.values()
          for function in ([value.func] if value.HasField('func') else value.list.func)]


def _function_changes(graph, name, place):
  """Whether a function changes the variable that it takes as an argument, `place` from the end.

  What a call, a branch or a loop hands on stands last among its inputs.
  """
  function = graph._get_function(name)
  if function is None or place > len(function.definition.signature.input_arg):
    return True
  definition = function.definition
  names = {definition.signature.input_arg[-place].name}
  # In a function's body nodes stand in any order.
  num_names = 0
  while num_names < len(names):
    num_names = len(names)
    names.update(f'{node.name}:output:0' for node in definition.node_def
                 if node.op == 'Identity' and node.input[0] in names)
  for node in definition.node_def:
    inputs = [value for value in node.input if not value.startswith('^')]
    places = [len(inputs) - number for number, value in enumerate(inputs) if value in names]
    if not places or node.op in _READERS or node.op in _PASSES:
      continue
    functions = _find_functions(node)
    if not functions or any(_function_changes(graph, inner, place)
                            for inner in functions for place in places):
      return True
  return False


def _get_frame(op) -> str:
  return op.get_attr('frame_name').decode()


def _find_ops(values: Iterable[Any]) -> List[Any]:
  """Returns the ops of tensors, IndexedSlices, ops and what stands for one; None is left out."""
  graph = tf.get_default_graph()
  ops = []
  for value in values:
    if isinstance(value, tf.IndexedSlices):
      ops += [value.values.op, value.indices.op]
    elif value is not None:
      found = graph.as_graph_element(value, allow_tensor=True, allow_operation=True)
      ops.append(found.op if isinstance(found, tf.Tensor) else found)
  return ops
