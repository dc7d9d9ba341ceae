"""Round: one life of all processes, from their start on fresh ports until the last has ended.

  how it ends                     afterwards
  all workers end with 0          nothing starts again
  one fails                       SIGTERM to the others, SIGKILL after the grace
  one asks for a start again      the same, but nobody is to blame
  others are to take part again   SIGTERM to all, which save
"""

import os
import secrets
import signal
from typing import List, NamedTuple, Optional, Sequence

from towers.base.default_signals import HANDLED
from towers.base.usage_error import UsageError
from towers.placement.cluster import ELASTIC, TOKEN
from towers.process.run_error import StartAgain, WorkerGone
from towers.process.signals import exit_code
from towers_launch.child_process import ChildProcess
from towers_launch.children import Children, say
from towers_launch.members import Member
from towers_launch.ports import find_free_ports
from towers_launch.tf_config import format_tf_config

# Exit codes of workers that nothing is wrong with, as of those that a signal has asked to leave.
_BLAMELESS = {0, WorkerGone.exit_code, StartAgain.exit_code,
              *(code for number in HANDLED for code in (-number, exit_code(number)))}

# A worker that ends because another is gone may end first; the other ends within this time.
_SECONDS_TO_FIND_THE_CAUSE = 1.0


class RoundEnd(NamedTuple):
  """How a round ended.

  Attributes:
    failed: the first worker that failed by itself, or an evaluator that failed although no worker
      did; None if all went well.
    lost: ranks of the workers that are to blame for a failure.
    is_stopped: whether all were stopped, so that others may take part again.
  """
  failed: Optional[ChildProcess] = None
  lost: Sequence[int] = ()
  is_stopped: bool = False


class Round:
  """The processes of one round."""

  def __init__(self, children: Children, command: Sequence[str], workers: Sequence[Member],
               evaluators: Sequence[Member], *, is_elastic: bool = False):
    """Starts them.

    Raises:
      UsageError: the command cannot be executed.
    """
    self._children = children
    self._is_elastic = is_elastic
    self._token = secrets.token_hex(16)
    addresses = [f'127.0.0.1:{port}' for port in find_free_ports(len(workers))]
    started = [self._start(index, member, command, addresses)
               for index, member in enumerate([*workers, *evaluators])]
    self._workers, self._evaluators = started[:len(workers)], started[len(workers):]

  def _start(self, index, member, command, addresses):
    tf_config = format_tf_config(addresses, member.task_type, member.task_index)
    environment = {**os.environ, 'TF_CONFIG': tf_config, TOKEN: self._token}
    if self._is_elastic:
      environment[ELASTIC] = '1'
    # Otherwise Python keeps lines back until it has many, when it writes to a pipe.
    environment.setdefault('PYTHONUNBUFFERED', '1')
    if member.gpus is not None:
      environment['CUDA_VISIBLE_DEVICES'] = ','.join(member.gpus)
    else:
      # The first process would take all memory of the GPUs that it shares with the others.
      environment.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
    try:
      return self._children.start(member.name, command, environment=environment,
                                  cores=member.cores, index=index)
    except OSError as error:
      raise UsageError(
          f'the command {command[0]} cannot be executed: {error.strerror}.') from error

  def _have_ended(self) -> bool:
    return all(worker.returncode is not None for worker in self._workers)

  def _failed(self) -> List[ChildProcess]:
    return [child for child in self._children.ended
            if child in self._workers and child.has_failed]

  def _causes(self) -> List[ChildProcess]:
    return [worker for worker in self._failed() if worker.returncode != WorkerGone.exit_code]

  def wait(self, *, grace_seconds: float, seconds: float, can_grow: bool) -> RoundEnd:
    """Waits until all have ended; returns how the round ended.

    It stops them after `seconds` and, if it `can_grow`, at SIGUSR1.
    """
    children = self._children
    children.wait(lambda: (children.interrupted_by or self._failed() or self._have_ended()
                           or (can_grow and children.wants_more)), seconds)
    if children.interrupted_by:
      children.wait(children.have_ended)
      return RoundEnd()
    if self._failed():
      return self._end_all(grace_seconds)
    if not self._have_ended():
      return self._stop(grace_seconds)

    if not children.have_ended():
      say('the workers are done; waiting for the evaluator, which ends by itself after the last '
          'checkpoint')
    children.wait(children.have_ended)
    return RoundEnd(next((child for child in self._evaluators if child.has_failed), None))

  def _end_all(self, grace_seconds):
    """Ends the others of a worker that has failed, and finds out which are to blame."""
    children = self._children
    children.wait(lambda: self._causes() or self._have_ended(), _SECONDS_TO_FIND_THE_CAUSE)
    cause = (self._causes() or self._failed())[0]
    if cause.returncode == StartAgain.exit_code:
      # Each time it asks for less than before, so that it ends.
      say(f'{cause.name} has no memory for its share; all start again with smaller ones')
      children.leave(grace_seconds)
      return RoundEnd(is_stopped=True)
    lost = [worker for worker in self._causes() if worker.returncode not in _BLAMELESS]
    running = [worker for worker in self._workers if worker.returncode is None]
    if not self._causes() and len(running) == 1:
      lost = running  # All others have ended because of it.
    if not children.have_ended():
      say(f'{cause.name} has failed; all others get SIGTERM, and {grace_seconds:g} s to leave')
    children.leave(grace_seconds)
    # Meanwhile others may have failed as well: all, if the cause is no worker.
    codes = {worker.returncode for worker in lost if worker not in running} | {-signal.SIGKILL}
    lost = lost + [worker for worker in running if worker.returncode in codes]
    return RoundEnd(cause, self._ranks(lost))

  def _stop(self, grace_seconds):
    """Stops all, so that others may take part again."""
    self._children.leave(grace_seconds)
    if all(worker.returncode == 0 for worker in self._workers):
      return RoundEnd()
    lost = [worker for worker in self._workers if worker.returncode not in _BLAMELESS]
    return RoundEnd(lost[0] if lost else None, self._ranks(lost), is_stopped=True)

  def _ranks(self, workers):
    return [rank for rank, worker in enumerate(self._workers) if worker in workers]
