"""When copies begin: once the backward pass of the segment behind theirs has ended."""

import collections
from typing import Dict, List, Sequence, Set

from towers.graph.walk import find_dependents, find_loops, find_needed, list_sources, sort
from towers.tensorflow_v1 import Operation
from towers.tower.batch_norm.layer import is_choice
from towers.tower.recomputing.activations import READS_SHAPES


def find_ends(readers: Sequence[Sequence[Operation]], roots: Sequence[Operation],
              backward: Set[Operation]) -> List[List[Operation]]:
  """Returns for each segment the ops that end its part of the backward pass.

  These are gradients, the `roots`, and what the parts of segments before it take. Once they have
  run, nothing holds an activation of the segment. Ops that may not run, for which nothing can wait,
  are left out. `readers` are, of all but the last segment, the ops that read its copies.
  """
  # Of each op of the backward pass the first segment whose copies it depends on, or the last.
  levels: Dict[Operation, int] = {}
  for segment, ops in enumerate([*readers, backward]):
    found = find_dependents(ops, within=backward - levels.keys())
    levels.update(dict.fromkeys(found, segment))
  ends: Dict[int, Set[Operation]] = collections.defaultdict(set)
  for op in roots:
    if op in backward:
      ends[levels[op]].add(op)
  for op, level in levels.items():
    for source in list_sources(op):
      if levels.get(source, level) > level and source.type not in READS_SHAPES + ('Const',):
        ends[levels[source]].add(source)
  depths = _find_depths(set().union(*ends.values()))
  # The switch that begins a branch is not in it.
  return [[op for op in ends[segment] if not find_loops(op)
           and depths[op] == (op.type == 'Switch' and not is_choice(op))]
          for segment in range(len(readers) + 1)]


def _find_depths(ops) -> Dict[Operation, int]:
  """Returns for ops, and all that they need, how many switches up to each no merge has joined.

  These are the branches without which it would not run: nothing may wait for it. A gradient's ops
  have no context that says so. The branch that all training takes is none.
  """
  depths: Dict[Operation, int] = {}
  for op in sort(find_needed(ops)):
    if op.type.endswith('NextIteration'):  # The way back to a loop's beginning.
      depths[op] = 0
      continue
    depth = max([depths[tensor.op] for tensor in op.inputs] + [
        depths[source] - (source.type == 'Switch') for source in op.control_inputs], default=0)
    enters = any(source.type == 'Enter' for source in list_sources(op))
    if op.type == 'Switch':
      depth += not is_choice(op)
    elif op.type == 'Exit' or op.type == 'Merge' and not enters and not is_choice(op):
      depth = max(depth - 1, 0)
    depths[op] = depth
  return depths
