"""Activations: what the backward pass reads of the forward pass, and what a copy could compute.

A copy computes the same as its original if the original has no state. Not copied are:

  ops with state     reads of variables, which are shared; assignments, queues, Python functions
  random ops         but for stateless ones, which a tower's have become (see `randomness`)
  ops in loops       whose values exist once for every turn
  joined sums        of batch normalisation, which are those of all towers (see `batch_norm`)
  constants, and the smallest tensors, which together are a hundredth of all

`tf.cond` is made of ops like others.
"""

import collections
import functools
from typing import Dict, Iterable, Set

import numpy as np

from towers.graph.walk import find_loops, find_needed, sort
from towers.tensorflow_v1 import Operation, Tensor, tf
from towers.tower.all_towers import SUMS
from towers.tower.recomputing.segments import Activation

# Ops that read no values: what they take need not be there.
READS_SHAPES = ('Shape', 'ShapeN', 'Size', 'Rank')
# Ops whose outputs share the memory of their inputs.
_ALIASES = ('Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StopGradient', 'Switch', 'Merge')
# For sizes that are unknown, and matter only beside each other.
_ASSUMED_SIZE = 32
# All small tensors are kept, up to this share of all activations.
_SMALL_SHARE = 0.01


class Passes:
  """The forward pass in an order in which it can run, and what the backward pass reads of it.

  Attributes:
    reads: (op, index of the input, tensor) of ops of the backward pass.
    positions: of all ops of the forward pass that these tensors need.
    activations: by the tensors that own their memory.
  """

  def __init__(self, forward: Set[Operation], backward: Set[Operation]):
    self.reads = [(op, index, tensor) for op in backward if op.type not in READS_SHAPES
                  for index, tensor in enumerate(op.inputs) if tensor.op in forward]
    needed = find_needed([tensor.op for _, _, tensor in self.reads], within=forward)
    self.positions = {op: position for position, op in enumerate(sort(needed))}
    joined = {tensor.op for tensor in tf.get_collection(SUMS)}
    self._is_pure = functools.lru_cache(maxsize=None)(lambda op: op not in joined and _is_pure(op))
    self._sources: Dict[Tensor, Tensor] = {}
    self.activations = self._find_activations()

  def find_source(self, tensor: Tensor) -> Tensor:
    """Returns the tensor whose memory a tensor shares, often itself."""
    if tensor not in self._sources:
      is_alias = tensor.op.type in _ALIASES and len(tensor.op.inputs)
      self._sources[tensor] = self.find_source(tensor.op.inputs[0]) if is_alias else tensor
    return self._sources[tensor]

  def can_copy(self, tensor: Tensor) -> bool:
    """Returns whether a tensor is large, and a copy of its op computes the same."""
    is_small = tensor.shape.ndims is not None and _guess_bytes(tensor) <= self._small
    return self._is_pure(tensor.op) and not is_small

  def _find_activations(self):
    def is_activation(tensor):
      return tensor.op in self.positions and tensor.op.type != 'ReadVariableOp'

    read = {self.find_source(tensor) for _, _, tensor in self.reads}
    ends = {source: self.positions[source.op] for source in filter(is_activation, read)}
    for op, position in self.positions.items():
      for source in map(self.find_source, op.inputs):
        if is_activation(source):
          # Of an alias of a loop's value the source may come later.
          ends[source] = max(position, self.positions[source.op])
    sizes = {source: _guess_bytes(source) for source in ends}
    self._small = _find_small(sizes.values(), sum(sizes.get(source, 0) for source in read))
    return {source: Activation(self.positions[source.op], end, sizes[source], source in read,
                               is_fixed=not self.can_copy(source))
            for source, end in ends.items()}


def _is_pure(op):
  """Returns whether an op computes the same from the same inputs, and does nothing else."""
  op_def = op.op_def
  if op_def.is_stateful or any(attribute.name == 'seed2' for attribute in op_def.attr):
    return False
  if any(tensor.dtype._is_ref_dtype or tensor.dtype in (tf.resource, tf.variant)
         for tensor in [*op.inputs, *op.outputs]):
    return False
  # The key of a random op is a constant, which clones find by its name.
  return op.type not in ('Const', 'Enter', 'Exit') and not find_loops(op)


def _find_small(sizes: Iterable[int], total: int) -> int:
  """Returns the most bytes of a tensor that is small: all of them are together a small share."""
  rest, small = _SMALL_SHARE * total, 0
  for size, count in sorted(collections.Counter(sizes).items()):
    rest -= size * count
    if rest < 0:
      break
    small = size
  return small


def _guess_bytes(tensor) -> int:
  """Returns a tensor's bytes, 0 for one without a dtype of numbers or a number of axes."""
  if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.ndims is None:
    return 0
  sizes = [_ASSUMED_SIZE if size is None else size for size in tensor.shape.as_list()]
  return tensor.dtype.base_dtype.size * int(np.prod(sizes, dtype=np.int64))
