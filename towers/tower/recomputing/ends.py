"""When copies begin: once the backward pass of the segment behind theirs has ended."""

import collections
from typing import Dict, List, Sequence, Set

from tensorflow_v1 import Operation
from towers.tower.batch_norm_layer import is_choice
from towers.tower.recomputing.activations import READS_SHAPES, is_in_loop


def find_ends(readers: Sequence[Sequence[Operation]], roots: Sequence[Operation],
              backward: Set[Operation]) -> List[List[Operation]]:
  """Returns for each segment the ops that end its part of the backward pass.

  These are gradients, the `roots`, and what the parts of segments before it take. Once they have
  run, nothing holds an activation of the segment. Ops that may not run, for which nothing can wait,
  are left out. `readers` are, of all but the last segment, the ops that read its copies.
  """
  levels = _find_levels(readers, backward)
  ends: Dict[int, Set[Operation]] = collections.defaultdict(set)
  for op in roots:
    if op in backward:
      ends[levels[op]].add(op)
  for op, level in levels.items():
    for source in [*(tensor.op for tensor in op.inputs), *op.control_inputs]:
      if levels.get(source, level) > level and source.type not in READS_SHAPES + ('Const',):
        ends[levels[source]].add(source)
  runs_always = _DepthFinder().runs_always
  return [[op for op in ends[segment] if not is_in_loop(op) and runs_always(op)]
          for segment in range(len(readers) + 1)]


def _find_levels(readers, backward) -> Dict[Operation, int]:
  """Returns for each op of the backward pass the first segment whose copies it depends on, or the
  last.
  """
  levels: Dict[Operation, int] = {}
  for segment, ops in enumerate([*readers, backward]):
    pending = list(ops)
    while pending:
      op = pending.pop()
      if op in backward and op not in levels:
        levels[op] = segment
        for tensor in op.outputs:
          pending.extend(tensor.consumers())
        pending.extend(op._control_outputs)
  return levels


class _DepthFinder:
  """In how many branches an op is, without which it would not run: nothing may wait for it.

  A gradient's ops have no context that says so. The branch that all training takes is none.
  """

  def __init__(self) -> None:
    self._depths: Dict[Operation, int] = {}

  def runs_always(self, op: Operation) -> bool:
    """Returns whether an op is in no branch; the switch that begins one is not in it."""
    return self._find(op) == (op.type == 'Switch' and not is_choice(op))

  def _find(self, op) -> int:
    """Returns the number of switches, up to an op itself, that no merge has joined."""
    pending = [op]
    while pending:
      op = pending[-1]
      if op in self._depths:
        pending.pop()
        continue
      # The way back to a loop's beginning.
      is_back = op.type.endswith('NextIteration')
      sources = [] if is_back else [*(tensor.op for tensor in op.inputs), *op.control_inputs]
      missing = [source for source in sources if source not in self._depths]
      if missing:
        pending.extend(missing)
        continue
      pending.pop()
      depth = max([self._depths[tensor.op] for tensor in op.inputs] + [
          self._depths[source] - (source.type == 'Switch') for source in op.control_inputs],
                  default=0) if sources else 0
      enters = any(source.type == 'Enter' for source in sources)
      if op.type == 'Switch':
        depth += not is_choice(op)
      elif op.type == 'Exit' or op.type == 'Merge' and not enters and not is_choice(op):
        depth = max(depth - 1, 0)
      self._depths[op] = depth
    return self._depths[op]
