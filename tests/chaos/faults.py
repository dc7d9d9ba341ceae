"""What befalls the processes of a life: most faults end it, some only trouble it.

A fault acts on a team, and returns the exit codes that docs/faults.md allows for each worker, or
None if the life was over before.
"""

import random
import signal
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from tests.chaos.disk import Disk
from tests.chaos.team import Lost, Team
from towers.checkpoint.checkpoints import find_checkpoints, path_of
from towers.process.run_error import RunError, WorkerGone
from towers.process.signals import exit_code

_CANNOT_CONTINUE = RunError.exit_code
_GONE = WorkerGone.exit_code
_DONE = 0
# What a worker's silence may last when a stop is meant to be too long for it.
SHORT_WORKER_SECONDS = 5
_LEAVE_SECONDS = 60.0

_SAVING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

DISK_FULL = 'disk full for a while'

Codes = List[Set[int]]


class Scene(NamedTuple):
  """What a fault needs."""
  team: Team
  disk: Disk
  dice: random.Random
  steps: int  # That the life may still have before it.


class Fault(NamedTuple):
  """A kind of fault."""
  act: Callable[[Scene], Optional[Codes]]  # None if it came too late.
  ends: bool = True  # Whether the life ends by it.
  workers: int = 1  # At least.
  flags: Tuple[str, ...] = ()


def _wait_for_a_moment(scene, rank=0, first=('build', 'start', 'train', 'validate', 'save')):
  """Waits for a random moment of a life; False if the life ends before."""
  team, dice = scene.team, scene.dice
  word = dice.choice(first + ('train',) * 3)
  each_step = team.shape.towers * team.shape.accumulate
  times = dice.randint(1, max(1, scene.steps) * each_step) if word == 'train' else 1
  if word == 'validate':
    times = dice.randint(1, 2 * team.shape.towers)
  if word == 'save':
    rank, times = 0, dice.randint(1, max(1, scene.steps // 5))
  came = team.wait_for(word, times, rank)
  time.sleep(dice.choice([0, dice.uniform(0, 0.02)]))
  return came


def _kill_all(scene):
  if not _wait_for_a_moment(scene):
    return None
  scene.team.send(signal.SIGKILL)
  return [{-signal.SIGKILL, _DONE, _GONE} for _ in scene.team.members]


def _interrupt(number, all_of_them):
  def act(scene):
    team, dice = scene.team, scene.dice
    rank = dice.randrange(len(team.members))
    if not _wait_for_a_moment(scene, rank):
      return None
    is_training = all(member.count('loss') for member in team.members)
    team.send(number, None if all_of_them else [rank])
    deadline = time.monotonic() + _LEAVE_SECONDS
    while team.members[rank].process.poll() is None:
      if time.monotonic() > deadline:
        raise Lost(f'worker {rank} does not leave {_LEAVE_SECONDS:g} s after signal {number}\n'
                   f'{team.describe()}')
      time.sleep(0.01)
    codes = {exit_code(number), _DONE}
    if not is_training:
      # There is nothing to save: each ends at once, and the others may miss it.
      codes |= {-number} if len(team.members) == 1 else {-number, _GONE, _CANNOT_CONTINUE}
    return [codes for _ in team.members]
  return act


def _stop_for_a_while(scene):
  team, dice = scene.team, scene.dice
  ranks = dice.choice([None, [dice.randrange(len(team.members))]])
  if not _wait_for_a_moment(scene, 0 if ranks is None else ranks[0]):
    return None
  team.send(signal.SIGSTOP, ranks)
  time.sleep(dice.uniform(0.2, 3))
  team.send(signal.SIGCONT, ranks)
  return [{_DONE} for _ in team.members]


def _stop_for_too_long(scene):
  team = scene.team
  rank = scene.dice.randrange(len(team.members))
  others = [member for member in team.members if member is not team.members[rank]]
  if not _wait_for_a_moment(scene, rank, ('train', 'validate')):
    return None
  team.send(signal.SIGSTOP, [rank])
  deadline = time.monotonic() + _LEAVE_SECONDS
  while any(member.process.poll() is None for member in others):
    if time.monotonic() > deadline:
      raise Lost(f'worker {rank} is stopped, and the others wait for it\n{team.describe()}')
    time.sleep(0.02)
  team.send(signal.SIGCONT, [rank])
  return [{_GONE, _DONE} for _ in team.members]


def _lose_a_worker(scene):
  team = scene.team
  rank = scene.dice.randrange(len(team.members))
  if not _wait_for_a_moment(scene, rank, ('start', 'train', 'validate')):
    return None
  team.send(signal.SIGKILL, [rank])
  return [{-signal.SIGKILL, _DONE} if other == rank else {_GONE, _DONE}
          for other in range(len(team.members))]


def _fill_the_disk(scene):
  team, dice = scene.team, scene.dice
  if not scene.disk.is_mounted or not _wait_for_a_moment(scene, first=('build', 'train', 'save')):
    return None
  with scene.disk.full():
    team.wait_for('train', dice.randint(1, 20) * team.shape.towers)
    time.sleep(dice.uniform(0, 0.2))
  return [{_DONE, _CANNOT_CONTINUE} for _ in team.members]


FAULTS: Dict[str, Fault] = {
    'SIGKILL to all': Fault(_kill_all),
    'SIGTERM to all': Fault(_interrupt(signal.SIGTERM, True)),
    'SIGINT to all': Fault(_interrupt(signal.SIGINT, True)),
    'SIGHUP to all': Fault(_interrupt(signal.SIGHUP, True)),
    'SIGTERM to one worker': Fault(_interrupt(signal.SIGTERM, False), workers=2),
    'SIGKILL to one worker': Fault(_lose_a_worker, workers=2),
    'a worker stopped for too long': Fault(
        _stop_for_too_long, workers=2, flags=(f'--worker_seconds={SHORT_WORKER_SECONDS}',)),
    'SIGSTOP, SIGCONT after 0.2 to 3 s': Fault(_stop_for_a_while, ends=False),
    DISK_FULL: Fault(_fill_the_disk, ends=False)}


def draw_fault(dice: random.Random, *, ends: bool, workers: int) -> str:
  return dice.choice([name for name, fault in FAULTS.items()
                      if fault.ends == ends and fault.workers <= workers])


def check_codes(codes: Sequence[int], allowed: Codes, team: Team) -> None:
  """Raises Lost for an exit code that no fault of the life explains."""
  for rank, (code, ones) in enumerate(zip(codes, allowed)):
    if code not in ones:
      raise Lost(f'worker {rank} ended with {code}, and not with one of {sorted(ones)}\n'
                 f'{team.describe()}')


def check_saved(codes: Sequence[int], team: Team) -> None:
  """Raises Lost if a signal ended a run without a checkpoint of its last step."""
  last = max((int(words[1]) for words in team.members[0].notes if words[0] == 'loss'), default=0)
  if last and codes[0] in (exit_code(number) for number in _SAVING):
    # A later one may be there, damaged, from which this life did not resume.
    kept = find_checkpoints(team.folder)
    if path_of(team.folder, last) not in kept:
      raise Lost(f'ended after step {last}, and the checkpoints are {kept}\n{team.describe()}')
