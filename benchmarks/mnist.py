"""One tower beside two at half the batch each: MirroredStrategy's published table, and towers.

  python -m benchmarks.mnist                               # 10,000 steps, ten minutes and more
  python -m benchmarks.mnist --steps=500 --json=mnist.json
  python -m benchmarks.mnist --data=mnist --data_dir=FOLDER

The published table trains a small conv net for 10,000 steps on MNIST with MirroredStrategy on
GTX 1080: 68.0 s for 1 device of 100 examples, 90.6 s for 2 devices of 50, so the second device cost
time. Here a core stands for a device: each tower has one core and one thread per op. So the process
of one tower has one core, for its input as well, and that of two towers has two. All four train the
same net from the same weights on the same batches of 100, and their losses and weights must agree.
They take turns, in another order each round; the seconds of all turns are added up.
"""

import argparse
import contextlib
import os
import sys
from typing import Any, Dict, List, Optional, Sequence

from benchmarks.harness.benchmark_process import PROCESS, BenchmarkProcess
from benchmarks.harness.figures import write_figures
from benchmarks.harness.flags import at_least, path_to_read, path_to_write
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.step_table import OURS, find_disagreements, format_machine, format_spread
from benchmarks.harness.task import Task
from benchmarks.step import CHECKED_STEPS, in_turn
from towers.base.cores import list_cores
from towers.data import DEBIAN_FASHION_MNIST_DIR

GLOBAL_BATCH_SIZE = 100
TOWERS = (1, 2)
KINDS = (OURS, 'mirrored')
NAMES = {
    'sample': '4,000 images of Fashion-MNIST', 'fashion_mnist': 'Fashion-MNIST', 'mnist': 'MNIST'
}
PUBLISHED_SECONDS = (68.0, 90.6)
_ROW = '  %-10s %12s %12s   %s'


def measure(net: str, *, data: str, data_dir: Optional[str], steps: int, rounds: int,
            limit_seconds: float = 600, module: str = PROCESS) -> Dict[str, Any]:
  """Returns the seconds of each kind and number of towers in each round.

  Args:
    net: of task.NETS.
    data: one of NAMES.
    data_dir: its folder, if it needs one.
    steps: of all rounds together.
    rounds: in which all take turns.
    limit_seconds: longest wait for any answer.
    module: that the processes run.

  Raises:
    benchmark_process.Failed: a process has ended.
  """
  cores = list_cores()
  found: Dict[str, Dict[int, List[float]]] = {kind: {} for kind in KINDS}
  checked: Dict[str, Dict[str, Any]] = {}
  with contextlib.ExitStack() as opened:
    processes = []
    for kind in KINDS:
      for num_towers in TOWERS:
        task = Task(net, num_towers, GLOBAL_BATCH_SIZE // num_towers, data=data, data_dir=data_dir,
                    intra_threads=1)
        process = BenchmarkProcess(kind, task, cores=cores[:num_towers],
                                   limit_seconds=limit_seconds, module=module)
        opened.callback(process.end)
        report = process.check(CHECKED_STEPS)
        name = kind if num_towers == 1 else f'{kind}, {num_towers} towers'
        checked[name] = dict(mean_losses=process.mean_losses, weights=process.weights)
        processes.append((process, found[kind].setdefault(num_towers, [])))

    for index in range(rounds):
      # Rounds differ by a step where they do not divide the number of steps.
      count = steps * (index + 1) // rounds - steps * index // rounds
      for process, seconds in in_turn(processes, index):
        seconds.append(process.take(count)['seconds'])
    for process, _ in processes:
      process.leave()
  return dict(net=net, data=data, steps=steps, versions=report['versions'], seconds=found,
              disagreements=find_disagreements(checked))


def format_table(content: Dict[str, Any]) -> str:
  """Returns the table of what `measure` has found."""
  shapes = [f'{num_towers} x {GLOBAL_BATCH_SIZE // num_towers}' for num_towers in TOWERS]
  rows = [
      f"{content['net']} on {NAMES[content['data']]}, {content['steps']:,} steps of "
      f"{GLOBAL_BATCH_SIZE} examples, TensorFlow {content['versions']['TensorFlow']}",
      _ROW % ('', *shapes, '2 towers while 1 takes 1, by rounds')
  ]
  for kind, seconds in content['seconds'].items():
    # JSON turns the keys into strings.
    one, two = (seconds[key] for key in sorted(seconds, key=int))
    ratios = [second / first for first, second in zip(one, two)]
    rows.append(_ROW % (kind, f'{sum(one):.1f} s', f'{sum(two):.1f} s',
                        format_spread(ratios, '%.2f')))
  one_device, two_devices = PUBLISHED_SECONDS
  rows.append(_ROW % ('published', f'{one_device:.1f} s', f'{two_devices:.1f} s',
                      f'{two_devices / one_device:.2f}, of 10,000 steps on MNIST with '
                      'MirroredStrategy on GTX 1080'))
  return '\n'.join(rows + ['  DISAGREES: ' + what for what in content['disagreements']])


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Prints the table; returns 1 if the programs do not compute the same."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default='lenet', choices=('linear', 'lenet', 'convnet'))
  has_fashion = os.path.isdir(DEBIAN_FASHION_MNIST_DIR)
  parser.add_argument('--data', default='fashion_mnist' if has_fashion else 'sample',
                      choices=sorted(NAMES))
  parser.add_argument('--data_dir', type=path_to_read, help='folder of its files')
  parser.add_argument('--steps', type=at_least(1), default=10000)
  parser.add_argument('--rounds', type=at_least(1), default=20)
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args(arguments)
  if flags.steps < flags.rounds:
    parser.error(f'--steps={flags.steps} in --rounds={flags.rounds}: each round needs a step')
  if len(list_cores()) < max(TOWERS):
    parser.error(f'this process may use {len(list_cores())} core, but two towers need two')
  if flags.data == 'mnist' and flags.data_dir is None:
    parser.error('--data=mnist needs a --data_dir')
  machine = describe_machine()
  content = measure(flags.model, data=flags.data, data_dir=flags.data_dir, steps=flags.steps,
                    rounds=flags.rounds)
  print(f'{format_machine(machine)}\n{format_table(content)}')
  if flags.json:
    write_figures(flags.json, dict(machine=machine, **content))
  return 1 if content['disagreements'] else 0


if __name__ == '__main__':
  sys.exit(main())
