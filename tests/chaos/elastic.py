"""A run under the launcher that loses workers and gets them back.

  python -m tests.chaos --elastic --minutes=60 --seed=1

Its rounds are the lives of a chain: together they must be one uninterrupted run.
"""

import collections
import contextlib
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Sequence

from tests import ROOT
from tests.chaos import judge
from tests.chaos.chain import FLAGS
from tests.chaos.ledger import Ledger
from tests.chaos.shape import BATCH_SIZE, Shape
from tests.chaos.team import LIMIT_SECONDS, Lost, read_notes
from tests.harness import small

LOSE, LOSE_TWO, ADD = 'a worker killed', 'two workers killed', 'workers added'
_MOMENTS = ('process', 'build', 'start', 'validate', 'save', 'train', 'train', 'train')
_MOST_STEPS = 25
_SECONDS_TO_ASK_AGAIN = 5.0
# How a worker may end when another is killed, or when all are stopped to be more.
_ENDS = re.compile('^launch: worker [0-9]+ (?:was|ended) .*$', re.MULTILINE)
_EXPECTED_ENDS = re.compile(r'launch: worker \d+ (was killed by SIG(KILL|TERM)|'
                            r'ended with exit code (75|143))$')


class ElasticPlan(NamedTuple):
  """One run, before it is run: its shape with most workers, and what befalls them, in order."""
  shape: Shape
  min_workers: int
  changes: List[str]
  seed: int  # Of moments and victims.


