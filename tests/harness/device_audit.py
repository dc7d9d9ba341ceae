"""The device audit: what a step would do on GPUs, read from the graph and TensorFlow's kernels.

TensorFlow's library registers the kernels of GPUs whether there is a GPU or not. A kernel also says
which of its inputs and outputs are in the host's memory though it runs on a GPU, such as shapes,
predicates and all of an int32 `Merge`. So the graph tells which tensors are copied in a step:
those whose kernel puts them into another memory than that from which the next one takes them.
Ops on the untaken side of a switch are dead: they run nothing and copy nothing.
"""

import functools
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

from tensorflow.python.framework import kernels

from towers.graph.walk import find_needed
from towers.tensorflow_v1 import Operation, Tensor, tf

HOST = 'host'
# 2.x registers kernels for any device that has no other kernel for the op.
_DEVICE_TYPES = ('GPU', 'DEFAULT')
# On a GPU these pass memory on, or hold it, and launch no kernel.
_PASSING = frozenset((
    'Const', 'ExpandDims', 'Identity', 'IdentityN', 'Merge', 'NoOp', 'ReadVariableOp', 'Reshape',
    'Squeeze', 'Stage', 'StopGradient', 'Switch', 'Unstage', 'VarHandleOp'))


class Copy(NamedTuple):
  """A tensor that a step copies from one memory to another."""
  tensor: Tensor
  source: str  # `HOST`, or the device string of a GPU.
  target: str
  consumers: List[Operation]  # That take the copy.


class DeviceAudit:
  """The ops that a run executes, each with its device and the memory of its tensors.

  Attributes:
    ops: those that are executed, in the order in which they were built.
    launches: those that launch a kernel on a GPU, however many kernels that is.
    without_device: those that TensorFlow may place anywhere.
    without_kernel: those on a GPU that has no kernel for them: they run on the host.
    copies: a tensor once for each memory that it is copied to.
  """

  def __init__(self, fetches: Sequence[Any], fed_true: Sequence[Tensor] = ()):
    """Walks the graph from what a run fetches, which feeds True to some of the predicates."""
    needed = sorted(find_needed([getattr(fetch, 'op', fetch) for fetch in fetches]),
                    key=lambda op: op._id)
    dead_ops, dead_tensors = _find_dead(needed, {tensor.op for tensor in fed_true})
    self.ops = [op for op in needed if op not in dead_ops]
    self.without_device = [op for op in self.ops if not _device_of(op)]
    self.without_kernel = [op for op in self.ops
                           if 'GPU' in _device_of(op) and _find_kernel(op) is None]
    self.launches = [op for op in self.ops if op.type not in _PASSING and any(
        'GPU' in memory for memory in _memories(op, False) + _memories(op, True))]
    found: Dict[Tuple[str, str], Copy] = {}
    for op in self.ops:
      for tensor, target in zip(op.inputs, _memories(op, False)):
        if tensor.name in dead_tensors or tensor.op in dead_ops or tensor.dtype == tf.resource:
          continue
        source = _memories(tensor.op, True)[tensor.value_index]
        if source != target:
          copy = found.setdefault((tensor.name, target), Copy(tensor, source, target, []))
          copy.consumers.append(op)
    self.copies = list(found.values())

  def to_host(self) -> List[Copy]:
    return [copy for copy in self.copies if copy.target == HOST]

  def from_host(self) -> List[Copy]:
    return [copy for copy in self.copies if copy.source == HOST]


def _find_dead(ops: Iterable[Operation],
               fed_true: Set[Operation]) -> Tuple[Set[Operation], Set[str]]:
  """Returns the ops that are not executed, and the names of tensors that have no value.

  A predicate is what its placeholder is fed, or is by default; one that is computed counts as true.
  """
  dead_ops: Set[Operation] = set()
  dead_tensors: Set[str] = set()
  number = -1
  # Inputs may be younger than their ops.
  while number != len(dead_ops) + len(dead_tensors):
    number = len(dead_ops) + len(dead_tensors)
    for op in ops:
      inputs = [tensor.name in dead_tensors or tensor.op in dead_ops for tensor in op.inputs]
      merges = all if op.type == 'Merge' else any
      if (inputs and merges(inputs)) or any(other in dead_ops for other in op.control_inputs):
        dead_ops.add(op)
      elif op.type == 'Switch':
        dead_tensors.add(op.outputs[0 if _is_true(op.inputs[1], fed_true) else 1].name)
  return dead_ops, dead_tensors


def _is_true(predicate: Tensor, fed_true: Set[Operation]) -> bool:
  op = predicate.op
  if op in fed_true:
    return True
  if op.type == 'LogicalNot':
    return not _is_true(op.inputs[0], fed_true)
  if op.type in ('Identity', 'PlaceholderWithDefault'):
    return _is_true(op.inputs[0], fed_true)
  return op.type != 'Const' or bool(tf.get_static_value(predicate))


@functools.lru_cache(maxsize=None)
def _device_of(op: Operation) -> str:
  """Returns the device of an op's variable, its own, or that of its colocation group, or ''."""
  for tensor in op.inputs:
    if tensor.dtype == tf.resource:
      return _device_of(tensor.op)
  if op.device:
    return op.device
  for group in op.colocation_groups():
    name = group[len(b'loc:@'):].decode()
    if name != op.name:
      return _device_of(op.graph.get_operation_by_name(name))
  return ''


@functools.lru_cache(maxsize=None)
def _memories(op: Operation, is_output: bool) -> List[str]:
  """Returns the memory of each input or output of an op.

  An op without a device counts as one of the first GPU, where TensorFlow's placer prefers it.
  """
  device = _device_of(op) or '/device:GPU:0'
  kernel = _find_kernel(op) if 'GPU' in device else None
  in_host = set(kernel.host_memory_arg) if kernel else ()
  memories: List[str] = []
  for argument in op.op_def.output_arg if is_output else op.op_def.input_arg:
    size = 1
    if argument.number_attr:
      size = op.get_attr(argument.number_attr)
    elif argument.type_list_attr:
      size = len(op.get_attr(argument.type_list_attr))
    memory = HOST if kernel is None or argument.name in in_host else device
    memories += [memory] * size
  return memories


@functools.lru_cache(maxsize=None)
def _list_kernels(op_type):
  """Returns the registered kernels of GPUs for a type of op, the likeliest first."""
  found = [kernel for kernel in kernels.get_registered_kernels_for_op(op_type).kernel
           if kernel.device_type in _DEVICE_TYPES and not kernel.label]
  return sorted(found, key=lambda kernel: (_DEVICE_TYPES.index(kernel.device_type),
                                           -kernel.priority))


@functools.lru_cache(maxsize=None)
def _find_kernel(op: Operation) -> Any:
  """Returns the kernel that a GPU takes for an op, or None."""
  attributes: Dict[str, Any] = {}
  for kernel in _list_kernels(op.type):
    if kernel.constraint and not attributes:
      attributes = dict(op.node_def.attr)
    if all(_meets(attributes[constraint.name], constraint.allowed_values.list.type)
           for constraint in kernel.constraint):
      return kernel
  return None


def _meets(value, allowed) -> bool:
  return all(dtype in allowed for dtype in value.list.type or [value.type])
