"""Recompute: activations that the backward pass computes again, segment by segment.

The backward pass is built as ever. Then its ops read copies of the activations of a segment, made
of the segment's own ops. They begin once the backward pass of the segment behind it has ended:

  forward   x ──► a ──► b ──► c ──► d ──► loss         a, b and d are read, c is a cut
                              │
  copies    x ──► a'──► b'    │  ◄── once d's part has ended
                  │     │     │      │
  backward  ◄─────┴─────┴─────┴──────┴── d ◄── loss

A copy computes the same bits from the same inputs. Ops with state are not copied, so none runs
twice: batch normalisation moves its averages once, and a random op of a tower is a stateless one,
whose key both passes share. What cannot be copied is kept (see `activations`).
"""

import collections
import functools
import logging
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Union

from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed, list_ops, walk
from towers.placement.patterns import shorten
from towers.tensorflow_v1 import Gradient, Operation, Tensor, import_placed, tf
from towers.tower.recomputing import segments
from towers.tower.recomputing.activations import Passes
from towers.tower.recomputing.ends import find_ends
from towers.tower.recording import Recording
from towers.tower.tower import Tower

_KEPT = 'kept/'


class Recomputed(NamedTuple):
  """What a tower computes again.

  Attributes:
    scope: the name scope of the copies in the tower's own, with a slash at the end. Those of
      segment 2 are in `{scope}segment_2/`.
    num_segments: of the forward pass; all but the last have copies.
    num_ops: the number of copied ops.
  """
  scope: str
  num_segments: int
  num_ops: int


def copy_activations(setting: Union[str, int], forward: Tower,
                     gradients: Sequence[Optional[Gradient]], *, recording: Recording,
                     num_forward: int, warns: bool) -> Optional[Recomputed]:
  """Makes gradients read copies of a tower's activations; returns None if it makes none.

  The tower has `num_forward` ops before its gradients. If it `warns`, it says where nothing is to
  be gained. For the setting see `parse_recompute`.

  Raises:
    UsageError: more segments than activations, or a name of no op.
  """
  parsed = segments.parse_recompute(setting)
  if parsed == 'none':
    return None
  ops = recording.list_ops()
  activations = {op for op in ops[:num_forward] if op.name.startswith(forward.scope)}
  roots = list_ops(gradients)
  backward = find_needed(roots, within=set(ops[num_forward:]))
  passes = Passes(activations, backward)
  cuts = _choose(parsed, passes, forward.scope, warns)
  if not cuts:
    return None
  copies = _Copies(passes, cuts, forward.scope, recording)
  copies.delay(forward.sums['loss'].op, roots, backward, recording)
  return Recomputed(copies.scope[len(forward.scope):], len(cuts) + 1, len(copies.by_original))


def _choose(parsed, passes, scope, warns) -> List[int]:
  """Returns the positions of the cuts, or [] with a line that says why there are none."""
  cutter = segments.Cutter(list(passes.activations.values()))
  if isinstance(parsed, int):
    if parsed > cutter.most:
      raise UsageError(f'recompute={parsed}: the model has only {cutter.most} activations that the '
                       'backward pass reads and that can be computed again: give at most '
                       f'{cutter.most} segments, or auto.')
    return cutter.cut(parsed)
  if parsed == 'auto':
    cuts = cutter.cut_best()
    if not cuts and warns:
      logging.getLogger('towers').warning(
          'recompute=auto changes nothing: the backward pass reads %d activations that can be '
          'computed again, and no segments of them would save a tenth of the memory.', cutter.most)
    return cuts
  return _find_named(parsed, passes, scope)


def _find_named(names, passes, scope):
  """Returns the position of the last op of each beginning of a name."""
  own = [(op.name[len(scope):], position) for op, position in passes.positions.items()]
  cuts = set()
  for name in names:
    found = [position for own_name, position in own if own_name.startswith(name)]
    if not found:
      scopes = collections.Counter(own_name.split('/')[0] + '/' for own_name, _ in own
                                   if '/' in own_name)
      largest = [scope for scope, _ in scopes.most_common()]
      raise UsageError(f'recompute={name}: no op that the backward pass needs has a name that '
                       f'begins like this: a tower has {shorten(largest)}.')
    cuts.add(max(found))
  return sorted(cuts)


