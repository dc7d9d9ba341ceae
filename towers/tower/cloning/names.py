"""Names in a clone's pattern: unique, and different from those of all tensors outside.

                  in the graph                         in the pattern
  a tower's op    tower_0/images                       images
  its gradient    tower_0/gradients/tower_0/x_grad/y   gradients/x_grad/y, if that is free
  outside         images:0                             outside/images:0

TensorFlow's importer replaces every input whose name is in its map. If an op of the tower had the
name of a tensor outside, the importer would replace both; if two ops had one name, it would fail.
"""

import re
from typing import Any, Collection, Dict, Iterable, Set

from towers.graph.walk import walk
from towers.tensorflow_v1 import Tensor


class Names:
  """The pattern's names of the inputs and outputs of a tower's ops."""

  def __init__(self, ops: Collection[str], scope: str):
    """Names the ops of a tower, all of whose names in the graph begin with `scope`."""
    self._ops = {name: name[len(scope):] for name in ops}
    taken = set(self._ops.values())
    twice = re.compile('^(gradients(?:_[0-9]+)?/)' + re.escape(scope))
    for name, own in self._ops.items():
      short = twice.sub(r'\1', own)
      if short not in taken:
        taken.add(short)
        self._ops[name] = short
    self._prefix = 'outside/'
    while any(name.startswith(self._prefix) for name in taken):
      self._prefix = self._prefix[:-1] + '_/'
    self.outside: Dict[str, str] = {}

  def get_op(self, name: str) -> str:
    """Returns the pattern's name of an op of the tower."""
    return self._ops[name]

  def get_input(self, name: str) -> str:
    """Returns the pattern's name of a node's input: 'op', 'op:1' or '^op'."""
    op_name = get_op_name(name)
    if op_name in self._ops:
      return name.replace(op_name, self._ops[op_name], 1)
    tensor_name = name if ':' in name else name + ':0'
    inside = self._prefix + tensor_name
    self.outside[inside] = tensor_name
    return inside

  def get_tensor(self, tensor: Tensor) -> str:
    """Returns the pattern's name, with its port, of a tensor of the tower."""
    return f'{self._ops[tensor.op.name]}:{tensor.value_index}'


def get_op_name(name: str) -> str:
  """Returns the op's name from a node's input: 'op', 'op:1' or '^op'."""
  return name.lstrip('^').split(':')[0]


def reach_back(roots: Iterable[str], nodes: Dict[str, Any], within: Set[str]) -> Set[str]:
  """Returns the names, of those `within`, that the roots are computed from, with the roots."""
  return set(walk(roots, lambda name: map(get_op_name, nodes[name].input), within))
