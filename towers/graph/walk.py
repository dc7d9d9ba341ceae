"""Walks over a graph: what an op needs, what needs it, what may not run, and what it calls."""

from typing import Any, Container, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from towers.tensorflow_v1 import Operation, Tensor, tf


def list_sources(op: Operation) -> List[Operation]:
  """Returns the ops that an op waits for, by inputs and control inputs."""
  return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def find_needed(roots: Iterable[Operation], by_control: bool = True,
                within: Optional[Container[Operation]] = None,
                without: Container[Operation] = ()) -> Set[Operation]:
  """Returns the roots and all ops that they need.

  Args:
    by_control: whether by control inputs too, not by inputs alone.
    within: the only ops to walk through: an op's dependents, to ask whether a root needs the op.
    without: ops that are left out, with all that is needed through them alone.
  """
  def list_inputs(op):
    return [tensor.op for tensor in op.inputs]

  return set(walk(roots, list_sources if by_control else list_inputs, within, without))


def find_dependents(ops: Iterable[Operation], by_control: bool = True,
                    within: Optional[Container[Operation]] = None,
                    without: Container[Operation] = ()) -> Set[Operation]:
  """Returns `ops` and all ops that need any of them.

  Args:
    by_control: whether to follow control inputs too, not inputs alone.
    within, without: as for `find_needed`.
  """
  def list_readers(op):
    readers = [reader for tensor in op.outputs for reader in tensor.consumers()]
    return readers + op._control_outputs if by_control else readers

  return set(walk(ops, list_readers, within, without))


def walk(roots: Iterable[Any], follow: Any, within: Optional[Container[Any]] = None,
         without: Container[Any] = (), nearest_first: bool = False) -> Iterable[Any]:
  """Returns the roots, and all to which `follow(node)` leads from them, by default depth first."""
  found: Dict[Any, None] = {}
  pending = list(roots)
  while pending:
    node = pending.pop(0 if nearest_first else -1)
    if node not in found and node not in without and (within is None or node in within):
      found[node] = None
      pending.extend(follow(node))
  return found


def sort(ops: Set[Operation]) -> List[Operation]:
  """Returns ops in an order in which they can run, and as near as can be to that in the graph.

  Stateless twins of random ops are made after the ops that take them. What leads back to the
  beginning of a loop comes before the turn that it ends.
  """
  order: Dict[Operation, None] = {}
  begun: Set[Operation] = set()
  for root in sorted(ops, key=lambda op: op._id):
    pending = [root]
    while pending:
      op = pending[-1]
      if op not in begun:
        begun.add(op)
        if not op.type.endswith('NextIteration'):
          pending += [source for source in list_sources(op)
                      if source in ops and source not in begun]
      else:
        pending.pop()
        order.setdefault(op)
  return list(order)


def find_dead(ops: Sequence[Operation]) -> Set[Operation]:
  """Returns the ops of branches and loops, which may not run, or run often; `ops` are in order."""
  dead: Set[Operation] = set()
  for op in ops:
    is_inside = op._get_control_flow_context() is not None
    if op.type != 'Exit' and (is_inside or op.type == 'Switch' or op.type != 'Merge' and any(
        tensor.op in dead for tensor in op.inputs)):
      dead.add(op)
  return dead


def find_loops(op: Operation) -> List[Any]:
  """Returns the contexts of the loops around an op, as of `tf.while_loop`, the outermost first."""
  loops: List[Any] = []
  context = op._get_control_flow_context()
  while context is not None and context.GetWhileContext() is not None:
    loops.insert(0, context.GetWhileContext())
    context = loops[0].outer_context
  return loops


def list_branches(context: Any) -> List[Any]:
  """Returns the contexts of the branches of `tf.cond` around a context, the innermost first."""
  branches: List[Any] = []
  while context is not None:
    branches += [context] if hasattr(context, 'pred') else []
    context = context.outer_context
  return branches


def find_taken_apart(loop: Any) -> List[Tensor]:
  """Returns the tensors of which the turns of a loop read the rows."""
  graph = tf.get_default_graph()
  return [consumer.inputs[2] for name in loop._external_values
          for consumer in graph.get_tensor_by_name(name).consumers()
          if consumer.type == 'TensorArrayScatterV3']


def find_called(graph: Any, node: Any) -> List[str]:
  """Returns the names of the graph's functions that a node calls."""
  functions = [function for value in node.attr.values()
               for function in [value.func, *value.list.func]]
  return [name for name in [node.op, *(function.name for function in functions)]
          if name and graph._is_function(name)]


def walk_called(graph: Any, node: Any) -> Iterator[Tuple[str, Any]]:
  """Yields the nodes of all functions that a node calls, each after its function's name."""
  pending, seen = find_called(graph, node), set()
  while pending:
    name = pending.pop()
    if name not in seen:
      seen.add(name)
      for inner in graph._get_function(name).definition.node_def:
        yield name, inner
        pending += find_called(graph, inner)


def list_ops(values: Iterable[Any]) -> List[Operation]:
  """Returns the ops of tensors, IndexedSlices, ops and what a graph takes for one; skips None."""
  graph = tf.get_default_graph()
  ops = []
  for value in values:
    if isinstance(value, tf.IndexedSlices):
      ops += [value.values.op, value.indices.op]
    elif value is not None:
      found = graph.as_graph_element(value, allow_tensor=True, allow_operation=True)
      ops.append(found.op if isinstance(found, tf.Tensor) else found)
  return ops
