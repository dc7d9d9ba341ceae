"""Numbered ops: the ops that a run takes and their tensors, as numbers in lists.

TensorFlow's objects take a microsecond or two to answer, and tensors as long to be hashed. Here
each op is asked once, so that a deep net's run can be followed in a fraction of a second.
"""

from typing import Any, Container, Dict, Iterable, List, Optional, Sequence, Set

from tensorflow_v1 import Operation, Tensor

# What is known of a bool goes through these.
_KNOWN = ('Identity', 'LogicalNot', 'Switch')


class NumberedOps:
  """The ops that some roots need, in the order in which they were made.

  Attributes:
    ops: by number, as are the lists of each op below.
    kinds: the type of each.
    inputs: the tensors that each takes.
    outputs: those that it makes.
    followers: the ops that wait for it, once for each tensor or control.
    waiting: for how many of these it waits.
    tensors: by number; after those of `ops` those that they take from elsewhere.
    order: ops in an order in which they can run, without those of branches that are not taken.
    dead: the tensors of these branches.
  """

  def __init__(self, roots: Iterable[Operation], within: Container[Operation],
               false: Optional[Tensor] = None):
    """Walks from the roots.

    Args:
      roots: ops of the run, which has what they need.
      within: the ops that count.
      false: a scalar bool that is false in this run, or None.
    """
    needed, outside = _find_inputs(roots, within)
    self.ops = sorted(needed, key=lambda op: op._id)
    self.kinds: List[str] = [op.type for op in self.ops]
    self.tensors: List[Tensor] = []
    self.outputs: List[range] = []
    for op in [*self.ops, *outside]:
      outputs = op.outputs
      self.outputs.append(range(len(self.tensors), len(self.tensors) + len(outputs)))
      self.tensors += outputs
    numbers = {id(tensor): number for number, tensor in enumerate(self.tensors)}
    self.inputs = [[numbers[id(tensor)] for tensor in needed[op][0]] for op in self.ops]
    controls = self._connect([needed[op][1] for op in self.ops])
    self.dead: Set[int] = set()
    self.order = self._sort(controls, {} if false is None else {numbers.get(id(false)): False})

  def _connect(self, all_controls):
    """Finds what waits for each op; returns the control inputs by number."""
    numbers = {op: number for number, op in enumerate(self.ops)}
    makers = [op for op, outputs in enumerate(self.outputs) for _ in outputs]
    all_controls = [[numbers[op] for op in controls if op in numbers] if controls else controls
                    for controls in all_controls]
    self.followers: List[List[int]] = [[] for _ in self.ops]
    self.waiting: List[int] = []
    for op, (inputs, controls) in enumerate(zip(self.inputs, all_controls)):
      # A loop's second turn does not wait for itself.
      sources = [maker for maker in [makers[tensor] for tensor in inputs]
                 if maker < len(numbers) and self.kinds[maker] != 'NextIteration']
      sources += controls
      for source in sources:
        self.followers[source].append(op)
      self.waiting.append(len(sources))
    return all_controls

  def _sort(self, controls, known):
    """Returns `order`, and finds what is dead."""
    dead_ops: Set[int] = set()
    missing = self.waiting[:]
    order = [op for op, count in enumerate(missing) if not count]
    for op in order:
      if self.dead and self._is_dead(op, controls[op], dead_ops):
        dead_ops.add(op)
        self.dead.update(self.outputs[op])
      elif self.kinds[op] in _KNOWN:
        self._follow_known(op, known)
      for follower in self.followers[op]:
        missing[follower] -= 1
        if not missing[follower]:
          order.append(follower)
    return [op for op in order if op not in dead_ops]

  def _is_dead(self, op, controls, dead_ops):
    inputs = self.inputs[op]
    if self.kinds[op] == 'Merge':
      takes_dead = self.dead.issuperset(inputs)
    else:
      takes_dead = not self.dead.isdisjoint(inputs)
    return takes_dead or not dead_ops.isdisjoint(controls)

  def _follow_known(self, op, known):
    kind, inputs = self.kinds[op], self.inputs[op]
    if kind == 'Switch':
      if inputs[1] in known:
        self.dead.add(self.outputs[op][not known[inputs[1]]])
    elif inputs[0] in known:
      known[self.outputs[op][0]] = known[inputs[0]] != (kind == 'LogicalNot')


def _find_inputs(roots, within):
  """Returns the ops that the roots need, each with its inputs and control inputs, and those outside
  of `within` that they take from."""
  needed: Dict[Operation, Sequence[Any]] = {}
  outside: Dict[Operation, None] = {}
  pending = list(roots)
  while pending:
    op = pending.pop()
    if op in needed or op in outside:
      continue
    if op not in within:
      outside[op] = None
      continue
    needed[op] = inputs, controls = op.inputs, op.control_inputs
    pending += [tensor.op for tensor in inputs]
    pending += controls
  return needed, outside
