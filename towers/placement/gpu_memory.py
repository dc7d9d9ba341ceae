"""GPU memory: how much of each GPU a process takes, and logical GPUs that share one."""

from typing import Any, NamedTuple, Optional

from towers.base.usage_error import UsageError


class GpuMemory(NamedTuple):
  """What a process takes of each GPU; all of it where nothing is set."""
  growth: bool = False  # Take only what is needed, and more when it is.
  fraction: Optional[float] = None  # Of the memory of each GPU, at most 1.
  megabytes: Optional[int] = None  # Of each GPU, or of each logical one.
  num_logical: int = 0  # The logical GPUs that the first GPU is divided into, or 0.

  @property
  def limits(self) -> Any:
    """The megabytes of each device that TensorFlow makes of a GPU; empty to leave it whole."""
    return [self.megabytes] * max(1, self.num_logical) if self.megabytes else []

  def write(self, options: Any) -> None:
    """Sets the `gpu_options` of a session's config."""
    options.allow_growth = self.growth
    if self.fraction is not None:
      options.per_process_gpu_memory_fraction = self.fraction
    if self.limits:
      options.experimental.virtual_devices.add().memory_limit_mb.extend(self.limits)
      options.visible_device_list = '0'


def read_gpu_memory(text: Optional[str], logical_gpus: Optional[int] = None) -> GpuMemory:
  """Returns what the settings `gpu_memory` and `logical_gpus` say.

  The text is 'growth', a fraction such as '0.4', or megabytes such as '9000'; None for all memory.
  """
  try:
    number = float(text or 0)
  except ValueError:
    number = 0.0
  if text is not None and text != 'growth' and not 0 < number < float('inf'):
    raise UsageError(f"gpu_memory={text}: give 'growth', a fraction of each GPU such as 0.4, or "
                     'megabytes such as 9000.')
  megabytes = int(number) if number > 1 else None
  if logical_gpus is None:
    return GpuMemory(text == 'growth', None if megabytes else number or None, megabytes)
  if logical_gpus < 1:
    raise UsageError(f'logical_gpus={logical_gpus}: it must be at least 1.')
  if megabytes is None:
    raise UsageError(f'logical_gpus={logical_gpus} needs the megabytes of each, and gpu_memory is '
                     f'{text or "not given"}: give gpu_memory=9000 for 8 on a GPU of 80 GB.')
  return GpuMemory(megabytes=megabytes, num_logical=logical_gpus)