def draw_plan(seed: int, index: int, *, num_changes: int) -> ElasticPlan:
  """Returns a random run, the same for the same seed and index.

  The runs of one seed take the input modes and staging depths in turn.
  """
  dice = random.Random(f'elastic {seed} {index}')
  workers, towers = dice.choice([2, 3, 3]), dice.choice([1, 2])
  least = dice.randint(1, workers - 1)
  most = BATCH_SIZE // (towers * workers)
  shape = Shape(small.MODES[index % 3], small.DEPTHS[index // 3 % 3], towers, workers,
                dice.choice([1, min(2, most)]), dice.choice(small.PLACEMENTS))
  changes, present = [], workers
  while len(changes) < num_changes:
    if present < workers and dice.random() < 0.5:
      changes.append(ADD)
      present = workers
      continue
    changes.append(LOSE_TWO if workers > 2 and dice.random() < 0.2 else LOSE)
    present = max(least, present - 1)
  return ElasticPlan(shape, least, changes, dice.getrandbits(32))


class Round:
  """The processes of one life: how many there are, and what each has noted, by rank."""

  def __init__(self) -> None:
    self.size = 0
    self.pids: Dict[int, int] = {}
    self.notes: Dict[int, List[List[str]]] = {}
    self.began = float('inf')

  def add(self, pid: int, lines: List[List[str]]) -> None:
    _, rank, size, _, began = lines[0]
    self.size = int(size)
    self.pids[int(rank)], self.notes[int(rank)] = pid, lines
    self.began = min(self.began, float(began))

  def count(self, word: str) -> int:
    return sum(words[0] == word for lines in self.notes.values() for words in lines)


class ElasticRun:
  """A launcher whose workers note what they do in files of a folder."""

  def __init__(self, plan: ElasticPlan, folder: str, flags: Sequence[str]):
    self.checkpoints = os.path.join(folder, 'run')
    self._notes = os.path.join(folder, 'notes')
    os.makedirs(self._notes)
    self._output = os.path.join(folder, 'output')
    with open(self._output, 'wb') as output:
      self.launcher = subprocess.Popen(
          [sys.executable, '-m', 'towers', 'launch', f'--workers={plan.shape.workers}',
           f'--min_workers={plan.min_workers}', '--retry_seconds=inf', '--restarts=1000', '--',
           sys.executable, '-m', 'tests.chaos.life', self._notes, 'keep', *plan.shape.to_flags(),
           *flags, f'--checkpoint_dir={self.checkpoints}'],
          cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
          start_new_session=True)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.launcher.kill()  # The workers end with it.
    self.launcher.wait()

  def read_rounds(self) -> List[Round]:
    found: Dict[str, Round] = collections.defaultdict(Round)
    for name in os.listdir(self._notes):
      lines = read_notes(self._notes, int(name))
      if lines:
        found[lines[0][3]].add(int(name), lines)
    return sorted(found.values(), key=lambda one: one.began)

  def wait_until(self, holds: Callable[[List[Round]], bool]) -> bool:
    """Waits until something holds of the rounds; False if the launcher has ended before."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds(self.read_rounds()):
      if self.launcher.poll() is not None:
        return False
      if time.monotonic() > deadline:
        raise Lost(f'what must come does not come\n{self.said()[-4000:]}')
      time.sleep(0.005)
    return True

  def said(self) -> str:
    with open(self._output, encoding='utf-8') as file:
      return file.read()

  def finish(self) -> List[Round]:
    """Waits for the end; returns all rounds.

    Raises:
      Lost: the run does not end or fails, or a worker ends with a code that no change explains.
    """
    try:
      code = self.launcher.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
      raise Lost(f'the launcher does not end\n{self.said()[-4000:]}') from None
    said = self.said()
    strange = [line for line in re.findall(_ENDS, said) if not re.match(_EXPECTED_ENDS, line)]
    if code or strange or 'Traceback' in said:
      raise Lost(f'it ended with {code}, workers: {strange}\n{said[-6000:]}')
    return self.read_rounds()


def run_elastic(plan: ElasticPlan, folder: str, *, expected: judge.Outcome, num_steps: int,
                ledger: Ledger, report: Callable[[str], None]) -> None:
  """Runs a plan; raises Lost if all rounds together are not the uninterrupted run."""
  report(f'{plan.shape}, at least {plan.min_workers}')
  dice = random.Random(plan.seed)
  changes = []
  with ElasticRun(plan, folder, [*FLAGS, f'--steps={num_steps}']) as run:
    for kind in plan.changes:
      goes_on, changed = _change(kind, run, plan, dice, index=len(changes))
      changes += [kind] * changed
      if not goes_on:
        break
    rounds = run.finish()
  for index, kind in enumerate(changes):
    ledger.strike(kind)
    report(f'  {kind} in round {index} of {rounds[index].size} workers')
  lives = [judge.read_life([one.notes[rank] for rank in sorted(one.notes)],
                           is_whole=one is rounds[-1]) for one in rounds]
  found = judge.join_lives(lives, *judge.read_files(run.checkpoints, num_steps), expected=expected)
  judge.compare(found, expected, is_exact=False, history=True)


def _change(kind, run, plan, dice, *, index):
  """Does a change at a random moment of a round; returns whether another follows, and if it did."""
  if not run.wait_until(lambda rounds: len(rounds) > index):
    return False, False
  word = dice.choice(_MOMENTS)
  times = dice.randint(1, _MOST_STEPS * plan.shape.towers) if word == 'train' else 1
  if not run.wait_until(lambda rounds: rounds[index].count(word) >= times):
    return False, False
  time.sleep(dice.choice([0, dice.uniform(0, 0.02)]))
  pids = sorted(run.read_rounds()[index].pids.values())
  if kind == ADD and run.read_rounds()[index].size == plan.shape.workers:
    return True, False  # All are there, since too few were left.
  if kind != ADD:
    for pid in dice.sample(pids, min(len(pids), 2 if kind == LOSE_TWO else 1)):
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
  asked = -math.inf

  def is_over(rounds):
    nonlocal asked
    if kind == ADD and time.monotonic() > asked + _SECONDS_TO_ASK_AGAIN:
      asked = time.monotonic()
      run.launcher.send_signal(signal.SIGUSR1)
    return len(rounds) > index + 1

  return run.wait_until(is_over), True
