"""Writes: the ops that change variables, and when in a step they run.

  variable ──► handle ─┬─► ReadVariableOp, gather …   readers
                       ├─► Switch, Enter … ─► assign  a write in a branch of tf.cond or in a loop
                       └─► If, While, a call          a write if their function has one

An op in UPDATE_OPS need not be the write itself: the assignment of a resource variable returns a
read after it, and a tf.group, a tf.cond or a control dependency hides it just as well. So every op
that takes a variable counts as a write unless it is known to read.

A write is *early* if a tower's loss or gradients wait for it, as for batch normalisation that
updates in place, and *late* if only UPDATE_OPS do.
"""

import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from towers.base.usage_error import UsageError
from towers.graph.source_lines import format_op
from towers.graph.walk import (
  find_called,
  find_dependents,
  find_loops,
  find_needed,
  list_branches,
  list_ops,
)
from towers.tensorflow_v1 import Gradient, Graph, Operation, Tensor, Variable, tf

VARIABLES = ('VarHandleOp', 'VariableV2', 'Variable')
# Ops that take a variable and do not change it.
READERS = frozenset((
    'ReadVariableOp', 'VarIsInitializedOp', 'VariableShape', 'ResourceGather', 'ResourceGatherNd',
    'DisableCopyOnRead', 'ReadVariableXlaSplitND', 'IsVariableInitialized'))
# How the types of ops begin that change a variable and call no function.
_PLAIN = ('Assign', 'Resource')
# Ops that pass a handle, or a ref variable, on unchanged.
_ENTERS = ('Enter', 'RefEnter')
_PASSES = frozenset(_ENTERS + (
    'Identity', 'IdentityN', 'Switch', 'Merge', 'Exit', 'NextIteration', 'RefIdentity', 'RefSwitch',
    'RefMerge', 'RefExit', 'RefNextIteration', 'RefSelect'))

# Ops that put into what each tower has for itself, and ops that take from it.
_FILLS = re.compile(
    'LookupTable(Insert|Import|Remove)|Queue(Enqueue|Dequeue)|(Resource)?AccumulatorApply')


class Write(NamedTuple):
  """An op that changes variables.

  Attributes:
    op: the write.
    variables: the ops of the variables that it changes; empty if it changes something else.
    entries: the ops that make the write wait if they wait: the write itself or, for one in a loop,
      all Enter ops of the outermost loop, since no op inside can wait for one outside.
  """
  op: Operation
  variables: List[Operation]
  entries: List[Operation]

  def wait_for(self, op: Operation) -> None:
    """Makes the write run after `op`, and only if `op` is not dead."""
    for entry in self.entries:
      entry._add_control_input(op)


class StepWrites(NamedTuple):
  """The early and late writes of a step, by name."""
  early: List[Write]
  late: List[Write]


def find_step_writes(of_towers: Iterable[Optional[Gradient]], update_ops: Iterable[Any] = (),
                     ends: Iterable[Any] = ()) -> StepWrites:
  """Finds what a step writes before its weights are updated.

  Args:
    of_towers: losses and gradients of towers.
    update_ops: of the step: ops, or objects that a graph takes for ops.
    ends: tensors and ops, of towers or not, that no late write can precede.
  """
  tower_ops, updates = list_ops(of_towers), list_ops(update_ops)
  writes = {write.op: write for write in find_writes(tf.get_default_graph())}
  for op in updates:
    if op not in writes and op.type not in READERS and op.op_def.is_stateful:
      writes[op] = Write(op, [], [op])

  # A walk from the writes forward ends soon, since nothing waits for most of them. A walk back
  # through a deep net would take a second.
  after = find_dependents([op for write in writes.values() for op in [write.op] + write.entries])
  in_towers = find_needed(tower_ops, within=after)
  awaited = in_towers | find_needed(list_ops(ends), within=after)
  updating = find_needed(updates, within=after)

  early: List[Write] = []
  late: List[Write] = []
  for write in sorted(writes.values(), key=lambda write: write.op.name):
    if write.op in in_towers:
      early.append(write)
    elif write.op in updating and write.op not in awaited:
      # A loop that the loss waits for cannot wait for the loss, even if this needs no write in it.
      (late if awaited.isdisjoint(write.entries) else early).append(write)
  return StepWrites(early, late)


