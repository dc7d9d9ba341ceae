"""A step: ours beside what others write for the same, each in its own process, in turns.

  python -m benchmarks.step                         # all models and numbers of towers; half an hour
  python -m benchmarks.step --models=linear --towers=2 --json=step.json --picture=step.svg
  python -m benchmarks.step --pythons=.venv-tf1/bin/python,.venv-tf2/bin/python
  python -m benchmarks.step --show=step.json        # the table of what was measured before

  towers              the program of main.py: input, staging, guard, input wait, progress
  towers --autotune   the same, with the settings that `main.py --autotune` finds; with --autotune
  one tower           the same on one tower with one tower's batch: the reference for scaling
  by hand             the fastest towers that we could write by hand, in a bare loop, without guard
                      or counters
  recipe              the cifar10 tutorial's towers
  mirrored            MirroredStrategy in graph mode, in a bare loop
  tensorpack          its synchronous trainer without callbacks; needs tensorpack
  tensorpack default  the same as it ships

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
from typing import Any, Dict, List, Optional, Sequence

from benchmarks.harness import step_table
from benchmarks.harness.benchmark_process import PROCESS, Absent, BenchmarkProcess, Failed
from benchmarks.harness.figures import read_figures, write_figures
from benchmarks.harness.flags import at_least, one_of, path_to_read, path_to_write, program, several
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.step_process import KINDS
from benchmarks.harness.step_table import AUTOTUNED, ONE_TOWER, OURS
from benchmarks.harness.task import NETS, Task

CHECKED_STEPS = 5
_DEFAULT_MODELS = 'linear,convnet,resnet20'
# These allocate buffers, and their time sets the number of steps in a turn.
_WARM_UP_STEPS = 10
_LEAST_STEPS = 3
# After its turn a process fills its queues and buffers again.
_SECONDS_TO_SETTLE = 0.05


def measure(task: Task, kinds: Sequence[str], *, rounds: int, seconds: float,
            python: str = sys.executable, setups: int = 1, checked_steps: int = CHECKED_STEPS,
            limit_seconds: float = 600, module: str = PROCESS) -> Dict[str, Any]:
  """Returns the times of each kind's steps in each round, with its set-up time, memory and losses.

  Args:
    task: that all train.
    kinds: of step_process.KINDS.
    rounds: in which all take turns.
    seconds: of a turn, about.
    python: the interpreter of all processes.
    setups: how often each process is started; the last one takes the turns.
    checked_steps: whose losses and weights are compared.
    limit_seconds: longest wait for any answer.
    module: that the processes run.
  """
  line: Dict[str, Any] = dict(net=task.net, num_towers=task.num_towers, batch_size=task.batch_size,
                              absent={}, failed={}, kinds={}, versions={})

  def start(kind):
    its_task = task._replace(num_towers=1) if kind == ONE_TOWER else task
    return BenchmarkProcess(kind, its_task, python=python, limit_seconds=limit_seconds,
                            module=module)

  with contextlib.ExitStack() as opened:
    processes: List[BenchmarkProcess] = []
    for index in range(setups):
      for kind in in_turn(kinds, index):
        if kind in line['absent'] or kind in line['failed']:
          continue
        with _noted(line, kind):
          # One after another, so that set-ups do not slow each other down.
          process = start(kind)
          found = line['kinds'].setdefault(kind, dict(setup_seconds=[]))
          found['setup_seconds'].append(process.setup_seconds)
          if index < setups - 1:
            process.leave()
            continue
          opened.callback(process.end)
          report = process.check(checked_steps)
          line['versions'].update(report['versions'])
          found.update(mean_losses=process.mean_losses, weights=process.weights,
                       settings=report['settings'], milliseconds=[], cpu_milliseconds=[],
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
  report = process.take(num_steps)
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
    taken = process.take(count)['seconds']
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
  """Prints a table for each model, number of towers and interpreter; returns 1 after a failure.

  A kind that disagrees with the others is a failure too.
  """
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(NETS)), default=_DEFAULT_MODELS,
                      help='of ' + ','.join(NETS))
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2,4,8')
  parser.add_argument('--batch_size', type=at_least(1),
                      help='of each tower; by default 1 for linear, 8 for resnet20, else 32')
  parser.add_argument('--kinds', type=several(one_of(KINDS)),
                      default=','.join(kind for kind in KINDS if kind != AUTOTUNED),
                      help='default: %(default)s')
  parser.add_argument('--autotune', action='store_true',
                      help='also ours with the settings that main.py --autotune finds')
  parser.add_argument('--pythons', type=several(program), default=sys.executable,
                      help='interpreters to measure with, one for each target')
  parser.add_argument('--rounds', type=at_least(1), default=15)
  parser.add_argument('--seconds', type=at_least(0, float), default=0.5, help='of a turn')
  parser.add_argument('--setups', type=at_least(1), default=1,
                      help='how often each kind is started, to measure set-up')
  parser.add_argument('--limit_seconds', type=at_least(1, float), default=900,
                      help='longest wait for an answer of a process')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  parser.add_argument('--picture', type=path_to_write,
                      help='SVG file of ratios; one for each model and target, named after both')
  parser.add_argument('--show', type=several(path_to_read),
                      help='files that --json has written, to print and draw instead of measuring')
  flags = parser.parse_args(arguments)
  if flags.show:
    contents = [_read(parser, path) for path in flags.show]
    lines = [line for content in contents for line in content['lines']]
    for content in contents:
      print(step_table.format_machine(content['machine']))
      for line in content['lines']:
        print('\n' + step_table.format_line(line))
  else:
    lines = _measure_all(parser, flags)
  if flags.picture:
    for path in step_table.draw_lines(lines, flags.picture):
      print(path)
  return 1 if any(line['failed'] or line['disagreements'] for line in lines) else 0


def _read(parser, path):
  """Returns the content of a file that `--json` has written."""
  try:
    content = read_figures(path)
    return dict(machine=content['machine'], lines=content['lines'])
  except (OSError, ValueError, KeyError, TypeError):
    parser.error(f'--show={path}: --json did not write this file')


def _measure_all(parser, flags):
  """Measures all lines, prints and writes each as it comes, and returns them."""
  if OURS not in flags.kinds:
    parser.error(f"--kinds={','.join(flags.kinds)}: without '{OURS}' there is nothing to compare "
                 "with")
  kinds = flags.kinds + ([AUTOTUNED] if flags.autotune else [])
  content: Dict[str, Any] = dict(machine=describe_machine(), lines=[])
  print(step_table.format_machine(content['machine']), flush=True)
  for python in flags.pythons:
    for net in flags.models:
      for num_towers in flags.towers:
        task = Task(net, num_towers, flags.batch_size or NETS[net].batch_size)
        line = measure(task, choose_kinds(kinds, num_towers), rounds=flags.rounds,
                       seconds=flags.seconds, python=python, setups=flags.setups,
                       limit_seconds=flags.limit_seconds)
        content['lines'].append(line)
        print('\n' + step_table.format_line(line), flush=True)
        if flags.json:
          write_figures(flags.json, content)
  return content['lines']


if __name__ == '__main__':
  sys.exit(main())
