"""Memory: an estimate of what a tower takes on its device, from static shapes, before any run.

  activations   outputs of the forward pass that the backward pass reads, per example; of those
                that it computes again, the largest segment
  gradients     as large as the trainable variables
  batches       the current one, and those in the staging area

Variables and their slots are counted where they live, in the table of devices. Workspace of
kernels, gradients in flight and TensorFlow itself come on top, so the estimate is a lower bound:
peak memory of `convnet` on two CPU towers grew by 0.51 MB per example, and this says 0.27 MB.
"""

from typing import Any, Dict, NamedTuple

from tensorflow_v1 import tf
from towers.graph.sizes import READS_SHAPES, find_source, tensor_bytes
from towers.placement.variables import variable_bytes
from towers.training_graph import TrainingGraph


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
  batch = sum(tensor_bytes(tensor, rows=share)
              for tensor in tf.nest.flatten(feed.templates[0].tensors))
  waiting = 0 if feed.stage is None else feed.stage.depth
  gradients = sum(variable_bytes(variable) for _, variable in program.gradients.gradients)
  return Memory(_estimate_activations(tower, share), gradients, batch * (1 + waiting))


def _estimate_activations(tower, share):
  """Returns the bytes of what the backward pass reads; with copies, of what is kept for it and of
  the largest segment."""
  backward = tower.scope + 'gradients'
  again = tower.recomputed and tower.scope + tower.recomputed.scope
  # By segment; '' is what is kept.
  segments: Dict[str, Dict[Any, int]] = {'': {}}
  for op in tower.loss.graph.get_operations():
    copies = again and op.name.startswith(again)
    if op.type in READS_SHAPES or not (copies or op.name.startswith(backward)):
      continue
    for source in map(find_source, op.inputs):
      name, segment = source.op.name, ''
      if again and name in tower.recomputed.last:
        segment = 'last'
      if not name.startswith(tower.scope) or name.startswith(backward):
        continue
      if again and name.startswith(again):
        if copies:
          continue  # What only other copies take is soon free.
        segment = name[len(again):].split('/')[0]
      segments.setdefault(segment, {})[name, source.value_index] = tensor_bytes(source, rows=share)
  kept, *computed = [sum(sizes.values()) for sizes in segments.values()]
  return kept + max(computed, default=0)


def format_bytes(num_bytes: float) -> str:
  """Returns bytes in words: '512 bytes', '3.6 MB' or '1.25 GB'."""
  if num_bytes < 1e4:
    return f'{int(num_bytes):,} bytes'
  if num_bytes < 1e6:
    return f'{num_bytes / 1e3:.0f} kB'
  return f'{num_bytes / 1e6:.1f} MB' if num_bytes < 1e9 else f'{num_bytes / 1e9:.2f} GB'
