"""Agent: runs one host's worker, in rounds that the agents of all hosts agree on.

  python -m towers.launch.agent --folder=/shared/meeting --index=2 --host=10.0.0.3 --workers=4 \\
      --min_workers=2 -- python main.py --checkpoint_dir=/shared/runs/a

For clusters that start one process on each host, as Kubernetes and Slurm do. There is no server:
the agents write to a folder that all hosts share (`meeting`), and follow the same rules
(`agreement`).

  own worker is lost          left out for --retry_seconds; the others go on without it
  another is lost             own worker ends, and starts again among those that are left
  a host comes, or comes back all finish their step, save, leave, and start again with it
  all workers end with 0      all agents end with 0, also those that come later
  one ends with 2             all agents end with 2, since no restart mends a mistake
  SIGTERM, Ctrl-C, SIGHUP     forwarded once; the others go on
  the agent itself is killed  `towers_launch/orphans.py` kills its worker
"""

import argparse
import functools
import os
import signal
import sys
import time
from typing import Callable, Dict, Optional, Sequence

from towers.base.output import open_closed_streams
from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers.placement.cluster import VARIABLE, read_cluster
from towers.training.faults.signals import exit_code
from towers_launch import agreement
from towers_launch.agreement import Attendance, Lineup, Sight, decide
from towers_launch.child_process import ChildProcess
from towers_launch.children import Children, say
from towers_launch.command import check_command, check_least, parse_with_command
from towers_launch.meeting import Meeting
from towers_launch.ports import find_free_ports, is_free
from towers_launch.roster import Absence
from towers_launch.round import ANOTHER_IS_GONE, BLAMELESS, MISTAKE, build_environment
from towers_launch.tf_config import Parser

_LOOK_SECONDS = 0.5
# So many cards are read in a second.
_CARDS_PER_SECOND = 100
_REPLACED = 1
_STOPPED = exit_code(signal.SIGTERM)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
  """Returns the flags, with the words after `--` as `command`.

  Raises:
    UsageError: a wrong flag or command.
    SystemExit: after --help.
  """
  parser = Parser(
      prog='agent', allow_abbrev=False,
      usage='python -m towers.launch.agent --folder=FOLDER [flags] -- COMMAND [its flags]',
      description='Runs COMMAND on this host, together with the agents of other hosts.')
  parser.add_argument('--folder', required=True,
                      help='of this job alone, on a disk that all hosts share')
  parser.add_argument('--index', type=int,
                      help='of this host, from 0 (default: that of TF_CONFIG)')
  parser.add_argument('--host', help='under which the others reach it (default: that of TF_CONFIG)')
  parser.add_argument('--workers', type=int, help='at most (default: those of TF_CONFIG)')
  parser.add_argument('--min_workers', type=int, default=1,
                      help='wait for as many (default: %(default)s)')
  parser.add_argument('--join_seconds', type=float, default=60.0,
                      help='how long the first round waits for all of them (default: %(default)s)')
  parser.add_argument('--retry_seconds', type=float, default=60.0,
                      help='after which a lost worker is tried again, twice as long if it is lost '
                           'again soon; and the least time between two rounds of which the second '
                           'only adds workers (default: %(default)s)')
  parser.add_argument('--lease_seconds', type=float, default=20.0,
                      help='after which a silent agent is gone (default: %(default)s)')
  parser.add_argument('--restarts', type=int, default=20,
                      help='how many rounds may fail before this agent ends (default: %(default)s)')
  parser.add_argument('--grace_seconds', type=float, default=30.0,
                      help='from SIGTERM to SIGKILL when a round ends (default: %(default)s)')
  parser.add_argument('--stop', action='store_true',
                      help='starts nothing: all agents of the folder save and leave, unless they '
                           f'have ended; ends with their code, {_STOPPED} if there was none')
  given = parse_with_command(parser, arguments)
  check_local_path('folder', given.folder)
  if not given.stop:
    _fill_in(given)
    _check(given)
  return given


def _fill_in(given):
  """Takes what no flag gives from TF_CONFIG, which some operators of Kubernetes set."""
  cluster = read_cluster(os.environ)
  if cluster.is_evaluator:
    raise UsageError(f'{VARIABLE} says that this is an evaluator, which follows the checkpoints of '
                     'any number of workers: start its command without an agent.')
  if cluster.addresses[0]:
    own = (cluster.rank, cluster.addresses[cluster.rank].rpartition(':')[0].strip('[]'),
           cluster.num_workers)
    for name, value in zip(('index', 'host', 'workers'), own):
      if getattr(given, name) is None:
        setattr(given, name, value)


