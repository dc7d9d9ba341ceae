"""A chain: lives of one run, in one shape or in many, until it is done."""

import random
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from tests.chaos import judge
from tests.chaos.damage import Damage
from tests.chaos.disk import Disk
from tests.chaos.faults import DISK_FULL, FAULTS, Scene, check_codes, check_saved, draw_fault
from tests.chaos.ledger import Ledger
from tests.chaos.shape import Shape, draw_shape
from tests.chaos.team import Lost, Team

FLAGS = ['--validate_every=7steps', '--checkpoint_every=5steps', '--keep_checkpoints=4',
          '--start_seconds=60', '--worker_seconds=40', '--learning_rate=0.05',
          '--average_weights=0.9']
_SIMPLE = Shape('split', 1, 1, 1, 1, 'host')


class LifePlan(NamedTuple):
  """One life, before it is lived."""
  shape: Shape
  faults: Tuple[str, ...]  # Names of at most two, the first of which does not end it.
  is_damaged: bool  # Whether something befalls its files afterwards.
  seed: int


class ChainPlan(NamedTuple):
  """One chain, before it is run; its last life has no fault, and may not be needed."""
  shape: Optional[Shape]  # None if each life has its own.
  lives: List[LifePlan]


def draw_chain(seed: int, index: int, *, most_lives: int) -> ChainPlan:
  """Returns a random chain, the same for the same seed and index."""
  dice = random.Random(f'{seed} {index}')
  common = draw_shape(dice) if dice.random() < 0.5 else None
  lives = []
  num_ended = dice.randint(1, most_lives)
  for number in range(num_ended + 2):
    shape = common or draw_shape(dice)
    faults = []
    if number <= num_ended and dice.random() < 0.4:
      faults.append(draw_fault(dice, ends=False, workers=shape.workers))
    if number < num_ended:
      faults.append(draw_fault(dice, ends=True, workers=shape.workers))
    lives.append(LifePlan(shape, tuple(faults), number < num_ended and dice.random() < 0.5,
                          dice.getrandbits(32)))
  return ChainPlan(common, lives)


class Chains:
  """Runs chains; keeps the uninterrupted runs that they are compared with."""

  def __init__(self, disk: Disk, *, num_steps: int, ledger: Ledger, report: Callable[[str], None]):
    self._disk = disk
    self._num_steps = num_steps
    self._ledger = ledger
    self._report = report
    self._flags = [*FLAGS, f'--steps={num_steps}']
    self._expected: Dict[Optional[Shape], judge.Outcome] = {}

  def run(self, chain: ChainPlan) -> None:
    """Runs one; raises Lost if it is not one uninterrupted run."""
    self._report(f'chain in {chain.shape or "a shape for each life"}')
    expected = self.expect(chain.shape)
    with self._disk.run_folder() as folder:
      self._run(chain, folder, expected)

  def _run(self, chain, folder, expected):
    damage = Damage(folder)
    # An average life gets so far that the last one ends near the end of the run.
    most_steps = 2 * self._num_steps // (len(chain.lives) - 1)
    lives = []
    for plan in chain.lives:
      life, is_done = self._live(plan, folder, drops_out=chain.shape is not None,
                                 most_steps=most_steps)
      lives.append(life)
      if is_done:
        break
      if plan.is_damaged:
        name = damage.strike(random.Random(plan.seed))
        if name:
          self._report(f'  {name}')
          self._ledger.strike(name)
    else:
      raise Lost('a life without faults did not finish the run')
    found = judge.join_lives(lives, *judge.read_files(folder, self._num_steps), expected=expected,
                             is_exact=chain.shape is not None)
    judge.compare(found, expected, is_exact=chain.shape is not None, history=not damage.history)

  def _live(self, plan, folder, *, drops_out, most_steps):
    """Lives a life; returns what it took, and whether the run is done."""
    self._report(f'  {plan.shape}: {", then ".join(plan.faults) or "no fault"}')
    faults = [FAULTS[name] for name in plan.faults]
    flags = [*self._flags, *(flag for fault in faults for flag in fault.flags)]
    dice = random.Random(plan.seed)
    with Team(plan.shape, folder, flags, drops_out=drops_out) as team:
      allowed = [{0} for _ in team.members]
      for name, fault in zip(plan.faults, faults):
        more = fault.act(Scene(team, self._disk, dice, most_steps))
        if more is not None:
          allowed = [left | right for left, right in zip(allowed, more)]
          self._ledger.strike(name)
      codes = team.finish()
      self._report(f'    ended with {codes}')
      check_codes(codes, allowed, team)
      if DISK_FULL not in plan.faults:
        check_saved(codes, team)
      is_done = not any(codes)
      return judge.read_life([member.notes for member in team.members], is_whole=is_done), is_done

  def expect(self, shape: Optional[Shape]) -> judge.Outcome:
    """Returns what an uninterrupted run does in this shape, or in any if None."""
    if shape not in self._expected:
      plan = LifePlan(shape or _SIMPLE, (), False, 0)
      with self._disk.run_folder() as folder:
        life, is_done = self._live(plan, folder, drops_out=shape is not None, most_steps=0)
        assert is_done
        self._expected[shape] = judge.join_lives([life], *judge.read_files(folder, self._num_steps))
    return self._expected[shape]