class _Copies:
  """The copies of all segments but the last, `by_original`."""

  def __init__(self, passes: Passes, cuts: Sequence[int], scope: str, recording: Recording):
    """Adds the copies to the graph, and gives them to the backward pass."""
    self._passes, self._cuts = passes, cuts
    self._is_copied = functools.lru_cache(maxsize=None)(self._find_is_copied)
    self.scope = tf.get_default_graph().unique_name(f'{scope}recompute') + '/'
    # The ops of each segment that are copied.
    self._originals: List[Set[Operation]] = [set() for _ in cuts]
    self._replaced = [read for read in passes.reads if self._is_copied(read[2])]
    for op in walk([tensor.op for _, _, tensor in self._replaced], lambda op: [
        tensor.op for tensor in op.inputs if self._is_copied(tensor)]):
      self._originals[self._find_segment(op)].add(op)
    self.by_original = self._import(scope, recording)
    for op, index, tensor in self._replaced:
      op._update_input(index, self.by_original[tensor.op].outputs[tensor.value_index])

  def _find_segment(self, op):
    return segments.find_segment(self._passes.positions[op], self._cuts)

  def _find_is_copied(self, tensor):
    """Returns whether the backward pass takes a copy of a tensor, and not the tensor itself."""
    passes = self._passes
    segment = self._find_segment(tensor.op) if tensor.op in passes.positions else None
    if segment is None or segment == len(self._cuts):
      return False
    # What shares the memory of a kept tensor is there as long as that is.
    source = passes.activations.get(passes.find_source(tensor))
    if source is None or source.is_fixed or segments.is_kept(source, self._cuts):
      return False
    return passes.can_copy(tensor)

  def _import(self, scope, recording) -> Dict[Operation, Operation]:
    """Imports and returns the copies, each on its original's device."""
    graph_def = tf.GraphDef()
    input_map: Dict[str, Tensor] = {}
    names: Dict[Operation, str] = {}
    for segment, originals in enumerate(self._originals):
      names.update((op, f'segment_{segment}/{op.name[len(scope):]}')
                   for op in sorted(originals, key=lambda op: self._passes.positions[op]))
    for op, name in names.items():
      node = graph_def.node.add()
      node.CopyFrom(op.node_def)
      node.name, node.device = name, op.device
      node.attr.pop('_class', None)
      del node.input[:]
      for tensor in op.inputs:
        if self._is_copied(tensor):
          node.input.append(f'{names[tensor.op]}:{tensor.value_index}')
        else:
          node.input.append(_KEPT + tensor.name)
          input_map[_KEPT + tensor.name] = tensor
    found = import_placed(graph_def, name=self.scope, input_map=input_map,
                          return_elements=list(names.values()))
    copies = dict(zip(names, found))
    for op, copy in copies.items():
      if op.control_inputs:
        copy._add_control_inputs(op.control_inputs)
      for output, tensor in zip(copy.outputs, op.outputs):
        output.set_shape(tensor.shape)
      if op.name in recording.on_device:
        recording.on_device.add(copy.name)
    return copies

  def delay(self, loss: Operation, roots: Sequence[Operation], backward: Set[Operation],
            recording: Recording) -> None:
    """Makes copies of each segment wait for the loss, and the backward pass of the next one."""
    readers: List[List[Operation]] = [[] for _ in self._cuts]
    for op, _, tensor in self._replaced:
      readers[self._find_segment(tensor.op)].append(op)
    ends = find_ends(readers, roots, backward)
    awaited = {loss}
    for segment in reversed(range(len(self._cuts))):
      awaited.update(ends[segment + 1])
      if not self._originals[segment]:
        continue
      with tf.device(recording.place), tf.name_scope(f'{self.scope}segment_{segment}/'):
        begin = tf.no_op('begin')
      begin._add_control_inputs(sorted(awaited, key=lambda op: op.name))
      awaited = {begin}
      for op in self._originals[segment]:
        if not any(map(self._is_copied, op.inputs)):
          self.by_original[op]._add_control_input(begin)
