"""Launch: starts a command once for each worker on this machine, and again if one fails.

  python -m towers.launch --workers=2 --evaluator -- python main.py --checkpoint_dir=runs/a

  launch ──┬─► worker 0    TF_CONFIG: worker 0 of 127.0.0.1:P0, 127.0.0.1:P1; the chief
           ├─► worker 1    TF_CONFIG: worker 1 of the same
           └─► evaluator   TF_CONFIG: evaluator 0, beside the same workers

  all end with 0            waits for the evaluator, ends with 0
  one fails                 SIGTERM to the others, SIGKILL after the grace; all start again,
                            on other ports
  one ends with 2           the same, but no restart: a restart mends no mistake
  Ctrl-C, SIGTERM, SIGHUP   forwarded once, and all leave by themselves; a second is SIGKILL to all
  launch itself is killed   `towers/launch/orphans.py` kills all

The exit code is that of the first worker that failed by itself; 129, 130 and 143 after SIGHUP,
Ctrl-C and SIGTERM. `towers/launch/child_process.py` is one child, `towers/launch/children.py` waits
for all, and `towers/launch/network.py` keeps others away from them.
"""

import argparse
import os
import shutil
import sys
from typing import Optional, Sequence

from towers.base.output import open_closed_streams
from towers.base.usage_error import UsageError
from towers.launch.child_process import ChildProcess
from towers.launch.children import Children, say
from towers.launch.members import EVALUATOR, Member, plan_members
from towers.launch.network import CHOICES, OPEN, choose_network
from towers.launch.ports import find_free_ports
from towers.launch.tf_config import Parser, format_tf_config
from towers.training.faults.signals import exit_code

# Exit codes of workers.
_MISTAKE = 2
_ANOTHER_IS_GONE = 75

# A worker that ends because another is gone may end first; the other ends within this time.
_SECONDS_TO_FIND_THE_CAUSE = 1.0
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
  """Returns the flags, with the words after `--` as `command`.

  Raises:
    UsageError: a wrong flag or command.
    SystemExit: after --help.
  """
  parser = Parser(
      prog='launch', usage='python -m towers.launch --workers=N [flags] -- COMMAND [its flags]',
      description='Starts COMMAND once for each worker, with its TF_CONFIG, and all again from the '
                  'checkpoint when one fails.',
      allow_abbrev=False)
  parser.add_argument('--workers', type=int, required=True, help='how many; the first is the chief')
  parser.add_argument('--evaluator', action='store_true',
                      help='one more process, which follows the checkpoints')
  parser.add_argument('--restarts', type=int, default=3,
                      help='how often all start again (default: %(default)s)')
  parser.add_argument('--grace_seconds', type=float, default=30.0,
                      help='from SIGTERM to SIGKILL when another worker has failed '
                           '(default: %(default)s)')
  parser.add_argument('--gpus_per_worker', type=int,
                      help='of those in CUDA_VISIBLE_DEVICES, or from 0; the evaluator comes last')
  parser.add_argument('--cores_per_worker', type=int,
                      help='to pin each worker to; the evaluator comes last')
  words = [*arguments, '--']
  end_of_flags = words.index('--')
  parser.add_argument('--network', choices=CHOICES, default=OPEN,
                      help='loopback: one of their own, which no other machine or user reaches, '
                           'and which reaches nothing outside; auto: that if the kernel allows it; '
                           "open: this machine's (default)")
  given, unknown = parser.parse_known_args(words[:end_of_flags])
  if unknown:
    raise UsageError(f'{unknown[0]} is no flag of launch: the command and its flags stand after '
                     '--. See --help.')
  given.command = words[end_of_flags + 1:-1]
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
                     'would start another cluster inside of it. Start the command itself, or unset '
                     'TF_CONFIG.')


