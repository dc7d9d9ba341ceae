"""Find batch: the largest batch per tower whose steps run, by trials alone.

  32 ─fits─► 64 ─fits─► 128 ─does not─► 96 ─fits─► 112 ─does not─► 104 …     until the gap is small

A trial is two steps in a process of its own: what fits has run, and what does not has failed.
"""

import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.input.micro_batches import read_accumulate
from towers.placement.devices import Devices
from towers.settings.config import Config
from towers_tools.free_memory import find_free_memory
from towers_tools.trials.timed_trial import run_trial

_TRIAL_STEPS = 2
# The gap between what runs and what does not is at most this part of what runs.
_PRECISION = 16
# How a trial ends that has too little memory. By signal 9 Linux ends what takes the last of it, and
# some kernels do not ask whether they got any.
_TOO_LARGE = ('Out of memory', 'ended by signal 6', 'ended by signal 9', 'ended by signal 11')
# Of the free memory of a machine; other programs need some too.
_USABLE = 0.9


def find_batch(config: Config, devices: Devices, *, num_examples: int,
               command: Sequence[str]) -> Dict[str, Any]:
  """Writes the largest batch whose steps have run, and returns it as `--result_file` holds it.

  Raises:
    UsageError: not even one example fits, or the program does not run for another reason.
  """
  # With only one device for both, the program says what is wrong.
  num_towers = max(len(devices.names) - config.validation_tower, 1)
  accumulate = read_accumulate(config.accumulate)
  parts = num_towers * accumulate
  most = num_examples // parts
  if not most:
    raise UsageError(f'find_batch: {parts} towers and micro-batches take at least one example each,'
                     f' and there are {num_examples}: use fewer.')
  changes, environment = _limit_memory(config.tower_megabytes, devices, num_towers)
  changes.update(accumulate=accumulate, num_towers=num_towers, on_nan='skip')
  has_run: List[int] = []

  def fits(rows):
    error = run_trial(config, dict(changes, batch_size=rows * parts), command=command,
                      steps=_TRIAL_STEPS, environment=environment).error
    if error and not has_run and not any(words in error for words in _TOO_LARGE):
      raise UsageError(f'find_batch: the settings as they are do not run: {error}')
    has_run.extend([] if error else [rows])
    ended = f"do not fit: {error.partition('. ')[0]}" if error else 'fit'
    write_line(f'find_batch: {rows:,} examples per tower {ended}')
    return not error

  rows, beyond = search(fits, min(max(config.batch_size // parts, 1), most), most)
  if not rows:
    raise UsageError('find_batch: not even 1 example per tower fits. Try --recompute=auto, '
                     '--precision=mixed, or towers with more memory.')
  write_line(f'largest batch: {rows:,} per tower x {num_towers} towers x {accumulate} '
             f'micro-batches = {rows * parts:,} global: --batch_size={rows * parts}')
  return dict(batch_size=rows * parts, examples_per_tower=rows, too_many_per_tower=beyond,
              num_towers=num_towers, accumulate=accumulate)


def search(fits: Callable[[int], bool], first: int, most: int) -> Tuple[int, Optional[int]]:
  """Returns the most rows that fit, 0 if none do, and the fewest that do not; None if `most` do.

  It begins with `first`, doubles until a trial fails or halves until one runs, then halves the gap.
  """
  best, beyond, rows = 0, most + 1, first
  while beyond - best > max(best // _PRECISION, 1):
    best, beyond = (rows, beyond) if fits(rows) else (best, rows)
    rows = (best + beyond) // 2 if beyond <= most else min(2 * best, most)
  return best, beyond if beyond <= most else None


def _limit_memory(tower_megabytes, devices, num_towers):
  """Returns the settings and the environment in which a trial takes no more than it may."""
  if devices.kind == 'GPU':
    return ({} if tower_megabytes is None else dict(gpu_memory=str(int(tower_megabytes)))), {}
  free = find_free_memory()
  if tower_megabytes is not None:
    megabytes = num_towers * tower_megabytes
  elif free is not None:
    megabytes = _USABLE * free / 2**20
  else:
    raise UsageError("find_batch: cannot determine this machine's free memory: give "
                     'tower_megabytes, as --tower_megabytes=8000.')
  # Virtual CPU devices have one pool. A limit that is set already stays.
  return {}, {'TF_CPU_ALLOCATOR_USE_BFC': '1',
              'TF_CPU_BFC_MEM_LIMIT_IN_MB': os.environ.get(
                  'TF_CPU_BFC_MEM_LIMIT_IN_MB', str(max(int(megabytes), 1)))}
