"""Input check: whether a graph loses batches at a switch, or gives several towers the same one.

Such graphs run, and no loss shows the fault. So the check reads the graph, of any program:

  1. An op that takes a batch (`get_next`, the `get` of a staging area, a queue's `dequeue`) must be
     inside of the branch of `tf.cond` that uses it. For each switch and both of its values the
     check follows which ops run, and from which of them the run's results are made. An op that
     takes a batch and is not one of the latter loses it.
  2. Towers must compute on examples of their own. Two tensors are the same function of the input if
     the same ops make them from the same batches. Variables of the same shape count as the same,
     and so do all random numbers, since neither makes one example into another.

The check does not find towers that take the same examples from iterators of their own, since the
graph does not show them.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

from towers.graph.source_lines import format_op
from towers.graph.walk import find_needed
from towers.input.pipeline import GET_NEXTS
from towers.tensorflow_v1 import Operation, Tensor, tf

_TAKES = GET_NEXTS + (
    'IteratorGetNextAsOptional', 'Unstage', 'MapUnstage', 'OrderedMapUnstage', 'QueueDequeueV2',
    'QueueDequeueManyV2', 'QueueDequeueUpToV2', 'ReaderReadV2')
# They keep a batch for a later run.
_PUTS = ('Stage', 'MapStage', 'OrderedMapStage', 'QueueEnqueueV2', 'QueueEnqueueManyV2')
_SWITCHES = ('Switch', 'RefSwitch')
_MERGES = ('Merge', 'RefMerge')
_IFS = ('If', 'StatelessIf')
_VARIABLES = ('VarHandleOp', 'VariableV2')
# Where an op is placed, or which random numbers it draws, is no part of what it computes.
_OTHER_ATTRIBUTES = ('_class', '_output_shapes', 'seed', 'seed2', 'shared_name', 'container',
                     'debug_name', 'frame_name')


class _Case(NamedTuple):
  """A switch in one position: `pred` is `value` in a run."""
  pred: Tensor
  value: bool


def check_inputs(towers: Sequence[Tensor], fetches: Any = ()) -> List[str]:
  """Finds batches that are lost at a switch, and towers on the same examples; runs nothing.

  Args:
    towers: for each tower a tensor that it computes from its batch, such as its loss, and from no
      other tower.
    fetches: what else a run fetches: the update, the put ops of staging areas.

  Returns:
    A sentence for each fault, with the line of the program and the fix.
  """
  values = tf.nest.flatten([list(towers), fetches])
  roots = [_get_op(value) for value in values if value is not None]
  ops = _reach_back(roots)
  takes = [op for op in ops if op.type in _TAKES]
  made_of = _follow(ops, takes)
  return _find_lost(ops, roots, takes, made_of) + _find_shared(ops, towers, made_of)


def _get_op(value):
  return value if isinstance(value, tf.Operation) else tf.convert_to_tensor(value).op


def _reach_back(roots):
  """Returns the ops that the roots need, in the graph's order."""
  needed = find_needed(roots)
  return [op for op in roots[0].graph.get_operations() if op in needed] if roots else []


def _follow(ops, takes):
  """Returns, for each op that computes with a batch, an op that takes this batch."""
  made_of: Dict[Operation, Operation] = {op: op for op in takes}
  uses: Dict[Operation, List[Operation]] = {}
  for op in ops:
    for tensor in op.inputs:
      uses.setdefault(tensor.op, []).append(op)
  pending = list(takes)
  while pending:
    source = pending.pop(0)
    for op in uses.get(source, []):
      if op not in made_of:
        made_of[op] = made_of[source]
        pending.append(op)
  return made_of


def _find_lost(ops, roots, takes, made_of):
  """Returns a sentence for each op that takes a batch in a run that does not use it."""
  found: Dict[Operation, _Case] = {}
  for case in _find_cases(ops, made_of):
    live, ran = _run(ops, case)
    kept = [op for op in ops if op.type in _PUTS]
    used = _use(roots + kept, live, ran, case)
    for take in takes:
      if take in ran and take not in used:
        found.setdefault(take, case)
  return [f'{format_op(take)}, takes a batch also where {case.pred.op.name} is {case.value}, and '
          'nothing uses it: the batch is lost. Make the op inside of the branch that needs it: '
          'tf.cond(…, lambda: iterator.get_next(), …).' for take, case in found.items()]


def _find_cases(ops, made_of):
  """Returns both positions of each switch that values of a batch go through."""
  preds = {}
  for op in ops:
    if op.type in _SWITCHES and op.inputs[0].op in made_of:
      pred, _ = _trace(op.inputs[1])
    elif op.type in _IFS and any(tensor.op in made_of for tensor in list(op.inputs)[1:]):
      pred, _ = _trace(op.inputs[0])
    else:
      continue
    # A loop's condition, or a constant one, is no switch.
    if pred.op.type != 'LoopCond' and not _is_constant(pred):
      preds[pred.name] = pred
  return [_Case(pred, value) for pred in preds.values() for value in (False, True)]