def run(command: Sequence[str], members: Sequence[Member], *, restarts: int,
        grace_seconds: float) -> int:
  """Starts all members, and again as often as it may help; returns the exit code.

  Args:
    command: its words.
    members: the workers, and the evaluator if there is one.
    restarts: at most.
    grace_seconds: from SIGTERM to SIGKILL.

  Raises:
    UsageError: the command cannot be executed.
  """
  num_restarts = 0
  with Children() as children:
    while True:
      failed = run_once(children, command, members, grace_seconds=grace_seconds)
      if children.interrupted_by:
        return exit_code(children.interrupted_by)
      if failed is None:
        return 0
      reason = _why_no_restart(failed, num_restarts, restarts)
      if reason:
        say(f'error: {failed.describe_end()}; {reason}.')
        return failed.shell_code
      seconds = min(_FIRST_PAUSE_SECONDS * 2 ** num_restarts, _LONGEST_PAUSE_SECONDS)
      num_restarts += 1
      say(f'restart {num_restarts} of {restarts} in {seconds:g} s')
      children.wait(lambda: children.interrupted_by, seconds)
      if children.interrupted_by:
        return exit_code(children.interrupted_by)


def _why_no_restart(failed, num_restarts, most_restarts):
  """Returns why a restart does not help, or '' if it may."""
  if failed.name == EVALUATOR:
    return 'the workers are done'
  if failed.returncode == _MISTAKE:
    return 'a mistake to correct, which no restart mends'
  return f'restarts: {num_restarts} of {most_restarts}' if num_restarts == most_restarts else ''


def run_once(children: Children, command: Sequence[str], members: Sequence[Member], *,
             grace_seconds: float) -> Optional[ChildProcess]:
  """Starts all members, and waits until all have ended.

  Args:
    children: entered.
    command: its words.
    members: the workers, and the evaluator if there is one.
    grace_seconds: from SIGTERM to SIGKILL.

  Returns:
    The first worker that failed by itself, or an evaluator that failed although no worker did.

  Raises:
    UsageError: the command cannot be executed.
  """
  num_workers = sum(member.task_type != EVALUATOR for member in members)
  addresses = [f'127.0.0.1:{port}' for port in find_free_ports(num_workers)]
  started = [_start(children, index, member, command, addresses)
             for index, member in enumerate(members)]
  workers, evaluators = started[:num_workers], started[num_workers:]

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
      say(f'{cause.name} has failed; all others get SIGTERM, and {grace_seconds:g} s to leave')
    children.leave(grace_seconds)
    return cause

  if have_ended() and not children.have_ended():
    say('the workers are done; waiting for the evaluator, which ends by itself after the last '
        'checkpoint')
  children.wait(children.have_ended)
  return next((child for child in evaluators if child.has_failed), None)


def _start(children, index, member, command, addresses):
  tf_config = format_tf_config(addresses, member.task_type, member.task_index)
  environment = dict(os.environ, TF_CONFIG=tf_config)
  # Otherwise Python keeps lines back until it has many, when it writes to a pipe.
  environment.setdefault('PYTHONUNBUFFERED', '1')
  if member.gpus is not None:
    environment['CUDA_VISIBLE_DEVICES'] = ','.join(member.gpus)
  else:
    # The first process would take all memory of the GPUs that it shares with the others.
    environment.setdefault('TF_FORCE_GPU_ALLOW_GROWTH', 'true')
  try:
    return children.start(member.name, command, environment=environment, cores=member.cores,
                          index=index)
  except OSError as error:
    raise UsageError(f'the command {command[0]} cannot be executed: {error.strerror}.') from error


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Runs a command line; returns the exit code."""
  open_closed_streams()
  try:
    given = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    members = plan_members(given.workers, has_evaluator=given.evaluator,
                           gpus_per_worker=given.gpus_per_worker,
                           cores_per_worker=given.cores_per_worker)
    choose_network(given.network, say)
    return run(given.command, members, restarts=given.restarts, grace_seconds=given.grace_seconds)
  except UsageError as error:
    say(f'error: {error}')
    return 2


if __name__ == '__main__':
  sys.exit(main())
