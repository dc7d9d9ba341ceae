"""Cloner: which towers are clones of an earlier one, and what happens where one cannot be cloned.

  reuse   the model is called for every tower
  clone   a tower is a clone of the first one whose batch has the same static shapes
  auto    as clone, where it can be done and a tower has so many ops that it saves time
"""

import logging
from typing import Any, Callable, Collection, List, Optional, Sequence

from towers.base.usage_error import UsageError
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.tower.cloning.pattern import Pattern, Recording, has_same_shapes

TOWER_BUILDS = ('reuse', 'clone', 'auto')
# A clone of a smaller tower, too, takes less time than another call, but saves no tenth of a second
# on two towers; and a model that cannot be cloned would say so for it.
_OPS_WORTH_CLONING = 500


class Cloner:
  """Clones towers where it can; after a failure the model builds all further ones."""

  def __init__(self, build: str, store: VariableStore, *, left_out: Collection[str] = ()):
    """Knows no tower yet.

    Args:
      build: one of `TOWER_BUILDS`.
      store: of the towers' variables.
      left_out: collections that clones add nothing to.

    Raises:
      UsageError: an unknown build.
    """
    if build not in TOWER_BUILDS:
      raise UsageError(f"tower_build={build}: choose one of {', '.join(TOWER_BUILDS)}.")
    self._build = build
    self._store = store
    self._left_out = left_out
    self._patterns: List[Pattern] = []

  def clone(self, batch: Batch, *, index: int, device: str) -> Optional[Any]:
    """Returns tower `index` as a clone of an earlier one, or None if the model is to be called.

    Raises:
      UsageError: a clone fails, and `build` is 'clone'.
    """
    pattern = next((pattern for pattern in self._patterns if pattern.fits(batch)), None)
    if pattern is None:
      return None
    return self._attempt(pattern.clone, batch, index=index, device=device,
                         replicas=self._store.replicas.get(index, {}))

  def add_pattern(self, tower: Any, batch: Batch, recording: Recording, *, index: int,
                  later: Sequence[Batch]) -> None:
    """Makes a pattern of a built tower, if later ones are to be cloned from it.

    Args:
      tower: with the gradients of its own loss.
      batch: of the tower.
      recording: of the tower.
      index: of the tower.
      later: the batches of all towers after it.

    Raises:
      UsageError: the tower cannot be cloned, and `build` is 'clone'.
    """
    if not self._is_worth_cloning(batch, recording, later):
      return
    store = self._store
    replicated = {name for replicas in store.replicas.values() for name in replicas}
    pattern = self._attempt(Pattern, tower, batch, recording, index=index, seed=store.seed,
                            first_tower=store.first_tower, left_out=self._left_out,
                            replicated=replicated)
    if pattern is not None:
      self._patterns.append(pattern)

  def _is_worth_cloning(self, batch, recording, later):
    if self._build == 'reuse' or not any(has_same_shapes(batch, other) for other in later):
      return False
    # A layer of Keras holds the first tower's variables; a clone takes those of its own tower.
    return (self._build == 'clone' or bool(self._store.replicas)
            or recording.count_ops() >= _OPS_WORTH_CLONING)

  def _attempt(self, make: Callable[..., Any], *args, **settings) -> Optional[Any]:
    """Returns what `make` makes; if that fails, warns in one line and turns cloning off."""
    try:
      return make(*args, **settings)
    except Exception as error:
      reason = str(error) if isinstance(error, UsageError) else (
          f'TensorFlow cannot copy the tower: {type(error).__name__}: {error}.')
      if self._build == 'clone':
        raise UsageError(f'tower_build=clone: {reason}') from error
      logging.getLogger('towers').warning(
          'tower_build=auto calls the model for every tower instead of cloning the first. %s',
          ' '.join(reason.split()))
      self._build, self._patterns = 'reuse', []
      return None