def _is_constant(tensor):
  return all(op.type == 'Const' or (op.inputs and op.type != 'PlaceholderWithDefault')
             for op in _reach_back([tensor.op]))


def _trace(pred) -> Tuple[Any, bool]:
  """Returns the tensor that a condition comes from, and whether it is its negation."""
  negated = False
  while pred.op.type in ('Identity', 'LogicalNot') + _SWITCHES:
    negated ^= pred.op.type == 'LogicalNot'
    pred = pred.op.inputs[0]
  return pred, negated


def _decide(pred, case):
  """Returns what a condition is in a case, or None where that is open."""
  root, negated = _trace(pred)
  return case.value ^ negated if root.name == case.pred.name else None


def _run(ops, case):
  """Returns the names of the tensors that are computed in a case, and the ops that run.

  All ops run, except those that wait for an input of the branch that is not taken.
  """
  live: Set[str] = set()
  ran: Set[Operation] = set()
  waiting = {op: set(op.control_inputs) | {tensor.name for tensor in op.inputs} for op in ops}
  waited_for: Dict[Any, List[Any]] = {}
  for op, needs in waiting.items():
    for need in needs:
      waited_for.setdefault(need, []).append(op)
  pending = [op for op in ops if not waiting[op]]
  while pending:
    op = pending.pop()
    if op in ran:
      continue
    ran.add(op)
    chosen = _decide(op.inputs[1], case) if op.type in _SWITCHES else None
    outputs = op.outputs if chosen is None else [op.outputs[int(chosen)]]
    live.update(tensor.name for tensor in outputs)
    for done in [op] + [tensor.name for tensor in outputs]:
      for other in waited_for.get(done, []):
        waiting[other].discard(done)
        if not waiting[other] or (other.type in _MERGES and not isinstance(done, tf.Operation)):
          pending.append(other)
  return live, ran


def _use(roots, live, ran, case):
  """Returns the ops that a run's results, or what it keeps, need in a case."""
  used: Set[Operation] = set()
  pending = [op for op in roots if op in ran]
  while pending:
    op = pending.pop()
    if op not in used:
      used.add(op)
      inputs = list(op.inputs)
      chosen = _decide(inputs[0], case) if op.type in _IFS else None
      if chosen is not None:
        inputs = inputs[:1] + _used_by_branch(op, 'then_branch' if chosen else 'else_branch')
      pending.extend(tensor.op for tensor in inputs if tensor.name in live)
      pending.extend(other for other in op.control_inputs if other in ran)
  return used


def _used_by_branch(op, branch):
  """Returns the inputs that one branch uses; in 2.x's control flow it is a function."""
  name = op.get_attr(branch).name
  functions = op.graph.as_graph_def().library.function
  [function] = [function for function in functions if function.signature.name == name]
  named = {source.lstrip('^').split(':')[0] for node in function.node_def for source in node.input}
  named.update(source.split(':')[0] for source in function.ret.values())
  return [tensor for tensor, argument in zip(list(op.inputs)[1:], function.signature.input_arg)
          if argument.name in named]


def _find_shared(ops, towers, made_of):
  """Returns a sentence for each group of towers that are one function of the input."""
  tensors = [tf.convert_to_tensor(tower) for tower in towers]
  numbers = _number(ops)
  groups: Dict[Any, List[int]] = {}
  for tower, tensor in enumerate(tensors):
    if tensor.op in made_of:
      groups.setdefault((numbers[tensor.op], tensor.value_index), []).append(tower)
  return [f"Towers {', '.join(map(str, group[:-1]))} and {group[-1]} compute on the same examples, "
          f"taken by {format_op(made_of[tensors[group[0]].op])}: they do the work of one. Split "
          "the batch with tf.split, or call get_next once for each tower."
          for group in groups.values() if len(group) > 1]


def _number(ops):
  """Returns a number for each op, equal for two that compute the same function of the input.

  In the graph's order an op may precede its inputs, in loops. Such inputs count as the same, until
  another round finds that they differ.
  """
  described = {op: _describe(op) for op in ops}
  before: Dict[Operation, int] = {}
  while True:
    known: Dict[Any, int] = {}
    numbers: Dict[Operation, int] = {}
    for op in ops:
      # Such an op is like no other, even if both look the same.
      is_itself = op.type in _TAKES or (not op.inputs and op.type not in ('Const',) + _VARIABLES)
      inputs = tuple((numbers.get(tensor.op, ('late', before.get(tensor.op))), tensor.value_index)
                     for tensor in op.inputs)
      # What a round has told apart stays apart.
      key: Any = op if is_itself else (op.type, described[op], inputs, before.get(op))
      numbers[op] = known.setdefault(key, len(known))
    if len(known) == len(set(before.values())):
      return numbers
    before = numbers


def _describe(op):
  """Returns the attributes of an op that decide what it computes."""
  return tuple(sorted((name, value.SerializeToString()) for name, value in op.node_def.attr.items()
                      if name not in _OTHER_ATTRIBUTES))