def _check(given):
  for name in ('index', 'host', 'workers'):
    if getattr(given, name) is None:
      raise UsageError(f'{name} is missing: give --{name}, or a {VARIABLE} that names all workers '
                       'and this one.')
  check_least(given, dict(workers=1, min_workers=1, join_seconds=0, retry_seconds=1,
                          lease_seconds=4 * _look_seconds(given.workers), restarts=0,
                          grace_seconds=0))
  if given.min_workers > given.workers:
    raise UsageError(f'min_workers={given.min_workers} must be at most workers={given.workers}.')
  if not 0 <= given.index < given.workers:
    raise UsageError(f'index={given.index} must be from 0 to {given.workers - 1}, as there are '
                     f'workers={given.workers}.')
  check_command(given.command)


def _look_seconds(workers):
  return max(_LOOK_SECONDS, workers / _CARDS_PER_SECOND)


class Agent:
  """One host's part in all rounds."""

  def __init__(self, given: argparse.Namespace, meeting: Meeting, children: Children, *,
               clock: Callable[[], float] = time.monotonic):
    """Takes its place, and nothing else."""
    self._given = given
    self._meeting = meeting
    self._children = children
    self._clock = clock
    self._look_seconds = _look_seconds(given.workers)
    self._attendance = Attendance(lease_seconds=given.lease_seconds,
                                  look_seconds=self._look_seconds, clock=clock)
    self._card = meeting.take_place(given.index, self._find_address())
    self._sights: Dict[int, Sight] = {}
    self._lineup = Lineup(0, [])
    self._end: Optional[int] = None
    self._worker: Optional[ChildProcess] = None
    self._absence = Absence()
    self._began = clock()  # Of the round, or of the wait for enough.
    self._num_failures = 0
    self._last_code = ANOTHER_IS_GONE  # Of the own worker, when a round failed.
    self._told = ''

  def _find_address(self):
    """Returns a new one, so that workers of an older round do not reach those of the next."""
    host = f'[{self._given.host}]' if ':' in self._given.host else self._given.host
    return f'{host}:{find_free_ports(1)[0]}'

  def run(self) -> int:
    """Takes part until the end; returns the exit code."""
    code = None
    while code is None:
      code = self.take_turn()
    return code

  def take_turn(self) -> Optional[int]:
    """Looks at the others, does what comes next, and waits a little; returns a code to leave with.
    """
    self._look()
    code = self._find_reason_to_leave()
    if code is not None:
      self._stop()
      self._change(phase=agreement.LEFT)
    elif self._act() not in (agreement.JOIN, agreement.STOP):  # They change what comes next.
      self._children.wait(self._has_news, self._look_seconds)
    return code

  def _has_news(self):
    return self._children.interrupted_by or self._worker and self._worker.returncode is not None

  def _change(self, **changes):
    self._card = self._card._replace(**changes)
    self._show()

  def _show(self):
    if self._is_replaced():
      return
    self._card = self._card._replace(beat=self._card.beat + 1)
    self._try(functools.partial(self._meeting.show, self._card))

  def _tell(self, text):
    if text != self._told:
      say(text)
      self._told = text

  def _look(self):
    """Reads the cards of all, and shows the own one anew."""
    lineup = self._meeting.read_lineup()
    if lineup.number > self._lineup.number:
      self._lineup = lineup
      self._attendance.expect(lineup)
    self._sights = self._attendance.look(self._meeting.read_cards())
    self._end = self._meeting.read_end()
    # Not before it has been read: that of a new agent in this place would never be seen.
    self._show()

  def _is_replaced(self):
    own = self._sights.get(self._card.place)
    return own is not None and own.card.identity > self._card.identity

  def _find_reason_to_leave(self):
    """Returns an exit code, or None to stay."""
    if self._children.interrupted_by:
      return exit_code(self._children.interrupted_by)
    if self._end is not None:
      self._tell(f'all end with {self._end}')
      return self._end
    if self._is_replaced():
      say(f'error: another agent has come for index={self._card.place}, and this one leaves.')
      return _REPLACED
    if self._num_failures > self._given.restarts:
      say(f'error: restarts: {self._given.restarts} of {self._given.restarts}.')
      return self._last_code
    return None

  def _act(self):
    """Does what comes next; returns its verb."""
    now = self._clock()
    if self._card.phase == agreement.RESTING and (
        self._children.wants_more or now >= self._absence.until):
      self._children.wants_more = False
      self._change(phase=agreement.READY)
    if self._worker and self._worker.returncode is not None:
      self._end_worker()
    lasted = now - self._began
    step = decide(
        self._card, self._lineup, self._sights, workers=self._given.workers,
        min_workers=self._given.min_workers,
        may_grow=self._children.wants_more or lasted >= self._given.retry_seconds,
        has_waited=lasted >= self._given.join_seconds,
        has_looked=lasted >= self._given.lease_seconds)
    if step.verb == agreement.WAIT:
      self._tell_wait()
    elif step.verb == agreement.JOIN:
      self._join()
    elif step.verb == agreement.REFUSE:
      self._refuse()
    elif step.verb == agreement.START:
      self._start()
    elif step.verb == agreement.STOP:
      self._stop()
    elif step.lineup:
      self._try(functools.partial(self._meeting.propose, step.lineup))
    else:
      self._try(functools.partial(self._meeting.end, 0))
    return step.verb

  def _try(self, write):
    try:
      write()
    except OSError as error:
      self._tell(f'the folder cannot be written to: {error.strerror}; this agent tries again')

  def _tell_wait(self):
    """Says for whom this agent waits, if that has changed."""
    if self._card.phase not in (agreement.READY, agreement.JOINED):
      return
    alive = sorted({self._card.place, *(place for place, sight in self._sights.items()
                                        if sight.is_alive)})
    if len(alive) < self._given.min_workers:
      self._began = self._clock()
    there = ', '.join(map(str, alive))
    self._tell(f'waiting: agents {there} are there, of {self._given.workers} and at least '
               f'{self._given.min_workers}')

  def _join(self):
    """Says that no worker of this host runs, and offers another address for the round after."""
    own = [card.address for card in self._lineup.members if card.place == self._card.place]
    is_free_still = own == [self._card.address] and is_free(int(own[0].rpartition(':')[2]))
    self._change(phase=agreement.JOINED, round=self._lineup.number, code=0,
                 address=self._find_address())
    if not is_free_still:
      self._refuse()

  def _refuse(self):
    """Leaves a round before its worker has started."""
    self._num_failures += 1
    self._change(phase=agreement.READY)

  def _start(self):
    addresses = [card.address for card in self._lineup.members]
    places = [card.place for card in self._lineup.members]
    rank = places.index(self._card.place)
    # The others may start theirs from now on, whatever becomes of this one.
    self._change(phase=agreement.STARTED)
    self._tell(f'round {self._lineup.number}: worker {rank} of {len(places)}, with agents '
               f"{', '.join(map(str, places))} of {self._given.workers}")
    try:
      self._worker = self._children.start(
          f'worker {rank}', self._given.command, cores=[], index=rank,
          environment=build_environment(addresses, 'worker', rank, is_elastic=True))
    except OSError as error:
      raise UsageError(f'the command {self._given.command[0]} cannot be executed: '
                       f'{error.strerror}.') from error
    self._children.wants_more = False
    self._began = self._clock()

  def _stop(self):
    """Ends the own worker, which saves and leaves, while the card goes on changing."""
    if self._worker is None:
      return
    others = [self._sights[card.place].card for card in self._lineup.members
              if card.place != self._card.place and card.place in self._sights]
    is_missed = self._lineup.number == self._card.round and bool(others) and all(
        card.round == self._card.round and card.phase == agreement.READY and
        card.code == ANOTHER_IS_GONE for card in others)
    if self._children.interrupted_by:  # The worker has the signal already.
      while not self._children.have_ended():
        self._children.wait(self._children.have_ended, self._look_seconds)
        self._show()
    else:
      self._children.leave(self._given.grace_seconds, meanwhile=self._show,
                           every=self._look_seconds)
    if self._lineup.number == self._card.round:
      self._num_failures += 1
    code = self._take_code()
    is_lost = is_missed or code not in BLAMELESS
    self._leave_round(code, is_lost=is_lost)

  def _end_worker(self):
    """Takes the end of a worker that ended by itself."""
    code = self._take_code()
    if code == 0:
      self._change(phase=agreement.DONE, code=0)
      return
    self._num_failures += 1
    self._last_code = code
    # Others that trained before do so with the same flags: what this host lacks is likelier.
    came_later = any(self._card.place not in [card.place for card in lineup.members]
                     for lineup in self._meeting.lineups)
    if code == MISTAKE and not came_later:
      self._try(functools.partial(self._meeting.end, MISTAKE))
    self._leave_round(code, is_lost=code not in BLAMELESS)

  def _take_code(self):
    """Returns the worker's exit code, as a shell gives it for the card, and forgets the worker."""
    assert self._worker is not None
    code, self._worker = self._worker.shell_code, None
    return code

  def _leave_round(self, code, *, is_lost):
    now = self._clock()
    if is_lost:
      self._absence.begin(now, lasted=now - self._began, retry_seconds=self._given.retry_seconds)
      self._tell(f'this worker is left out for {self._absence.seconds:.0f} s, or until SIGUSR1, '
                 'unless the others are too few')
    self._change(phase=agreement.RESTING if is_lost else agreement.READY, code=code)


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Runs a command line; returns the exit code."""
  open_closed_streams()
  try:
    given = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    meeting = Meeting(given.folder, num_places=given.workers or 0)
    if given.stop:
      meeting.end(_STOPPED)
      return meeting.read_end() or 0
    with Children() as children:
      return Agent(given, meeting, children).run()
  except UsageError as error:
    say(f'error: {error}')
    return MISTAKE


if __name__ == '__main__':
  sys.exit(main())
