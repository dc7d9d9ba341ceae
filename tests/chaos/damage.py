"""What befalls the files of a run between two lives."""

import os
import random
from typing import Callable, Dict, List, Optional

from tests.harness import faults
from towers.base.files import PREFIX
from towers.checkpoint.checkpoints import find_checkpoints
from towers.checkpoint.history import HISTORY

_STATE = 'checkpoint'
_NAMES = {HISTORY: HISTORY, _STATE: 'state file'}


_KINDS: Dict[str, Callable[[str, random.Random], None]] = {
    'one byte': lambda path, dice: faults.flip_a_byte(path, dice.randrange(os.path.getsize(path))),
    'cut': lambda path, dice: faults.truncate(path, dice.randrange(os.path.getsize(path))),
    'removed': lambda path, _: os.remove(path)}


class Damage:
  """Damages the files of one run, but never its last whole checkpoint.

  Attributes:
    history: whether the history was damaged, which starts anew then.
  """

  def __init__(self, folder: str):
    self.history = False
    self._folder = folder
    self._damaged: List[str] = []

  def strike(self, dice: random.Random) -> Optional[str]:
    """Damages something; returns what, or None where nothing may be damaged."""
    whole = [path for path in find_checkpoints(self._folder) if path not in self._damaged]
    kind = dice.choice(sorted(_KINDS))
    harm = _KINDS[kind]
    what = dice.choice(['newest', 'newest', HISTORY, _STATE, 'leftovers'])
    if what == 'leftovers':
      self._leave()
      return 'half-written files of a dead process'
    if what == 'newest':
      if len(whole) < 2:
        return None
      self._damaged.append(whole[0])
      suffix = dice.choice(['.index', '.data-00000-of-00001'])
      harm(whole[0] + suffix, dice)
      return f'file of the newest checkpoint: {kind}'
    path = os.path.join(self._folder, what)
    if not os.path.exists(path) or not os.path.getsize(path):
      return None  # It is damaged already.
    self.history = self.history or what == HISTORY
    harm(path, dice)
    return f'{_NAMES[what]}: {kind}'

  def _leave(self):
    os.makedirs(self._folder, exist_ok=True)
    folder = os.path.join(self._folder, f'{PREFIX}dead')
    os.makedirs(folder, exist_ok=True)
    for path in (os.path.join(folder, 'model.ckpt.index'),
                 os.path.join(self._folder, f'{PREFIX}file')):
      with open(path, 'wb') as file:
        file.write(b'half')
