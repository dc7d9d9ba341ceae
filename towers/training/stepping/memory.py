"""Memory: an estimate of what a tower takes on its device, from static shapes, before any run.

  step        the most bytes of tensors that live at a time in a step, see `towers.graph.live`
  batches     the current one, and those in the staging area
  variables   weights, slots, averages and replicas on the device, and sums of micro-batches

TensorFlow itself comes on top, as do kernels on GPUs: what cuDNN takes is known only when it runs.
"""

from typing import NamedTuple, Sequence

from tensorflow_v1 import tf
from towers.base.cores import count_cores_of_each
from towers.graph.live import LiveTensors
from towers.graph.numbered import NumberedOps
from towers.graph.sizes import tensor_bytes
from towers.placement.host import HOST
from towers.placement.variables import variable_bytes
from towers.training_graph import TrainingGraph


class Memory(NamedTuple):
  """Estimated bytes on the device of a tower; the first has the largest share of the batch.

  Attributes:
    step: of tensors that live at a time.
    batches: that wait, and the current one.
    variables: that are there between two steps.
    elsewhere: on the devices of the other towers, which CPU devices have in common with this one.
    unknown: names of what is not counted, since its size depends on values.
  """
  step: int
  batches: int
  variables: int
  elsewhere: int = 0
  unknown: Sequence[str] = ()

  @property
  def total(self) -> int:
    """All bytes."""
    return self.step + self.batches + self.variables

  def describe(self) -> str:
    """Returns the sum and its parts in words."""
    least = 'at least ' if self.unknown else ''
    return (f'{least}{format_bytes(self.total)} (step {format_bytes(self.step)}, batches '
            f'{format_bytes(self.batches)}, variables {format_bytes(self.variables)})')


class MemoryModel:
  """What a program says of a tower's memory, for any size of its batch."""

  def __init__(self, program: TrainingGraph, index: int = 0):
    """Looks at the ops of a step on the device of a tower, by default the first."""
    self._program, self._index = program, index
    tower, devices = program.towers[index], program.devices
    is_gpu = devices.kind == 'GPU'
    # What a tower makes may be needed by replicas alone.
    made = [part for gradient in tower.gradients if gradient is not None
            for part in tf.nest.flatten(gradient, expand_composites=True)]
    roots = [getattr(root, 'op', root) for root in [program.train_op, tower.loss, *made]]
    run = NumberedOps(roots, _Near(program, index),
                      false=program.validation and program.validation.is_validating)
    self._live = LiveTensors(
        run, device=tower.device, is_gpu=is_gpu,
        threads=1 if is_gpu else count_cores_of_each(len(devices.names)))
    with program.graph.as_default():
      variables = [*tf.global_variables(), *tf.local_variables()]
    if program.replicas is not None:
      variables += program.replicas.variables
    sizes = [(variable.device == tower.device, variable_bytes(variable)) for variable in variables]
    self._variables = sum(size for is_here, size in sizes if is_here)
    self._variables_elsewhere = sum(size for is_here, size in sizes if not is_here)

  def estimate(self, batch_size: int) -> Memory:
    """Returns the estimate for a micro-batch of all towers; of another size than the program's only
    where the graph does not fix it, as it does where all batches of an epoch are equal."""
    feed = self._program.feed
    rows = feed.inputs.plan.shares(batch_size)[self._index]
    batch = sum(tensor_bytes(tensor, rows=rows)
                for tensor in tf.nest.flatten(feed.templates[self._index].tensors))
    waiting = 0 if feed.stage is None else feed.stage.depth
    step, unknown = self._live.find_peak(rows)
    batches = batch * (1 + waiting)
    elsewhere = self._variables_elsewhere + (len(self._program.towers) - 1) * (step + batches)
    return Memory(step, batches, self._variables, elsewhere, unknown)


class _Near:
  """The ops on the device of a tower and on the host, and those that update shared variables;
  without other towers."""

  def __init__(self, program, index):
    self._devices = {program.towers[index].device, HOST, ''}
    self._others = tuple(tower.scope for other, tower in enumerate(program.towers)
                         if other != index)
    self._shares = program.replicas is None

  def __contains__(self, op):
    return (self._shares or op.device in self._devices) and not op.name.startswith(self._others)


def estimate_memory(program: TrainingGraph) -> Memory:
  """Returns the estimate for the batches of a program."""
  return MemoryModel(program).estimate(program.feed.inputs.plan.micro_batch_size)


def format_bytes(num_bytes: float) -> str:
  """Returns bytes in words: '512 bytes', '3.6 MB' or '1.25 GB'."""
  if num_bytes < 1e4:
    return f'{int(num_bytes):,} bytes'
  if num_bytes < 1e6:
    return f'{num_bytes / 1e3:.0f} kB'
  return f'{num_bytes / 1e6:.1f} MB' if num_bytes < 1e9 else f'{num_bytes / 1e9:.2f} GB'
