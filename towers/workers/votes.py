"""Votes: what the workers of a run want together, such as to save; each step sums their votes."""

from typing import Any, Optional

from towers.process.run_error import RunError
from towers.reduce.average import VOTES


class VoteCounter:
  """The votes of this worker, and those of all."""

  def __init__(self, session: Any, votes: Optional[Any]):
    """Takes an open session, and the program's votes, or None for one worker alone."""
    self._session, self._votes = session, votes
    self._own = dict.fromkeys(VOTES, False)
    self._agreed = dict.fromkeys(VOTES, False)

  def agree(self, request: str, wants: bool) -> bool:
    """Casts this worker's vote; returns whether any has voted for the request, one of `VOTES`.

    With several workers, votes count once a step has exchanged them, this worker's included: once
    for 'save', and for good for those that end the run.
    """
    if self._votes is None:
      return wants
    is_agreed = self._agreed[request]
    self._agreed[request] = is_agreed and request != 'save'
    wants = wants and not is_agreed  # A request that passed needs no vote any more.
    if wants != self._own[request]:
      self._own[request] = wants
      self._votes.own.load([float(self._own[name]) for name in VOTES], self._session)
    return is_agreed

  def count(self, sums: Any, step: int) -> None:
    """Counts the votes of all workers, summed after `step` updates; a RunError if that differs."""
    is_same_step, *counts = sums
    if not is_same_step:
      raise RunError(f'The workers are not at the same step: this one has done {step}. One of '
                     'them was started again alone, or from other checkpoints. This step has '
                     'updated and saved nothing: end all workers, and start all of them again.')
    for name, count in zip(VOTES, counts):
      self._agreed[name] |= bool(count > 0)
