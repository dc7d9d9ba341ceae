"""Launch: starts a command once for each worker on this machine, and again from the checkpoint when
one fails.

  python -m towers.launch --workers=2 --evaluator -- python main.py --checkpoint_dir=runs/a

  launch ──┬─► worker 0    TF_CONFIG: worker 0 of 127.0.0.1:P0, 127.0.0.1:P1; the chief
           ├─► worker 1    TF_CONFIG: worker 1 of the same
           └─► evaluator   TF_CONFIG: evaluator 0, beside the same workers

  all end with 0            waits for the evaluator, ends with 0
  one fails                 SIGTERM to the others, SIGKILL after the grace; all start again,
                            on other ports
  one ends with 2           the same, but nothing starts again: a mistake stays one
  Ctrl-C, SIGTERM           sent on once, and all leave by themselves; a second is SIGKILL to all
  launch itself is killed   `towers/launch/orphans.py` kills all

The exit code is that of the first worker that failed by itself; 130 and 143 after Ctrl-C and
SIGTERM. `towers/launch/child_process.py` is one child, `towers/launch/children.py` waits for all.
"""

import argparse
import os
import shutil
import sys
from typing import List, NamedTuple, Optional, Sequence

from towers.base.cores import list_cores
from towers.base.usage_error import UsageError
from towers.launch.child_process import ChildProcess
from towers.launch.children import Children, say
from towers.launch.ports import find_free_ports
from towers.launch.tf_config import Parser, format_tf_config
from towers.training.faults.signals import exit_code

# Exit codes of workers that mean something here.
_MISTAKE = 2
_ANOTHER_IS_GONE = 75
_EVALUATOR = 'evaluator'

# When a worker ends because another is gone, that other is heard of within this time.
_SECONDS_TO_FIND_THE_CAUSE = 1.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class Member(NamedTuple):
  """What is to be started.

  Attributes:
    name: in messages and before its lines.
    task_type: 'worker' or 'evaluator'.
    task_index: among those of its type.
    gpus: for CUDA_VISIBLE_DEVICES, or None to leave it as it is.
    cores: to run on, all if empty.
  """
  name: str
  task_type: str
  task_index: int
  gpus: Optional[Sequence[str]]
  cores: Sequence[int]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
  """Returns the flags, and the command's words as `command`; raises UsageError, and SystemExit for
  --help.
  """
  parser = Parser(
      prog='launch', usage='python -m towers.launch --workers=N [flags] -- COMMAND [its flags]',
      description='Starts COMMAND once for each worker, with its TF_CONFIG, and all again from the '
                  'checkpoint when one '
      'fails.', allow_abbrev=False)
  parser.add_argument('--workers', type=int, required=True, help='how many; the first is the chief')
  parser.add_argument('--evaluator', action='store_true', help='one more process, which follows '
                                                               'the checkpoints')
  parser.add_argument('--restarts', type=int, default=3, help='how often all are started again '
                                                              '(default: %(default)s)')
  parser.add_argument('--grace_seconds', type=float, default=30.0,
                      help='from SIGTERM to SIGKILL when another worker has failed (default: '
                           '%(default)s)')
  parser.add_argument('--gpus_per_worker', type=int,
                      help='of those in CUDA_VISIBLE_DEVICES, or from 0; the evaluator comes last')
  parser.add_argument('--cores_per_worker', type=int, help='to pin each worker to; the evaluator '
                                                           'comes last')
  words = [*arguments, '--']
  flags, command = words[:words.index('--')], words[words.index('--') + 1:-1]
  given, unknown = parser.parse_known_args(flags)
  if unknown:
    raise UsageError(f'{unknown[0]} is no flag of launch: the command and its flags stand after '
                     '--. See --help.')
  given.command = command
  _check(given)
  return given


def _check(given):
  for name, least in (('workers', 1), ('restarts', 0), ('grace_seconds', 0), ('gpus_per_worker', 0),
                      ('cores_per_worker', 1)):
    value = getattr(given, name)
    if value is not None and not value >= least:
      raise UsageError(f'{name}={value} must be at least {least}.')
  if not given.command:
    raise UsageError('there is no command to start: give it after --, as in --workers=2 -- python '
                     'main.py.')
  if shutil.which(given.command[0]) is None:
    raise UsageError(f'the command {given.command[0]} is not found, or is no program: give its '
                     'path, or put its folder on PATH.')
  if 'TF_CONFIG' in os.environ:
    raise UsageError('TF_CONFIG is set, so this process is already one of a cluster, and launch '
                     'would start another '
                     'cluster inside of it. Start the command itself, or unset TF_CONFIG.')


