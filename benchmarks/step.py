"""A step: ours beside what others write for the same, each in its own process, in turns.

  python -m benchmarks.step                         # all models and numbers of towers; half an hour
  python -m benchmarks.step --models=linear --towers=2 --json=step.json

  towers              the program of main.py: input, staging, guard, input wait, progress
  one tower           the same on one tower with one tower's batch: the reference for scaling
  by hand             the fastest towers that we could write by hand, in a bare loop, without guard
                      or counters
  recipe              the cifar10 tutorial's towers
  mirrored            MirroredStrategy in graph mode, in a bare loop
  tensorpack          its synchronous trainer without callbacks; needs tensorpack

All train the same model from the same weights with the same optimizer on the same examples, which
each reads through its own input. Their losses over the first steps, and how far these steps move
each weight, must agree, or the command fails. Then they take turns, in another order in each round,
while the others wait. Ratios compare times of the same round; the table shows their median over all
rounds and, in brackets, their quartiles, which show the noise.
"""

import argparse
import contextlib
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from benchmarks.harness import step_table
from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.machine import describe_machine, write_figures
from benchmarks.harness.processes import Absent, Failed, StepProcess
from benchmarks.harness.step_process import KINDS
from benchmarks.harness.step_table import ONE_TOWER, OURS
from benchmarks.harness.task import NETS, Task

CHECKED_STEPS = 5
_DEFAULT_MODELS = 'linear,convnet,resnet20'
# These allocate buffers, and their time sets the number of steps in a turn.
_WARM_UP_STEPS = 10
_LEAST_STEPS = 3
# After its turn a process fills its queues and buffers again.
_SECONDS_TO_SETTLE = 0.05


def measure(task: Task, kinds: Sequence[str], *, rounds: int, seconds: float,
            limit_seconds: float = 600,
            environments: Optional[Mapping[str, Mapping[str, str]]] = None) -> Dict[str, Any]:
  """Returns the times of each kind's steps in each round, with its set-up time, memory and losses.

  A turn takes about `seconds`, an answer at most `limit_seconds`; kinds may have `environments`.
  """
  line: Dict[str, Any] = dict(net=task.net, num_towers=task.num_towers, batch_size=task.batch_size,
                              absent={}, failed={}, kinds={}, versions={})
  with contextlib.ExitStack() as opened:
    processes: List[StepProcess] = []
    for kind in kinds:
      its_task = task._replace(num_towers=1) if kind == ONE_TOWER else task
      with _noted(line, kind):
        # One after another, so that set-ups do not slow each other down.
        process = StepProcess(kind, its_task, limit_seconds=limit_seconds,
                              environment=(environments or {}).get(kind))
        opened.callback(process.end)
        report = process.check(CHECKED_STEPS)
        line['versions'].update(report['versions'])
        line['kinds'][kind] = dict(
            setup_seconds=process.setup_seconds, mean_losses=process.mean_losses,
            weights=process.weights, milliseconds=[], cpu_milliseconds=[],
            steps_per_turn=_count_steps(process, seconds))
        processes.append(process)

    for index in range(rounds):
      for process in in_turn(processes, index):
        if process.kind not in line['failed']:
          with _noted(line, process.kind):
            _take_turn(process, line['kinds'][process.kind])
    for process in processes:
      if process.kind not in line['failed']:
        with _noted(line, process.kind):
          line['kinds'][process.kind]['peak_bytes'] = process.report()['peak_bytes']
          process.leave()

  # In the order of `kinds`; a kind that failed has no figures.
  line['kinds'] = {kind: line['kinds'][kind] for kind in kinds
                   if kind in line['kinds'] and kind not in line['failed']}
  line['disagreements'] = step_table.find_disagreements(line['kinds'])
  return line


def _take_turn(process, found):
  """Takes the steps of one turn, and adds their times to the figures found so far."""
  time.sleep(_SECONDS_TO_SETTLE)
  num_steps = found['steps_per_turn']
  [report] = process.take(num_steps)
  found['milliseconds'].append(report['seconds'] / num_steps * 1e3)
  found['cpu_milliseconds'].append(report['cpu_seconds'] / num_steps * 1e3)


@contextlib.contextmanager
def _noted(line, kind):
  """Records that a kind has failed or is not installed, and lets the others go on."""
  try:
    yield
  except Absent as absent:
    line['absent'][kind] = str(absent)
  except Failed as failed:
    line['failed'][kind] = str(failed)


def _count_steps(process, seconds):
  """Returns how many steps take about `seconds`, after a warm-up."""
  count = _WARM_UP_STEPS
  for _ in range(2):
    taken = process.take(count)[0]['seconds']
    count = max(_LEAST_STEPS, int(count * seconds / taken))
  return count


def in_turn(kinds: Sequence[Any], index: int) -> List[Any]:
  """Returns the order of a round: each comes first, second and last as often as the others."""
  index %= max(len(kinds), 1)
  return list(kinds[index:]) + list(kinds[:index])


def choose_kinds(kinds: Sequence[str], num_towers: int) -> List[str]:
  """Returns the kinds that make sense for this number of towers."""
  return [kind for kind in kinds if kind != ONE_TOWER or num_towers > 1]


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Prints a table for each model and number of towers; returns 1 after a failure.

  A kind that disagrees with the others is a failure too.
  """
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(NETS)), default=_DEFAULT_MODELS,
                      help='of ' + ','.join(NETS))
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2,4,8')
  parser.add_argument('--batch_size', type=at_least(1),
                      help='of each tower; by default 1 for linear, 8 for resnet20, else 32')
  parser.add_argument('--kinds', type=several(one_of(KINDS)),
                      default=','.join(KINDS), help='default: %(default)s')
  parser.add_argument('--rounds', type=at_least(1), default=15)
  parser.add_argument('--seconds', type=at_least(0, float), default=0.5, help='of a turn')
  parser.add_argument('--limit_seconds', type=at_least(1, float), default=900,
                      help='longest wait for an answer of a process')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args(arguments)
  if OURS not in flags.kinds:
    parser.error(f"--kinds={','.join(flags.kinds)}: without '{OURS}' there is nothing to compare "
                 "with")
  content: Dict[str, Any] = dict(machine=describe_machine(), lines=[])
  print(step_table.format_machine(content['machine']), flush=True)
  for net in flags.models:
    for num_towers in flags.towers:
      task = Task(net, num_towers, flags.batch_size or NETS[net].batch_size)
      line = measure(task, choose_kinds(flags.kinds, num_towers), rounds=flags.rounds,
                     seconds=flags.seconds, limit_seconds=flags.limit_seconds)
      content['lines'].append(line)
      print('\n' + step_table.format_line(line), flush=True)
      if flags.json:
        write_figures(flags.json, content)
  return 1 if any(line['failed'] or line['disagreements'] for line in content['lines']) else 0


if __name__ == '__main__':
  sys.exit(main())
