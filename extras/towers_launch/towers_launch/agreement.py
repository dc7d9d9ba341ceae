"""Agreement: how the agents of several hosts come to one list of workers, without a server.

Each agent shows a card, and reads those of the others. Rounds are numbered; the members of a round
are written once, by the fastest agent, and never change:

  READY ──► JOINED ──────► STARTED ──► DONE       all are done: the end
    ▲       none of its    once all    its worker
    │       workers runs   have        ended with 0
    │                      joined
    └───────────────────── its worker has ended because another did, or to be one of more
  RESTING ◄─────────────── its worker was lost: left out for some time
  LEFT                     its agent has ended

A round is over when no worker of it runs, or ever will: each member is out of it, has been replaced
by a new agent, or shows no change for the time of a lease. Then any agent may write the next one.
While its worker runs, an agent ends a round only if another member is out of it or silent, or if
more can take part.

No clock is compared with another: an agent is alive if its card changes while this host looks.
Whatever agents see late or wrongly, a worker starts only in a round that all its members have
joined, and no member of a round still runs a worker of an older one. Nothing here touches files.
"""

import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

READY, JOINED, STARTED, DONE = 'ready', 'joined', 'started', 'done'
RESTING, LEFT = 'resting', 'left'
PHASES = (READY, JOINED, STARTED, DONE, RESTING, LEFT)
_OUT = (READY, RESTING, LEFT)


class Card(NamedTuple):
  """What an agent shows to the others."""
  place: int  # Of its host among all; the ranks of workers follow this order.
  generation: int  # How many agents had this place before.
  key: str  # Tells agents apart that came to one place at once.
  address: str = ''  # 'host:port' of its worker in the next round.
  beat: int = 0  # Changes with each writing.
  phase: str = READY  # Of its part in a round.
  round: int = 0  # The last one that it had a part in; 0 for none.
  code: int = 0  # The exit code of its worker in that round.

  @property
  def identity(self) -> Tuple[int, str]:
    """Of the agent among those of its place; the highest counts."""
    return self.generation, self.key


class Lineup(NamedTuple):
  """The members of a round."""
  number: int  # Of the round; 0 before the first.
  members: Sequence[Card]  # Their cards at the time, by rank.


class Sight(NamedTuple):
  """An agent as another one sees it."""
  card: Card  # Its last one.
  is_alive: bool  # Whether the card has changed of late.
  is_gone: bool  # Whether it has not for the time of a lease. A card just found is neither.


class _Watched:
  """A card, and for how many seconds of looking it has not changed."""

  def __init__(self, card: Card):
    self.card = card
    self.has_changed = False
    self.silence = 0.0


class Attendance:
  """Which agents are alive, as this host sees them."""

  def __init__(self, *, lease_seconds: float, look_seconds: float,
               clock: Callable[[], float] = time.monotonic):
    """Has seen nobody.

    Args:
      lease_seconds: after which an agent whose card does not change is gone.
      look_seconds: about how often `look` is called. When this host itself stops for longer, as
        when the disk does, no more than twice as much counts as the silence of others.
      clock: returns seconds.
    """
    self._lease_seconds = lease_seconds
    self._most_seconds = 2 * look_seconds
    self._clock = clock
    self._looked = clock()
    self._watched: Dict[int, _Watched] = {}

  def look(self, cards: Mapping[int, Card]) -> Dict[int, Sight]:
    """Takes the cards of this moment by place, as far as they can be read; returns who is there."""
    now = self._clock()
    passed, self._looked = min(now - self._looked, self._most_seconds), now
    for place, card in cards.items():
      watched = self._watched.get(place)
      if watched is None or card.identity > watched.card.identity:
        self._watched[place] = _Watched(card)
      elif card.identity == watched.card.identity and card.beat != watched.card.beat:
        watched.card, watched.has_changed, watched.silence = card, True, -passed
    for watched in self._watched.values():
      watched.silence += passed
    return {place: Sight(watched.card, watched.has_changed and not self._is_silent(watched),
                         self._is_silent(watched))
            for place, watched in self._watched.items()}

  def _is_silent(self, watched):
    return watched.silence >= self._lease_seconds

  def expect(self, lineup: Lineup) -> None:
    """Gives the members of a new round the time of a lease."""
    for card in lineup.members:
      watched = self._watched.get(card.place)
      if watched is None or card.identity > watched.card.identity:
        self._watched[card.place] = _Watched(card)
      else:
        watched.silence = 0.0


