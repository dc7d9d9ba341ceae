"""Room: the memory that towers may take, and how a process takes no more.

  a GPU                 each tower has its own: all of it, or what --gpu_memory leaves
  virtual CPU devices   all towers share the machine's free memory, or the pool of TensorFlow that
                        TF_CPU_BFC_MEM_LIMIT_IN_MB limits
  --tower_megabytes     each tower has so much, on any device
"""

import os
from typing import Any, Dict, NamedTuple, Tuple

from towers.base.usage_error import UsageError
from towers.placement.devices import Devices
from towers.training.settings.config import Config
from towers.training.stepping.memory import Memory, format_bytes
from towers_tools.free_memory import find_free_memory
from towers_tools.gpus import find_gpus

# TensorFlow itself needs the rest, and so do the libraries of GPUs.
_USABLE = 0.9
_POOL, _LIMIT = 'TF_CPU_ALLOCATOR_USE_BFC', 'TF_CPU_BFC_MEM_LIMIT_IN_MB'


class Room(NamedTuple):
  """The memory that towers may take.

  Attributes:
    num_bytes: of each tower, or of all together.
    what: has so much, in words.
    is_shared: by all towers.
    settings: that keep a process to it, on GPUs.
    is_on_cpu: whether the towers stand on virtual CPU devices.
  """
  num_bytes: int
  what: str
  is_shared: bool = False
  settings: Any = ()
  is_on_cpu: bool = False

  def describe(self) -> str:
    """Returns how much it is, in words."""
    return f'{self.what} may take {format_bytes(self.num_bytes)}'

  def count_taken(self, memory: Memory) -> int:
    """Returns the bytes of an estimate that lie in this room."""
    return memory.total + (memory.elsewhere if self.is_shared else 0)

  def holds(self, memory: Memory) -> bool:
    """Returns whether an estimate fits."""
    return self.count_taken(memory) <= self.num_bytes

  def enforce(self, memory: Memory, num_towers: int) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Returns the settings and the environment in which a process takes no more.

    Args:
      memory: estimated for any batch; of each tower the same variables are elsewhere.
      num_towers: that the process has.
    """
    if not self.is_on_cpu:
      return dict(self.settings), {}
    # One pool holds all towers: the variables once, and as much for each tower's step.
    pool = self.num_bytes
    if not self.is_shared:
      pool = memory.total + memory.elsewhere + num_towers * (self.num_bytes - memory.total)
    return {}, {_POOL: '1', _LIMIT: str(max(pool >> 20, 1))}


def find_room(config: Config, devices: Devices) -> Room:
  """Returns the room of a run's towers.

  Raises:
    UsageError: nobody tells how much it is, or `tower_megabytes` are more than there are.
  """
  given = config.tower_megabytes and int(1e6 * config.tower_megabytes)
  if devices.kind == 'GPU':
    return _find_on_gpus(given, devices)
  # The tower that validates takes as much as another one at most, and is not there in a trial.
  return _find_on_cpus(given, len(devices.names), is_validating=config.validation == 'tower')


def _find_on_cpus(given, num_devices, is_validating):
  free = find_free_memory()
  if given:
    if free is not None and given * num_devices > free:
      raise UsageError(
          f'tower_megabytes={given / 1e6:g} on {num_devices} virtual CPU devices: this machine has '
          f'{format_bytes(free)} free, and steps that take so much cannot be tried.')
    return Room(given, 'a tower', is_on_cpu=True)
  limit = os.environ.get(_LIMIT, '')
  if limit.isdigit() and (free is None or int(limit) << 20 < free):
    usable, what = int(limit) << 20, f'all towers together, by {_LIMIT},'
  elif free is not None:
    usable, what = int(_USABLE * free), 'all towers together'
  else:
    raise UsageError('find_batch: nobody tells how much memory this machine has free: give '
                     'tower_megabytes, as --tower_megabytes=8000.')
  return Room(usable * (num_devices - is_validating) // num_devices, what, is_shared=True,
              is_on_cpu=True)


def _find_on_gpus(given, devices):
  memory = devices.memory
  if memory.megabytes is not None:  # TensorFlow keeps to it.
    return Room(int(_USABLE * (memory.megabytes << 20)), 'a tower')
  smallest = min([gpu.memory_mib or 0 for gpu in find_gpus()[0]], default=0) << 20
  if not smallest:
    raise UsageError('find_batch: nobody tells how much memory the GPU has: give the megabytes that'
                     ' TensorFlow takes, as --gpu_memory=8000.')
  if given:
    if given > _USABLE * smallest:
      raise UsageError(f'tower_megabytes={given / 1e6:g}: the GPU has {format_bytes(smallest)}, '
                       'and steps that take so much cannot be tried.')
    return Room(given, 'a tower', settings=[('gpu_memory', f'{given / smallest:.4f}')])
  return Room(int(_USABLE * smallest * (memory.fraction or 1)), 'a tower')
