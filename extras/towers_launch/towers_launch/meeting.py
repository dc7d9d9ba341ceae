"""Meeting: the files of a folder that all hosts share, by which their agents agree.

  agent-2.json    the card of the agent in place 2, which rewrites it all the time
  round-7.json    the members of round 7: written once, by the fastest agent
  end.json        the exit code of all: written once

A slow disk makes the agents slow. It cannot make them disagree: a file that is written once is the
same for all who see it, and who does not see it yet cannot write another.
"""

import contextlib
import os
import secrets
from typing import Any, Dict, List, Optional

from towers.base.files import file_aside, sweep
from towers.base.json_files import read_sealed, seal, write_sealed
from towers.base.usage_error import UsageError
from towers_launch.agreement import PHASES, Card, Lineup

_END = 'end.json'
_CARD: Dict[Any, Any] = dict(place=int, generation=int, key=str, address=str, beat=int, phase=str,
                             round=int, code=object)


class Meeting:
  """The files of a folder; `lineups` are those of all rounds so far."""

  def __init__(self, folder: str, *, num_places: int):
    """Makes the folder, and makes sure that agents can agree in it.

    Raises:
      UsageError: it cannot be made or written to, or its file system has no hard links.
    """
    self.lineups: List[Lineup] = []
    self._folder = folder
    self._num_places = num_places
    probe = self._path(f'probe-{secrets.token_hex(8)}')
    try:
      os.makedirs(folder, exist_ok=True)
      sweep(folder)
      write_once(probe, b'')
      os.remove(probe)
    except OSError as error:
      raise UsageError(f'folder {folder} cannot be made or written to, or its file system has no '
                       f'hard links: {error.strerror}. Choose a folder on a disk that all hosts '
                       'share, such as the one of the checkpoints.') from None

  def _path(self, name):
    return os.path.join(self._folder, name)

  def take_place(self, place: int, address: str) -> Card:
    """Returns the card of a new agent, which replaces an older one in its place."""
    older = self._read_card(place)
    return Card(place, older.generation + 1 if older else 0, secrets.token_hex(8), address)

  def show(self, card: Card) -> None:
    """Writes a card; raises OSError."""
    write_sealed(self._path(f'agent-{card.place}.json'), card._asdict())

  def read_cards(self) -> Dict[int, Card]:
    """Returns the cards that can be read, by place."""
    cards = [self._read_card(place) for place in range(self._num_places)]
    return {card.place: card for card in cards if card}

  def _read_card(self, place):
    content = self._read(f'agent-{place}.json', _CARD)
    card = _parse_card(content) if content else None
    return card if card and card.place == place else None

  def read_lineup(self) -> Lineup:
    """Returns the newest round; number 0 if there is none."""
    while True:
      number = len(self.lineups) + 1
      content = self._read(f'round-{number}.json', dict(number=int, members=[_CARD]))
      if content is None:
        return self.lineups[-1] if self.lineups else Lineup(0, [])
      self.lineups.append(Lineup(number, [Card(**card) for card in content['members']]))

  def propose(self, lineup: Lineup) -> None:
    """Writes a round, unless somebody was faster; raises OSError."""
    members = [card._asdict() for card in lineup.members]
    self._write_once(f'round-{lineup.number}.json', dict(number=lineup.number, members=members))

  def read_end(self) -> Optional[int]:
    """Returns the exit code of all, or None as long as there is none."""
    content = self._read(_END, dict(code=int))
    return content['code'] if content else None

  def end(self, code: int) -> None:
    """Ends all with a code, unless they have ended with another; raises OSError."""
    self._write_once(_END, dict(code=code))

  def _write_once(self, name, content):
    write_once(self._path(name), (seal(content) + '\n').encode())

  def _read(self, name, schema) -> Optional[Dict[str, Any]]:
    """Returns what a file holds, or None if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
      return read_sealed(self._path(name), schema)
    return None


def write_once(path: str, content: bytes) -> bool:
  """Writes a new file; returns False, and leaves the other as it is, if somebody was faster.

  Of several processes, on one host or on many, that call it with the same path, all find the same
  content afterwards.

  Raises:
    OSError: it cannot be written, or the file system has no hard links.
  """
  with file_aside(os.path.dirname(path)) as (temporary, file):
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    try:
      os.link(temporary, path)  # Unlike a rename, it replaces nothing.
    except FileExistsError:
      return False
  return True


def _parse_card(content):
  card = Card(**{**Card(-1, 0, '')._asdict(), **content})
  return card if card.phase in PHASES else None