class Step(NamedTuple):
  """What an agent does next."""
  verb: str  # One of WAIT, JOIN, START, STOP, REFUSE, PROPOSE and FINISH.
  lineup: Optional[Lineup] = None  # To propose.


WAIT, JOIN, START, STOP = 'wait', 'join', 'start', 'stop'
REFUSE, PROPOSE, FINISH = 'refuse', 'propose', 'finish'


def decide(me: Card, lineup: Lineup, sights: Mapping[int, Sight], *, workers: int,
           min_workers: int, may_grow: bool, has_waited: bool, has_looked: bool) -> Step:
  """Returns what an agent does next.

  Args:
    me: its own card.
    lineup: the newest round.
    sights: of the others, by place.
    workers: that take part at most.
    min_workers: at least.
    may_grow: whether a round that runs may end to become one of more workers.
    has_waited: whether agents that had no part in a round yet may begin with fewer than all.
    has_looked: whether they have looked for the time of a lease, so that all others have shown
      themselves, and they may begin with as many as the last round had.
  """
  others = [card for card in lineup.members if card.place != me.place]
  is_member = any(card.place == me.place and card.identity == me.identity
                  for card in lineup.members)
  if me.phase == STARTED:
    if lineup.number > me.round or any(
        is_out(card, lineup, sights) or sights[card.place].is_gone for card in others):
      return Step(STOP)
    runs = all(sights[card.place].is_alive and sights[card.place].card.phase == STARTED
               for card in others)
    more = choose(me, lineup, sights, workers=workers, min_workers=min_workers)
    return _propose(lineup, more) if may_grow and runs and len(more) > len(lineup.members) else \
        Step(WAIT)

  if is_member and me.round < lineup.number:
    return Step(JOIN)
  if is_member and me.phase == JOINED:
    if any(is_out(card, lineup, sights) or sights[card.place].is_gone for card in others):
      return Step(REFUSE)
    have_joined = all(sights[card.place].card.round == lineup.number for card in others)
    return Step(START if have_joined else WAIT)
  if me.phase == JOINED and not is_member:
    return Step(REFUSE)
  if lineup.members and all(is_done(card, lineup, sights) for card in others):
    if is_member and me.phase == DONE:
      return Step(FINISH)
    if not is_member and not all(sights[card.place].is_gone for card in others):
      return Step(WAIT)  # For one of them to say so.

  if not all(is_out(card, lineup, sights) or is_done(card, lineup, sights) or
             sights[card.place].is_gone for card in others):
    return Step(WAIT)
  chosen = choose(me, lineup, sights, workers=workers, min_workers=min_workers)
  goes_on = any(card.round for card in chosen)  # It has waited for all others before.
  may_begin = (goes_on or has_waited or len(chosen) == workers or
               has_looked and 0 < len(lineup.members) <= len(chosen))
  return _propose(lineup, chosen) if chosen and may_begin else Step(WAIT)


def _propose(lineup, members):
  return Step(PROPOSE, Lineup(lineup.number + 1, members))


def is_out(member: Card, lineup: Lineup, sights: Mapping[int, Sight]) -> bool:
  """Whether a member's worker does not run in a round, nor ever will again."""
  card = sights[member.place].card
  return (card.identity > member.identity or card.round > lineup.number or
          card.round == lineup.number and card.phase in _OUT)


def is_done(member: Card, lineup: Lineup, sights: Mapping[int, Sight]) -> bool:
  """Whether a member's worker has ended with 0."""
  card = sights[member.place].card
  return (card.identity == member.identity and card.round == lineup.number and
          card.phase == DONE)


def choose(me: Card, lineup: Lineup, sights: Mapping[int, Sight], *, workers: int,
           min_workers: int) -> List[Card]:
  """Returns the members of the next round, by rank; none if there are too few.

  Those that rest take part only if the others are too few, the one that was lost first before the
  others; and if all of several were lost in one round, whose cause is then no worker.
  """
  cards = [me, *(sight.card for place, sight in sorted(sights.items())
                 if sight.is_alive and place != me.place)]
  running = [card for card in cards if card.phase == STARTED and card.round == lineup.number]
  ready = [card for card in cards if card.phase in (READY, DONE)] + running
  resting = sorted((card for card in cards if card.phase == RESTING),
                   key=lambda card: (card.round, card.place))
  lost = [card for card in resting if card.round == lineup.number]
  if 1 < len(lost) == len(lineup.members):
    ready += lost
    resting = [card for card in resting if card not in lost]
  chosen = ready + resting[:max(0, min_workers - len(ready))]
  return sorted(chosen)[:workers] if len(chosen) >= min_workers else []
