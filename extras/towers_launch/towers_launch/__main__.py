"""Launch: starts a command once for each worker on this machine, and again if one fails.

  python -m towers launch --workers=2 --evaluator -- python main.py --checkpoint_dir=runs/a

  launch ──┬─► worker 0    TF_CONFIG: worker 0 of 127.0.0.1:P0, 127.0.0.1:P1; the chief
           ├─► worker 1    TF_CONFIG: worker 1 of the same
           └─► evaluator   TF_CONFIG: evaluator 0, beside the same workers

  all end with 0            waits for the evaluator, ends with 0
  one fails                 SIGTERM to the others, SIGKILL after the grace; all start again,
                            on other ports
  … with --min_workers=M    those that are left go on at once, and the lost one later with them
  one ends with 76          all start again in more micro-batches, which counts as no failure
  one ends with 2           the same, but no restart: a restart mends no mistake
  Ctrl-C, SIGTERM, SIGHUP   forwarded once, and all leave by themselves; a second is SIGKILL to all
  launch itself is killed   `towers_launch/orphans.py` kills all

The exit code is that of the first worker that failed by itself; 129, 130 and 143 after SIGHUP,
Ctrl-C and SIGTERM. `towers_launch/round.py` is one life of all, `towers_launch/roster.py` says who
takes part in it, and `towers_launch/network.py` keeps others away from them.
"""

import argparse
import os
import shutil
import sys
from typing import Sequence

from towers.base.usage_error import UsageError
from towers.process.signals import exit_code
from towers_launch.children import Children, say
from towers_launch.members import EVALUATOR, Member, plan_members
from towers_launch.network import CHOICES, OPEN, choose_network
from towers_launch.roster import Roster
from towers_launch.round import Round
from towers_launch.tf_config import Parser

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
  """Returns the flags, with the words after `--` as `command`.

  Raises:
    UsageError: a wrong flag or command.
    SystemExit: after --help.
  """
  parser = Parser(
      prog='launch', usage='python -m towers launch --workers=N [flags] -- COMMAND [its flags]',
      description='Starts COMMAND once for each worker, with its TF_CONFIG, and all again from the '
                  'checkpoint when one fails.',
      allow_abbrev=False)
  parser.add_argument('--workers', type=int, required=True, help='how many; the first is the chief')
  parser.add_argument('--evaluator', action='store_true',
                      help='one more process, which follows the checkpoints')
  parser.add_argument('--min_workers', type=int,
                      help='go on with as few when others are lost (default: all)')
  parser.add_argument('--retry_seconds', type=float, default=60.0,
                      help='after which a lost worker is tried again, and twice as long if it is '
                           'lost again soon (default: %(default)s)')
  parser.add_argument('--restarts', type=int, default=3,
                      help='how often they start again after a failure (default: %(default)s)')
  parser.add_argument('--grace_seconds', type=float, default=30.0,
                      help='from SIGTERM to SIGKILL when another worker has failed '
                           '(default: %(default)s)')
  parser.add_argument('--gpus_per_worker', type=int,
                      help='of those in CUDA_VISIBLE_DEVICES, or from 0; the evaluator comes last')
  parser.add_argument('--cores_per_worker', type=int,
                      help='to pin each worker to; the evaluator comes last')
  parser.add_argument('--network', choices=CHOICES, default=OPEN,
                      help='loopback: one of their own, which no other machine or user reaches, '
                           'and which reaches nothing outside; auto: that if the kernel allows it; '
                           "open: this machine's (default)")
  words = [*arguments, '--']
  end_of_flags = words.index('--')
  given, unknown = parser.parse_known_args(words[:end_of_flags])
  if unknown:
    raise UsageError(f'{unknown[0]} is no flag of launch: the command and its flags stand after '
                     '--. See --help.')
  given.command = words[end_of_flags + 1:-1]
  _check(given)
  return given


def _check(given):
  least = dict(workers=1, min_workers=1, retry_seconds=1, restarts=0, grace_seconds=0,
               gpus_per_worker=0, cores_per_worker=1)
  for name, value in least.items():
    found = getattr(given, name)
    if found is not None and not found >= value:
      raise UsageError(f'{name}={found} must be at least {value}.')
  if given.min_workers is None:
    given.min_workers = given.workers
  if given.min_workers > given.workers:
    raise UsageError(f'min_workers={given.min_workers} must be at most workers={given.workers}, '
                     'the number to start with.')
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


def run(command: Sequence[str], members: Sequence[Member], *, min_workers: int, restarts: int,
        grace_seconds: float, retry_seconds: float) -> int:
  """Starts all members, and again as often as it may help; returns the exit code.

  Raises:
    UsageError: the command cannot be executed.
  """
  evaluators = [member for member in members if member.task_type == EVALUATOR]
  workers = [member for member in members if member not in evaluators]
  roster = Roster(workers, min_workers=min_workers, retry_seconds=retry_seconds)
  num_restarts = 0
  with Children() as children:
    while True:
      children.wants_more = False
      started = Round(children, command, roster.begin(), evaluators,
                      is_elastic=min_workers < len(workers))
      end = started.wait(grace_seconds=grace_seconds, seconds=roster.seconds_until_more(),
                         can_grow=not roster.is_complete)
      if children.interrupted_by:
        return exit_code(children.interrupted_by)
      if end.failed is None and not end.is_stopped:
        return 0
      if end.failed is not None:
        reason = _why_no_restart(end, roster, num_restarts, restarts)
        if reason:
          say(f'error: {end.failed.describe_end()}; {reason}.')
          return end.failed.shell_code
        num_restarts += 1
      is_smaller = roster.lose(end.lost)
      if end.is_stopped:
        roster.take_back(all_of_them=children.wants_more)
      goes_on = (f'goes on with {roster.num_present} of {len(workers)} workers from the last '
                 'checkpoint')
      if end.is_stopped and end.failed is None:
        say(goes_on)
      elif is_smaller:
        say(f'restart {num_restarts} of {restarts}: {goes_on}, and tries for more after '
            f'{roster.seconds_until_more():.0f} s or SIGUSR1')
      else:
        seconds = min(_FIRST_PAUSE_SECONDS * 2 ** (num_restarts - 1), _LONGEST_PAUSE_SECONDS)
        say(f'restart {num_restarts} of {restarts} in {seconds:g} s')
        children.wait(lambda: children.interrupted_by, seconds)
      if children.interrupted_by:
        return exit_code(children.interrupted_by)


def _why_no_restart(end, roster, num_restarts, most_restarts):
  """Returns why a restart does not help, or '' if it may."""
  if end.failed.name == EVALUATOR:
    return 'the workers are done'
  # If all were started with this command before, a worker that now refuses it lacks its GPUs.
  is_alone = 0 < len(end.lost) < roster.num_present and all(map(roster.was_lost, end.lost))
  if end.failed.returncode == UsageError.exit_code and not is_alone:
    return 'a mistake to correct, which no restart mends'
  return f'restarts: {num_restarts} of {most_restarts}' if num_restarts == most_restarts else ''


def main(arguments: Sequence[str]) -> int:
  """Runs a command line; returns the exit code."""
  given = parse_arguments(arguments)
  members = plan_members(given.workers, has_evaluator=given.evaluator,
                         gpus_per_worker=given.gpus_per_worker,
                         cores_per_worker=given.cores_per_worker)
  choose_network(given.network, say)
  return run(given.command, members, min_workers=given.min_workers, restarts=given.restarts,
             grace_seconds=given.grace_seconds, retry_seconds=given.retry_seconds)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
