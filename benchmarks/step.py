"""A step: ours beside what others write for the same, each in a process of its own, in turns.

  python -m benchmarks.step                         # all models and numbers of towers; half an hour
  python -m benchmarks.step --models=linear --towers=2 --json=step.json --picture=step.svg
  python -m benchmarks.step --pythons=.venv-tf1/bin/python,.venv-tf2/bin/python
  python -m benchmarks.step --show=step.json        # the table of what was measured before

  towers              the program of main.py: input, staging, guard, input wait, and its progress,
                      as the loop tells it
  towers --autotune   the same, with the settings that `main.py --autotune` finds; with --autotune
  one tower           the same on one tower, with the batch of one: what N towers' steps are
                      measured against
  by hand             towers as well as they can be written by hand, in a bare loop,
                      without guard or counters
  recipe              the cifar10 tutorial's towers
  mirrored            MirroredStrategy in graph mode, in a bare loop
  tensorpack          its synchronous trainer without callbacks; needs tensorpack
  tensorpack default  the same as it ships

All train the same model from the same weights on the same examples, which each reads through its
own input, with the same optimizer. Their losses over the first steps, and how far these have moved
each weight, must agree, or the command fails. Then they take turns, in another order in each round,
while the others wait. Ratios are of the times in one round; told are the median of all rounds and,
in brackets, their quartiles, which are the noise.
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
# In which buffers are made, and which tell how long a step takes.
_WARM_UP_STEPS = 10
_LEAST_STEPS = 3
# For what a process does on its own at the end of its turn: queues and buffers are filled again.
_SECONDS_TO_SETTLE = 0.05


def measure(task: Task, kinds: Sequence[str], *, rounds: int, seconds: float,
            python: str = sys.executable, setups: int = 1, checked_steps: int = CHECKED_STEPS,
            limit_seconds: float = 600, module: str = PROCESS) -> Dict[str, Any]:
  """Returns what the steps of each kind take in each round, and what else is told of it.

  Args:
    task: that all train.
    kinds: of step_process.KINDS.
    rounds: in which all take turns.
    seconds: of a turn, about.
    python: the interpreter of all processes.
    setups: how often each process is started, of which the last one takes the turns.
    checked_steps: whose losses and weights are compared.
    limit_seconds: that any answer may take.
    module: that the processes run.
  """
  line: Dict[str, Any] = dict(net=task.net, num_towers=task.num_towers, batch_size=task.batch_size,
                              absent={}, failed={}, kinds={}, versions={})

  def start(kind):
    its_task = task._replace(num_towers=1) if kind == ONE_TOWER else task
    return BenchmarkProcess(kind, its_task, python=python, limit_seconds=limit_seconds,
                            module=module)

  with contextlib.ExitStack() as opened:
    players: List[BenchmarkProcess] = []
    for number in range(setups):
      for kind in in_turn(kinds, number):
        if kind in line['absent'] or kind in line['failed']:
          continue
        with _noted(line, kind):
          # One after another, so that set-ups do not slow each other down.
          player = start(kind)
          line['kinds'].setdefault(kind, dict(setup_seconds=[]))['setup_seconds'].append(
              player.setup_seconds)
          if number < setups - 1:
            player.leave()
            continue
          opened.callback(player.end)
          told = player.check(checked_steps)
          line['versions'].update(told['versions'])
          line['kinds'][kind].update(mean_losses=player.mean_losses, weights=player.weights,
                                     settings=told['settings'], milliseconds=[],
                                     cpu_milliseconds=[],
                                     steps_per_turn=_count_steps(player, seconds))
          players.append(player)
    for number in range(rounds):
      for player in in_turn(players, number):
        found = line['kinds'][player.kind]
        if player.kind not in line['failed']:
          with _noted(line, player.kind):
            time.sleep(_SECONDS_TO_SETTLE)
            told = player.take(found['steps_per_turn'])
            found['milliseconds'].append(told['seconds'] / found['steps_per_turn'] * 1e3)
            found['cpu_milliseconds'].append(told['cpu_seconds'] / found['steps_per_turn'] * 1e3)
    for player in players:
      if player.kind not in line['failed']:
        with _noted(line, player.kind):
          line['kinds'][player.kind]['peak_bytes'] = player.tell()['peak_bytes']
          player.leave()
  # In the order in which they were asked for; what has failed has no figures.
  line['kinds'] = {kind: line['kinds'][kind] for kind in kinds
                   if kind in line['kinds'] and kind not in line['failed']}
  line['disagreements'] = step_table.find_disagreements(line['kinds'])
  return line


@contextlib.contextmanager
def _noted(line, kind):
  """Notes of a kind that it has failed, or is not installed, and lets the others go on."""
  try:
    yield
  except Absent as absent:
    line['absent'][kind] = str(absent)
  except Failed as failed:
    line['failed'][kind] = str(failed)


def _count_steps(player, seconds):
  """Returns how many steps take about so many seconds, after some to warm up."""
  count = _WARM_UP_STEPS
  for _ in range(2):
    taken = player.take(count)['seconds']
    count = max(_LEAST_STEPS, int(count * seconds / taken))
  return count


def in_turn(kinds: Sequence[Any], number: int) -> List[Any]:
  """Returns the order of a round, so that each comes first, second and last as often as the others.
  """
  number %= max(len(kinds), 1)
  return list(kinds[number:]) + list(kinds[:number])


def choose_kinds(kinds: Sequence[str], num_towers: int) -> List[str]:
  """Returns those of them that have a meaning for so many towers."""
  return [kind for kind in kinds if kind != ONE_TOWER or num_towers > 1]


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Prints a table for each model, number of towers and interpreter; returns 1 if any kind has
  failed or disagrees.
  """
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(NETS)), default=_DEFAULT_MODELS,
                      help='of ' + ','.join(NETS))
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2,4,8')
  parser.add_argument('--batch_size', type=at_least(1),
                      help='of each tower; by default 1 for linear, 8 for resnet20, else 32')
  parser.add_argument('--kinds', type=several(one_of(KINDS)),
                      default=','.join(kind for kind in KINDS if kind != AUTOTUNED),
                      help='default: '
                      '%(default)s')
  parser.add_argument('--autotune', action='store_true', help='also ours with what main.py '
                                                              '--autotune finds')
  parser.add_argument('--pythons', type=several(program), default=sys.executable,
                      help='interpreters to measure with, one for each target')
  parser.add_argument('--rounds', type=at_least(1), default=15)
  parser.add_argument('--seconds', type=at_least(0, float), default=0.5, help='of a turn')
  parser.add_argument('--setups', type=at_least(1), default=1, help='how often each kind is '
                                                                    'started, to measure set-up')
  parser.add_argument('--limit_seconds', type=at_least(1, float), default=900, help='for any '
                                                                                    'answer of a '
                                                                                    'process')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  parser.add_argument('--picture', type=path_to_write,
                      help='SVG file to draw ratios to; one for each model and target, named after '
                           'it')
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
  """Returns what `--json` has written."""
  try:
    content = read_figures(path)
    return dict(machine=content['machine'], lines=content['lines'])
  except (OSError, ValueError, KeyError, TypeError):
    parser.error(f'--show={path}: this is no file that --json has written')


def _measure_all(parser, flags):
  """Measures what the flags ask for, prints it as it comes and writes it; returns the lines."""
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
        content['lines'].append(
            measure(task, choose_kinds(kinds,
                                       num_towers), rounds=flags.rounds, seconds=flags.seconds,
                    python=python, setups=flags.setups, limit_seconds=flags.limit_seconds))
        print('\n' + step_table.format_line(content['lines'][-1]), flush=True)
        if flags.json:
          write_figures(flags.json, content)
  return content['lines']


if __name__ == '__main__':
  sys.exit(main())