def check_updates(update_ops: Iterable[Any]) -> None:
  """Raises UsageError for update ops inside of loops, for which nothing outside can wait."""
  for op in list_ops(update_ops):
    loops = find_loops(op)
    # A loop's results are outside of it.
    if len(loops) > 1 or loops and op.type not in ('Exit', 'RefExit'):
      raise UsageError(
          f'An op in tf.GraphKeys.UPDATE_OPS is part of a loop, {format_op(op)}, so that no step '
          'can wait for it: make a result of the loop wait for it, by tf.control_dependencies, and '
          'put that result into UPDATE_OPS instead. Or, if nothing reads what it writes, take it '
          'out in the model function, by tf.get_collection_ref(tf.GraphKeys.UPDATE_OPS).remove.')


def check_once(writes: StepWrites, *, num_towers: int, accumulates: bool) -> None:
  """Raises UsageError for early writes that would run more than once in a step."""
  often = 'for every micro-batch ' if accumulates else ''
  for write in writes.early if num_towers > 1 or accumulates else ():
    for variable in write.variables:
      raise UsageError(
          f'The op {write.op.name} changes the variable {variable.name} while the loss is '
          f'computed, so that it would run {often}on each of {num_towers} towers in one step, in '
          'any order: put it into tf.GraphKeys.UPDATE_OPS and do not let the loss wait for it (for '
          'slim and tf.layers leave updates_collections at its default). Or compute what it '
          'writes from the examples of all towers, by x = towers.all_rows(x) for their rows x, or '
          'by towers.all_sum: then it is put there by itself. Or train with one tower and '
          'accumulate=1.')


def check_held(update_ops: Iterable[Any], of_towers: Iterable[Optional[Gradient]]) -> None:
  """Raises UsageError for update ops of several towers or micro-batches that fill a table or queue.

  What `of_towers` needs, losses and gradients, is filled in each tower, from its own examples.
  """
  fills = [op for op in tf.get_default_graph().get_operations() if _FILLS.match(op.type)]
  after = find_dependents(fills)
  for op in find_needed(list_ops(update_ops), within=after) - find_needed(
      list_ops(of_towers), within=after):
    if op in fills:
      raise UsageError(
          f'An op in tf.GraphKeys.UPDATE_OPS fills or empties a table or a queue, {format_op(op)}: '
          'with examples of the first tower in the last micro-batch alone, which no other tower '
          'sees. Keep the values in a variable with trainable=False, and write the rows of all, '
          'towers.all_rows(x). Or train with one tower and accumulate=1.')


def check_replicated(writes: StepWrites) -> None:
  """Raises UsageError for writes to trainable variables, if each tower or worker has a replica."""
  trained = {variable.op.name for variable in tf.trainable_variables()}
  for write in writes.early + writes.late:
    for variable in write.variables:
      if variable.name in trained:
        raise UsageError(
            f'The op {write.op.name} changes the trainable variable {variable.name} on the first '
            'tower of a worker alone, but every tower or worker has a replica of it: make it with '
            'trainable=False, or train with one worker and variables=host, first or balanced.')


def check_measuring(measured: Iterable[Tensor], is_validating: Optional[Tensor]) -> None:
  """Raises UsageError for early writes that would run in validation too.

  What is `measured` are sums of losses and metrics, of towers that train and validate in turn, as
  the placeholder `is_validating` says, or, if that is None, that only validate.
  """
  for write in find_step_writes(measured).early:
    if is_validating is None or not _is_switched(write.op, is_validating):
      raise UsageError(
          f'The op {write.op.name} changes the variable {write.variables[0].name} whenever the '
          'loss or a metric is computed, in validation too: make it inside of '
          'tf.cond(is_training, ...), or put it into tf.GraphKeys.UPDATE_OPS and do not let the '
          'loss wait for it. A metric is a value per example without a total of its own, as those '
          'of tf.metrics have.')


def _is_switched(op, switch) -> bool:
  """Returns whether an op is in a branch of a condition that depends on the switch."""
  preds = [op.inputs[0]] if op.type == 'If' else []
  preds += [branch.pred for branch in list_branches(op._get_control_flow_context())]
  return switch.op in find_needed([pred.op for pred in preds])


def brings_values(op: Operation) -> bool:
  """Returns whether an op brings values into a graph that are no variable's: fed, drawn, taken."""
  return op.type == 'Placeholder' or op.type.startswith('Stateless') or (
      op.op_def.is_stateful and bool(op.outputs) and op.type not in (*READERS, *VARIABLES))


