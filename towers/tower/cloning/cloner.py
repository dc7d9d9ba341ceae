"""Cloner: which towers are clones of an earlier one, and what happens where one cannot be cloned.

  reuse   the model is called for every tower
  clone   a tower is a clone of the first one whose batch has the same static shapes
  auto    as clone, where it can be done and a tower has so many ops that it saves time
"""

import sys
from typing import Any, Callable, Collection, Dict, Hashable, Optional, Sequence

from towers.base.output import write_line
from towers.base.usage_error import UsageError, check_choice
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.tower.cloning.pattern import Pattern, find_static
from towers.tower.recording import Recording
from towers.tower.tower import Tower

TOWER_BUILDS = ('reuse', 'clone', 'auto')
# A clone of a smaller tower, too, takes less time than another call, but saves no tenth of a second
# on two towers; and a model that cannot be cloned would say so for it.
_OPS_WORTH_CLONING = 500


class Cloner:
  """Clones towers where it can; after a failure the model builds all further ones."""

  def __init__(self, build: str, store: VariableStore, batches: Sequence[Batch], *,
               left_out: Collection[str] = ()):
    """Knows no tower on these batches yet; clones add nothing to the collections `left_out`."""
    check_choice('tower_build', build, TOWER_BUILDS)
    self._build = build
    self._store = store
    self._batches = batches
    self._left_out = left_out
    # For each batch what is static in it, and by that the tower to clone.
    self._static = list(map(find_static, batches))
    self._patterns: Dict[Hashable, Pattern] = {}

  def clone(self, index: int, device: str) -> Optional[Tower]:
    """Returns tower `index` as a clone of an earlier one, or None where the model must build it.

    Raises:
      UsageError: a tower cannot be cloned, and `build` is 'clone'.
    """
    pattern = self._patterns.get(self._static[index])
    if pattern is None:
      return None
    return self._attempt(pattern.clone, self._batches[index], index, device)

  def add(self, index: int, tower: Tower, recording: Recording) -> None:
    """Takes a tower that the model has built as the pattern of later ones, where that is worth it.

    Raises what `clone` does.
    """
    static, *later = self._static[index:]
    # A layer of Keras holds the first tower's variables; a clone takes those of its own tower.
    is_worth = self._build == 'clone' or self._build == 'auto' and (
        self._store.replicas or len(recording.on_device) >= _OPS_WORTH_CLONING)
    if static in later and is_worth:
      pattern = self._attempt(Pattern, tower, recording, store=self._store, left_out=self._left_out)
      if pattern is not None:
        self._patterns[static] = pattern

  def _attempt(self, make: Callable[..., Any], *args, **settings) -> Optional[Any]:
    """Returns what `make` makes; if that fails, warns in one line and turns cloning off."""
    try:
      return make(*args, **settings)
    except Exception as error:
      reason = str(error) if isinstance(error, UsageError) else (
          f'TensorFlow cannot copy the tower: {type(error).__name__}: {error}.')
      if self._build == 'clone':
        raise UsageError(f'tower_build=clone: {reason} Build with tower_build=reuse.') from error
      # Nothing is wrong, and nothing to be done.
      write_line('tower_build=auto calls the model for every tower, as tower_build=reuse does, '
                 f'since the first cannot be cloned: {" ".join(reason.split())}', sys.stderr)
      self._build, self._patterns = 'reuse', {}
      return None
