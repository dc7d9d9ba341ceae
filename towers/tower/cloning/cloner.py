"""Cloner: which towers are clones of an earlier one, and what happens where one cannot be cloned.

  reuse   the model is called for every tower
  clone   a tower is a clone of the first one whose batch has the same static shapes
  auto    as clone, where it can be done and a tower has so many ops that it saves time
"""

import logging
from typing import Any, Callable, Collection, Dict, Hashable, Optional, Sequence

from towers.base.usage_error import UsageError, check_choice
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.tower.cloning.pattern import Pattern, find_static
from towers.tower.recording import Recording, record_tower
from towers.tower.tower import Tower

TOWER_BUILDS = ('reuse', 'clone', 'auto')
# A clone of a smaller tower, too, takes less time than another call, but saves no tenth of a second
# on two towers; and a model that cannot be cloned would say so for it.
_OPS_WORTH_CLONING = 500


class Cloner:
  """Clones towers where it can; after a failure the model builds all further ones."""

  def __init__(self, build: str, store: VariableStore, *, left_out: Collection[str] = ()):
    """Knows no tower yet; clones add nothing to the collections `left_out`."""
    check_choice('tower_build', build, TOWER_BUILDS)
    self._build = build
    self._store = store
    self._left_out = left_out
    # By what is static in the batches of towers.
    self._patterns: Dict[Hashable, Pattern] = {}

  def build(self, batches: Sequence[Batch], index: int, device: str,
            by_model: Callable[[int, Recording], Tower]) -> Tower:
    """Returns tower `index` of those on `batches`, a clone of an earlier one or built `by_model`.

    Raises:
      UsageError: a tower cannot be cloned, and `build` is 'clone'.
    """
    static, *later = map(find_static, batches[index:])
    if static in self._patterns:
      clone = self._attempt(self._patterns[static].clone, batches[index], index, device)
      if clone is not None:
        return clone
    recording = record_tower(device)
    tower = by_model(index, recording)
    # A layer of Keras holds the first tower's variables; a clone takes those of its own tower.
    is_worth = (self._build == 'clone' or self._build == 'auto' and (
        self._store.replicas or len(recording.on_device) >= _OPS_WORTH_CLONING))
    if static in later and is_worth:
      made = self._attempt(Pattern, tower, recording, store=self._store, left_out=self._left_out)
      self._patterns.update({} if made is None else {static: made})
    return tower

  def _attempt(self, make: Callable[..., Any], *args, **settings) -> Optional[Any]:
    """Returns what `make` makes; if that fails, warns in one line and turns cloning off."""
    try:
      return make(*args, **settings)
    except Exception as error:
      reason = str(error) if isinstance(error, UsageError) else (
          f'TensorFlow cannot copy the tower: {type(error).__name__}: {error}. Build with '
          'tower_build=reuse.')
      if self._build == 'clone':
        raise UsageError(f'tower_build=clone: {reason}') from error
      logging.getLogger('towers').warning(
          'tower_build=auto calls the model for every tower instead of cloning the first. %s',
          ' '.join(reason.split()))
      self._build, self._patterns = 'reuse', {}
      return None
