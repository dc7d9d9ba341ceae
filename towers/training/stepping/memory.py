"""Memory: an estimate of what a tower takes on its device, from static shapes, before any run.

  activations   outputs of the forward pass that the backward pass reads, per example
  gradients     as large as the trainable variables
  batches       the current one, and those in the staging area

Variables and their slots are counted where they live, in the table of devices. Workspace of
kernels, gradients in flight and TensorFlow itself come on top, so the estimate is a lower bound:
peak memory of `convnet` on two CPU towers grew by 0.51 MB per example, and this says 0.27 MB.
"""

from typing import Any, Dict, NamedTuple

from tensorflow_v1 import tf
from towers.placement.variables import variable_bytes
from towers.training_graph import TrainingGraph

# Ops whose outputs share the memory of their inputs.
_ALIASES = ('Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StopGradient', 'Switch', 'Merge')


class Memory(NamedTuple):
  """Estimated bytes of tower 0, which has the largest share of the batch, on its device."""
  activations: int
  gradients: int
  batches: int

  def describe(self) -> str:
    """Returns the sum and its parts in words."""
    return (f'{format_bytes(sum(self))} (activations {format_bytes(self.activations)}, gradients '
            f'{format_bytes(self.gradients)}, batches {format_bytes(self.batches)})')


def estimate_memory(program: TrainingGraph) -> Memory:
  """Returns the estimate; tensors with more unknown dimensions than the batch count as 0."""
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
  """Returns a tensor's bytes, with the tower's share as its first dimension if unknown."""
  if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.ndims is None:
    return 0
  sizes = tensor.shape.as_list()
  if sizes and sizes[0] is None:
    sizes[0] = share
  if None in sizes:
    return 0
  num_bytes = tensor.dtype.base_dtype.size
  for size in sizes:
    num_bytes *= size
  return num_bytes


def format_bytes(num_bytes: float) -> str:
  """Returns bytes in words: '512 bytes', '3.6 MB' or '1.25 GB'."""
  if num_bytes < 1e4:
    return f'{int(num_bytes):,} bytes'
  if num_bytes < 1e6:
    return f'{num_bytes / 1e3:.0f} kB'
  return f'{num_bytes / 1e6:.1f} MB' if num_bytes < 1e9 else f'{num_bytes / 1e9:.2f} GB'