def find_left_out(sums: Iterable[Tensor], updates: Iterable[Any],
                  variables: Iterable[Variable]) -> List[str]:
  """Returns the names of variables that are meant to be written in every step, which none does.

  A write is meant to if what it writes moves, as batches and weights do, or if the loss reads the
  variable. Others are run by hand, as those of a learning rate: what is computed from a constant,
  from the variable itself or, even where the loss reads it, from a placeholder. Of a weight, which
  the optimizer moves, only what is computed from itself is meant to, as where it decays. An
  initializer is none, nor is what a `tf.train.Saver` makes.

  Args:
    sums: of the loss and the metrics of a tower.
    updates: that run with a step.
    variables: of the model, those that are trained among them.
  """
  trained = {variable.handle.op for variable in variables if variable.trainable}
  initializers = {variable.handle.op: variable.initializer for variable in variables}
  writes = [write for write in find_writes(tf.get_default_graph(), initializers)
            if write.op not in initializers.values()]
  sums = list_ops(sums)
  needed = find_needed([*sums, *list_ops(updates)],
                       within=find_dependents([write.op for write in writes]))
  moved = {op for write in writes if write.op in needed for op in write.variables}
  left = [write for write in writes if not moved.issuperset(write.variables)]
  read = find_needed(sums, within=find_dependents({op for write in left for op in write.variables}))

  def is_meant(write):
    values = [tensor.op for tensor in write.op.inputs
              if not (tensor.dtype._is_ref_dtype or tensor.dtype == tf.resource)]
    sources = find_needed(values, by_control=False)
    types = {source.type for source in sources}
    is_by_hand = 'Placeholder' in types
    if not trained.isdisjoint(write.variables):
      return not (is_by_hand or sources.isdisjoint(write.variables))
    return 'RestoreV2' not in types and (
        any(source in trained or source in moved or
            source.type != 'Placeholder' and brings_values(source) for source in sources) or
        not is_by_hand and not read.isdisjoint(write.variables))

  return list(dict.fromkeys(op.name for write in left if is_meant(write)
                            for op in write.variables if op not in moved))


def find_writes(graph: Graph, variables: Optional[Iterable[Operation]] = None) -> List[Write]:
  """Returns every op of a graph that changes one of the variables, even if no step runs it.

  The variables are ops; None for any.
  """
  changed: Dict[Any, List[Any]] = {}
  frames: Dict[Any, str] = {}
  if variables is None:
    variables = [op for op in graph.get_operations() if op.type in VARIABLES]
  for variable in variables:
    for op, frame in _find_writers(variable):
      changed.setdefault(op, []).append(variable)
      frames[op] = frame
  enters: Dict[str, List[Any]] = {}
  for op in graph.get_operations() if any(frames.values()) else ():
    if op.type in _ENTERS:
      enters.setdefault(_get_frame(op), []).append(op)
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
      # A write of a ref variable returns the variable.
      pending.extend((output, inner) for output in op.outputs
                     if output.dtype._is_ref_dtype or is_pass and output.dtype == tf.resource)


def _changes(op, tensor):
  """Returns whether an op that takes a variable by `tensor` changes it."""
  if op.type in READERS:
    return False
  indices = [index for index, value in enumerate(op.inputs) if value is tensor]
  if tensor.dtype._is_ref_dtype:
    return any(op._input_types[index]._is_ref_dtype for index in indices)
  # A NodeDef takes its time, so not for the ops of assignments and optimizers.
  functions = [] if op.type.startswith(_PLAIN) else find_called(op.graph, op.node_def)
  num_inputs = len(op.inputs)
  return not functions or any(_function_changes(op.graph, name, num_inputs - index)
                              for name in functions for index in indices)


def _function_changes(graph, name, from_end):
  """Returns whether a function changes the variable that is its argument `from_end` from the end.

  From the end, since the arguments that a call, a branch or a loop passes on are its last inputs.
  """
  definition = graph._get_function(name).definition
  if from_end > len(definition.signature.input_arg):
    return True
  names = {definition.signature.input_arg[-from_end].name}
  # The nodes of a function's body are in no particular order.
  num_names = 0
  while num_names < len(names):
    num_names = len(names)
    names.update(f'{node.name}:output:0' for node in definition.node_def
                 if node.op == 'Identity' and node.input[0] in names)
  for node in definition.node_def:
    inputs = [value for value in node.input if not value.startswith('^')]
    uses = [len(inputs) - index for index, value in enumerate(inputs) if value in names]
    if not uses or node.op in READERS or node.op in _PASSES:
      continue
    functions = find_called(graph, node)
    if not functions or any(_function_changes(graph, inner, use)
                            for inner in functions for use in uses):
      return True
  return False


def _get_frame(op) -> str:
  return op.get_attr('frame_name').decode()
