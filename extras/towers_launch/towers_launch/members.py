"""Members: the processes to launch, and the GPUs and cores of each."""

import os
from typing import List, NamedTuple, Optional, Sequence

from towers.base.cores import list_cores
from towers.base.usage_error import UsageError

EVALUATOR = 'evaluator'


class Member(NamedTuple):
  """A process to launch."""
  name: str  # In messages and before its lines.
  task_type: str  # 'worker' or 'evaluator'.
  task_index: int  # Among those of its type.
  gpus: Optional[Sequence[str]]  # For CUDA_VISIBLE_DEVICES; None to leave it as it is.
  cores: Sequence[int]  # To run on; all if empty.


def plan_members(num_workers: int, *, has_evaluator: bool = False,
                 gpus_per_worker: Optional[int] = None,
                 cores_per_worker: Optional[int] = None) -> List[Member]:
  """Returns the workers, then the evaluator, each with GPUs and cores of its own.

  Raises:
    UsageError: there are too few GPUs or cores, or this is not Linux, which pins to cores.
  """
  tasks = [(f'worker {index}', 'worker', index) for index in range(num_workers)]
  if has_evaluator:
    tasks.append((EVALUATOR, EVALUATOR, 0))
  gpus: List[Optional[Sequence[str]]] = [None] * len(tasks)
  cores: List[Sequence[int]] = [[]] * len(tasks)

  if gpus_per_worker is not None:
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    if visible is None:
      names = [str(index) for index in range(gpus_per_worker * len(tasks))]
    else:
      names = [name for name in visible.split(',') if name]
    gpus = _share('gpus_per_worker', gpus_per_worker, names, len(tasks),
                  owner='CUDA_VISIBLE_DEVICES has')
  if cores_per_worker is not None:
    if not hasattr(os, 'sched_setaffinity'):
      raise UsageError('cores_per_worker needs Linux: leave it out.')
    cores = _share('cores_per_worker', cores_per_worker, list_cores(), len(tasks),
                   owner='this process may use')

  return [Member(*task, gpus=gpus[index], cores=cores[index]) for index, task in enumerate(tasks)]


def _share(flag, each, things, num_members, *, owner):
  """Returns `each` of the things for each member."""
  needed = each * num_members
  if needed > len(things):
    raise UsageError(f'{flag}={each} takes {needed} for {num_members} processes, and {owner} '
                     f'{len(things)}: use at most {len(things) // num_members}, or fewer '
                     'processes.')
  return [things[index * each:(index + 1) * each] for index in range(num_members)]