def plan_members(given: argparse.Namespace) -> List[Member]:
  """Returns the workers, then the evaluator; raises UsageError if there are too few GPUs or cores
  for them.
  """
  tasks = [(f'worker {index}', 'worker', index) for index in range(given.workers)]
  tasks += [(_EVALUATOR, _EVALUATOR, 0)] * given.evaluator
  gpus: List[Optional[Sequence[str]]] = [None] * len(tasks)
  cores: List[Sequence[int]] = [[]] * len(tasks)
  if given.gpus_per_worker is not None:
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    if visible is None:
      names = [str(number) for number in range(given.gpus_per_worker * len(tasks))]
    else:
      names = [name for name in visible.split(',') if name]
    gpus = _share('gpus_per_worker', given.gpus_per_worker, names, len(tasks),
        'CUDA_VISIBLE_DEVICES has')
  if given.cores_per_worker is not None:
    if not hasattr(os, 'sched_setaffinity'):
      raise UsageError('cores_per_worker needs Linux: leave it out.')
    cores = _share('cores_per_worker', given.cores_per_worker, list_cores(), len(tasks),
        'this process may use')
  return [
      Member(*task, gpus=gpus[number], cores=cores[number]) for number, task in enumerate(tasks)
  ]


def _share(flag, each, things, num_members, which_has):
  """Returns `each` of the things for each member."""
  if each * num_members > len(things):
    raise UsageError(f'{flag}={each} takes {each * num_members} for {num_members} processes, and '
                     f'{which_has} {len(things)}: use at most {int(len(things) // num_members)}, '
                     'or fewer processes.')
  return [things[number * each:(number + 1) * each] for number in range(num_members)]


def run_once(children: Children, given: argparse.Namespace,
             members: Sequence[Member]) -> Optional[ChildProcess]:
  """Starts all members, and returns when all are gone.

  Args:
    children: entered.
    given: the flags.
    members: of `plan_members`.
  Returns:
    The worker that was the first to fail by itself, or an evaluator that has failed beside workers
    that are done.
  Raises:
    UsageError: the command cannot be executed.
  """
  addresses = [f'127.0.0.1:{port}' for port in find_free_ports(given.workers)]
  started = [
      _start(children, number, member, given.command, addresses)
      for number, member in enumerate(members)
  ]
  workers, evaluators = started[:given.workers], started[given.workers:]

  def have_ended():
    return all(worker.returncode is not None for worker in workers)

  def failed():
    return [child for child in children.ended if child in workers and child.has_failed]

  def causes():
    return [worker for worker in failed() if worker.returncode != _ANOTHER_IS_GONE]

  children.wait(lambda: children.interrupted_by or failed() or have_ended())
  if failed() and not children.interrupted_by:
    children.wait(lambda: causes() or have_ended(), _SECONDS_TO_FIND_THE_CAUSE)
    cause = (causes() or failed())[0]
    if not children.have_ended():
      say(f'{cause.name} has failed; all others get SIGTERM, and {given.grace_seconds:g} s to leave'
         )
    children.leave(given.grace_seconds)
    return cause

  if have_ended() and not children.have_ended():
    say('the workers are done; waiting for the evaluator, which ends by itself after the last '
        'checkpoint')
  children.wait(children.have_ended)
  return next((child for child in evaluators if child.has_failed), None)


def _start(children, number, member, command, addresses):
  environment = dict(os.environ, TF_CONFIG=format_tf_config(addresses, member.task_type,
                                                            member.task_index))
  # Into a pipe Python writes only when it has much to write; what a worker says should be seen when
  # it says it.
  environment.setdefault('PYTHONUNBUFFERED', '1')
  if member.gpus is not None:
    environment['CUDA_VISIBLE_DEVICES'] = ','.join(member.gpus)
  try:
    return children.start(member.name, command, environment=environment, cores=member.cores,
                          number=number)
  except OSError as error:
    raise UsageError(f'the command {command[0]} cannot be executed: {error.strerror}.') from error


def run(given: argparse.Namespace, members: Sequence[Member]) -> int:
  """Starts all, and again as often as it may help; returns the exit code."""
  num_restarts = 0
  with Children() as children:
    while True:
      failed = run_once(children, given, members)
      if children.interrupted_by:
        return exit_code(children.interrupted_by)
      if failed is None:
        return 0
      end = _why_it_ends(failed, num_restarts, given.restarts)
      if end:
        say(f'error: {failed.describe_end()}; {end}.')
        return failed.shell_code
      seconds = min(_FIRST_PAUSE_SECONDS * 2 ** num_restarts, _LONGEST_PAUSE_SECONDS)
      num_restarts += 1
      say(f'restart {num_restarts} of {given.restarts} in {seconds:g} s')
      children.wait(lambda: children.interrupted_by, seconds)
      if children.interrupted_by:
        return exit_code(children.interrupted_by)


def _why_it_ends(failed, num_restarts, most_restarts):
  """Returns why no restart helps, or nothing if one may."""
  if failed.name == _EVALUATOR:
    return 'the workers are done'
  if failed.returncode == _MISTAKE:
    return 'a mistake to correct, which no restart mends'
  return f'restarts: {num_restarts} of {most_restarts}' if num_restarts == most_restarts else ''


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Runs a command line; returns the exit code."""
  try:
    given = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    return run(given, plan_members(given))
  except UsageError as error:
    say(f'error: {error}')
    return 2


if __name__ == '__main__':
  sys.exit(main())
