"""Agents that see each other late, in any order, agree on rounds that all their members enter."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from towers_launch import agent as agents
from towers_launch.agreement import (
  DONE,
  JOIN,
  JOINED,
  LEFT,
  PROPOSE,
  READY,
  REFUSE,
  RESTING,
  START,
  STARTED,
  STOP,
  WAIT,
  Attendance,
  Card,
  Lineup,
  Sight,
  choose,
  decide,
)

WORKERS, LEAST, LEASE_SECONDS, RETRY_SECONDS = 4, 2, 8.0, 5.0
COMMAND = 'sh'
STEPS = 60.0  # Seconds of work of one worker.


class World:
  """The files of a folder, the workers of all rounds, and what is true of them."""

  def __init__(self, dice):
    self.dice = dice
    self.now = 0.0
    self.cards = {}  # By place, all versions.
    self.lineups = []
    self.end = None
    self.joined = set()
    self.hosts = {}
    self.is_calm = False
    self.work = 0.0
    self.sizes = []

  def run(self, seconds):
    """Lets agents take turns in any order, until the time is over or none is left."""
    until = self.now + seconds
    while self.now < until and any(host.agent for host in self.hosts.values()):
      self.now += 0.5 / WORKERS
      self.dice.choice(list(self.hosts.values())).take_turn()
      self._work(0.5 / WORKERS)

  def _work(self, seconds):
    """Ends workers whose peers are gone; does some work if all of a round are there."""
    running = [host for host in self.hosts.values() if host.worker]
    for host in running:
      peers = [other for other in self.hosts.values()
               if other.worker and other.worker.round == host.worker.round]
      members = self.lineups[host.worker.round - 1].members
      host.worker.age += seconds
      if len(peers) == len(members):
        host.worker.has_met = True
        self.work += seconds / len(members)
      elif (host.worker.has_met or host.worker.age > 30) and self.dice.random() < 0.1:
        host.worker.end(75)
      if self.work > STEPS:
        for peer in peers:
          peer.worker.end(0)
        return


class Worker:
  """A process of a round."""

  def __init__(self, host, number):
    self.host = host
    self.round = number
    self.age = 0.0
    self.has_met = False
    self.returncode = None

  def end(self, code):
    self.returncode, self.host.worker = code, None

  @property
  def shell_code(self):
    return self.returncode


class Host:
  """A place with an agent, which sees files late, and has a clock of its own."""

  def __init__(self, world, index):
    self.world = world
    self.index = index
    self.worker = None
    self.agent = None
    self.code = None
    self.sleeps_until = 0.0
    self.offset, self.rate = world.dice.uniform(-1e6, 1e6), world.dice.uniform(0.8, 1.2)

  def begin(self):
    """Starts an agent, in place of another one if there is one."""
    self.kill()
    self.read = {}
    self.lineups = []
    self.interrupted_by = None
    self.wants_more = False
    self.code = None
    flags = agents.parse_arguments([
        '--folder=any', f'--index={self.index}', '--host=10.0.0.1', f'--workers={WORKERS}',
        f'--min_workers={LEAST}', f'--lease_seconds={LEASE_SECONDS}', '--restarts=1000',
        f'--retry_seconds={RETRY_SECONDS}', '--join_seconds=10', '--', COMMAND])
    self.agent = agents.Agent(flags, self, self, clock=self.clock)

  def clock(self):
    return self.offset + self.rate * self.world.now

  def kill(self):
    if self.worker:
      self.worker.end(-9)
    self.agent = None

  def take_turn(self):
    if self.agent and self.world.now >= self.sleeps_until:
      self.code = self.agent.take_turn()
      if self.code is not None:
        self.agent = None

  # What an agent needs of its processes.
  def wait(self, until, seconds):
    pass

  def leave(self, grace_seconds, *, meanwhile, every):
    meanwhile()
    if self.worker:
      self.worker.end(self.world.dice.choice([143, 143, 75, 137]))

  def start(self, name, command, *, environment, cores, index):
    """Starts a worker, and sees to it that the round is entered by all or none."""
    number = self.lineups[-1].number
    members = self.world.lineups[number - 1].members
    assert LEAST <= len(members) <= WORKERS
    for member in members:
      assert (number, member.place, member.identity) in self.world.joined
      other = self.world.hosts[member.place].worker
      assert other is None or other.round >= number
    assert environment['TF_CONFIG'].count('10.0.0.1:') == len(members)
    self.worker = Worker(self, number)
    self.world.sizes.append(len(members))
    return self.worker

  # What an agent needs of a folder.
  def take_place(self, index, address):
    older = self.world.cards.get(index)
    return Card(index, older[-1].generation + 1 if older else 0, f'{self.world.dice.random()}',
                address)

  def show(self, card):
    self.world.cards.setdefault(card.place, []).append(card)
    if card.phase == JOINED:
      self.world.joined.add((card.round, card.place, card.identity))

  def read_cards(self):
    seen = {}
    for index, versions in self.world.cards.items():
      newest = len(versions) - 1
      self.read[index] = newest if self.world.is_calm else \
          self.world.dice.randint(max(newest - 12, self.read.get(index, 0)), newest)
      seen[index] = versions[self.read[index]]
    return seen

  def read_lineup(self):
    late = self.world.lineups[len(self.lineups):]
    if late and not self.world.is_calm:
      late = late[:self.world.dice.randint(0, len(late))]
    self.lineups += late
    return self.lineups[-1] if self.lineups else Lineup(0, [])

  def propose(self, lineup):
    if lineup.number > len(self.world.lineups):
      assert lineup.number == len(self.world.lineups) + 1
      self.world.lineups.append(lineup)

  def read_end(self):
    return self.world.end

  def end(self, code):
    self.world.end = code if self.world.end is None else self.world.end


@settings(deadline=None, derandomize=True, max_examples=8)
@given(st.integers(0, 10 ** 9))
def test_rounds_are_entered_by_all_or_none_and_all_come_together_at_last(seed):
  dice = random.Random(seed)
  world = World(dice)
  world.hosts = {index: Host(world, index) for index in range(WORKERS)}
  for host in world.hosts.values():
    if dice.random() < 0.8:
      host.begin()
  for _ in range(12):
    world.run(dice.uniform(0, 15))
    host = dice.choice(list(world.hosts.values()))
    fault = dice.randrange(4)
    if fault == 0 and host.worker:
      host.worker.end(137)
    elif fault == 1:
      host.kill()
    elif fault == 2:
      host.sleeps_until = world.now + dice.uniform(0, 3 * LEASE_SECONDS)
    elif fault == 3:
      host.begin()
    world.work = 0.0
  # From now on nothing fails, and all agents are there.
  world.is_calm = True
  for host in world.hosts.values():
    host.sleeps_until = 0.0
    if not host.agent:
      host.begin()
  world.run(2000)
  assert [host.code for host in world.hosts.values()] == [0] * WORKERS
  assert world.sizes[-1] == WORKERS


def card(index, phase=READY, number=0, *, generation=0, code=0):
  return Card(index, generation, '', phase=phase, round=number, code=code)


def see(*cards, silent=()):
  return {one.place: Sight(one, one.place not in silent, one.place in silent) for one in cards}


LINEUP = Lineup(3, [card(0), card(1), card(2)])


def ask(me, *others, lineup=LINEUP, silent=(), may_grow=False, has_waited=False, has_looked=False,
        least=LEAST):
  step = decide(me, lineup, see(*others, silent=silent), workers=WORKERS, min_workers=least,
                may_grow=may_grow, has_waited=has_waited, has_looked=has_looked)
  members = [one.place for one in step.lineup.members] if step.lineup else []
  return (step.verb, members) if members else step.verb


def test_a_round_begins_when_all_its_members_have_joined_it():
  me = card(0, JOINED, 3)
  assert ask(card(0), card(1), card(2)) == JOIN
  assert ask(me, card(1, JOINED, 3), card(2)) == WAIT
  assert ask(me, card(1, JOINED, 3), card(2, STARTED, 3)) == START
  for out in (card(2, READY, 3), card(2, RESTING, 3), card(2, LEFT, 3), card(2, generation=1)):
    assert ask(me, card(1, JOINED, 3), out) == REFUSE
  assert ask(me, card(1, JOINED, 3), card(2), silent=[2]) == REFUSE
  # Others have gone on without this host.
  assert ask(card(3, JOINED, 2), card(0), card(1), card(2)) == REFUSE


def test_a_round_that_runs_ends_by_its_members_alone():
  me, second = card(0, STARTED, 3), card(1, STARTED, 3)
  assert ask(me, second, card(2, STARTED, 3)) == WAIT
  # Its worker may not have met the others yet, and would be waited for.
  assert ask(me, second, card(2, STARTED, 3), silent=[2]) == STOP
  assert ask(me, second, card(2, DONE, 3)) == WAIT
  assert ask(me, second, card(2, STARTED, 3), card(3), may_grow=False) == WAIT
  assert ask(me, second, card(2, STARTED, 3), card(3), may_grow=True) == (PROPOSE, [0, 1, 2, 3])
  assert ask(me, second, card(2, JOINED, 3), card(3), may_grow=True) == WAIT
  assert ask(me, second, card(2, STARTED, 3), card(3, RESTING), may_grow=True) == WAIT
  for out in (card(2, READY, 3), card(2, RESTING, 3), card(2, LEFT, 3), card(2, generation=1)):
    assert ask(me, second, out) == STOP
  assert ask(card(0, STARTED, 2), second, card(2, STARTED, 3)) == STOP


def test_the_next_round_waits_until_no_worker_of_this_one_runs():
  me = card(0, READY, 3)
  assert ask(me, card(1, STARTED, 3), card(2, RESTING, 3)) == WAIT
  assert ask(me, card(1, JOINED, 3), card(2, RESTING, 3)) == WAIT
  assert ask(me, card(1, READY, 3), card(2, RESTING, 3)) == (PROPOSE, [0, 1])
  assert ask(me, card(1, STARTED, 3), card(2, READY, 3), silent=[1]) == (PROPOSE, [0, 2])
  assert ask(me, card(1, DONE, 3), card(2, RESTING, 3)) == (PROPOSE, [0, 1])
  assert ask(card(0, DONE, 3), card(1, DONE, 3), card(2, DONE, 3)) == 'finish'
  assert ask(card(3), card(0, DONE, 3), card(1, DONE, 3), card(2, DONE, 3)) == WAIT


def test_those_that_rest_take_part_if_others_are_too_few_or_if_no_worker_is_to_blame():
  me = card(0, READY, 3)
  left, earlier = card(2, LEFT, 3), card(3, RESTING, 2)
  assert ask(me, card(1, RESTING, 3), left, earlier) == (PROPOSE, [0, 3])
  assert ask(me, card(1, RESTING, 3), left, earlier, least=3) == (PROPOSE, [0, 1, 3])
  assert ask(me, card(1, RESTING, 3), card(2, LEFT, 3), silent=[1]) == WAIT
  # They do not wait for others, as in a first round.
  assert ask(card(1, RESTING, 2), card(0, RESTING, 3), lineup=Lineup(3, [card(0)]), least=1) == (
      PROPOSE, [1])
  lost = [card(index, RESTING, 3) for index in range(3)]
  assert ask(*lost) == (PROPOSE, [0, 1, 2])
  assert choose(lost[0], LINEUP, see(*lost[1:], silent=[2]), workers=4, min_workers=1)[0].place == 0


def test_the_first_round_waits_for_all_for_some_time():
  none = Lineup(0, [])
  assert ask(card(0), card(1), card(2), lineup=none) == WAIT
  assert ask(card(0), card(1), card(2), lineup=none, has_waited=True) == (PROPOSE, [0, 1, 2])
  assert ask(card(0), lineup=none, has_waited=True) == WAIT
  assert ask(*map(card, range(4)), lineup=none) == (PROPOSE, [0, 1, 2, 3])
  # All agents are new, as when a whole job starts again.
  fresh = [card(index, generation=1) for index in range(3)]
  assert ask(*fresh) == WAIT and ask(*fresh, has_waited=True) == (PROPOSE, [0, 1, 2])
  # As many as trained before go on once all others have had the time to show themselves.
  assert ask(*fresh, has_looked=True) == (PROPOSE, [0, 1, 2])
  assert ask(*fresh, silent=[2], has_looked=True) == WAIT
  assert ask(*fresh, lineup=none, has_looked=True) == WAIT


def test_an_agent_is_alive_if_its_card_changes_while_this_host_looks_whatever_clocks_say():
  now = [5e9]
  attendance = Attendance(lease_seconds=10, look_seconds=1, clock=lambda: now[0])

  def look(beat, seconds, generation=0):
    now[0] += seconds
    sight = attendance.look({1: card(1, generation=generation)._replace(beat=beat)})[1]
    return sight.is_alive, sight.is_gone

  assert look(7, 0) == (False, False)  # An older job may have left it.
  assert look(7, 1) == (False, False) and look(8, 1) == (True, False)
  # When this host or its disk stood still, so did all that it could have seen.
  assert look(8, 1000) == (True, False)
  assert [look(8, 1) for _ in range(8)][-2:] == [(True, False), (False, True)]
  assert look(9, 1) == (True, False)
  assert look(1, 1, generation=1) == (False, False)
  assert look(10, 1) == (False, False)  # The card of one that has been replaced.


def test_members_of_a_new_round_get_the_time_of_a_lease():
  now = [0.0]
  attendance = Attendance(lease_seconds=3, look_seconds=1, clock=lambda: now[0])
  attendance.expect(Lineup(1, [card(5)]))
  for _ in range(2):
    now[0] += 1
    assert not attendance.look({})[5].is_gone
  attendance.expect(Lineup(2, [card(5)]))
  now[0] += 1
  assert not attendance.look({})[5].is_gone
  now[0] += 2
  assert attendance.look({})[5].is_gone
