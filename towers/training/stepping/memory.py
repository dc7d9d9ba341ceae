"""Memory: an estimate of what a tower takes on its device, from static shapes, before anything
runs.

  activations   what the forward pass computes and the backward pass reads again, once per example
  gradients     as large as the trainable variables
  batches       the one that is computed on, and those that wait in the staging area

Variables and what the optimizer keeps for them are counted where they stand, in the table of
devices. Workspace of kernels, gradients on their way back and TensorFlow itself come on top, so it
is the least that is needed: peak memory of `convnet` on two CPU towers grew by 0.51 MB an example,
where this says 0.27 MB.
"""

from typing import Any, Dict, NamedTuple

from tensorflow_v1 import tf
from towers.placement.variables import variable_bytes
from towers.training_graph import TrainingGraph

# Their outputs are their inputs' memory.
_ALIASES = ('Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StopGradient', 'Switch', 'Merge')


class Memory(NamedTuple):
  """Bytes that tower 0, which has the largest share, is estimated to take on its device."""
  activations: int
  gradients: int
  batches: int

  def describe(self) -> str:
    """Returns the sum and its parts in words."""
    return (f'{format_bytes(sum(self))} (activations {format_bytes(self.activations)}, gradients '
            f'{format_bytes(self.gradients)}, batches {format_bytes(self.batches)})')


def estimate_memory(program: TrainingGraph) -> Memory:
  """Returns the estimate; tensors whose shape depends on more than the batch count as nothing."""
  feed, tower = program.feed, program.towers[0]
  plan = feed.inputs.plan
  share = plan.shares(plan.micro_batch_size)[0]
  backward = tower.scope + 'gradients'
  kept: Dict[Any, int] = {}
  graph = program.gradients.loss.graph
  for op in graph.get_operations():
    if op.name.startswith(backward):
      for tensor in op.inputs:
        source = _source(tensor)
        if source.op.name.startswith(tower.scope) and not source.op.name.startswith(backward):
          kept[source.op.name, source.value_index] = _tensor_bytes(source, share)
  batch = sum(_tensor_bytes(tensor, share) for tensor in tf.nest.flatten(feed.templates[0].tensors))
  waiting = 0 if feed.stage is None else feed.stage.depth
  gradients = sum(variable_bytes(variable) for _, variable in program.gradients.gradients)
  return Memory(sum(kept.values()), gradients, batch * (1 + waiting))


def _source(tensor):
  while tensor.op.type in _ALIASES and len(tensor.op.inputs):
    tensor = tensor.op.inputs[0]
  return tensor


def _tensor_bytes(tensor, share):
  """Returns the size of a tensor whose unknown first dimension is the tower's share of the batch.
  """
  if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.ndims is None:
    return 0
  sizes = tensor.shape.as_list()
  if sizes and sizes[0] is None:
    sizes[0] = share
  if None in sizes:
    return 0
  number = tensor.dtype.base_dtype.size
  for size in sizes:
    number *= size
  return number


def format_bytes(number: float) -> str:
  """Returns 512 bytes, 3.6 MB or 1.25 GB."""
  if number < 1e6:
    return f'{int(number):,} bytes' if number < 1e4 else f'{number / 1000.0:.0f} kB'
  return f'{number / 1000000.0:.1f} MB' if number < 1e9 else f'{number / 1000000000.0:.2f} GB'
