"""Memory: what is estimated before a run beside what a step holds, for every model of the zoo.

  python -m benchmarks.memory                                # a table; half an hour on two cores
  python -m benchmarks.memory --models=resnet20,lenet --towers=1,2,4 --json=FILE

Each point is a process of its own, whose session is that of main.py. The memory measured is that of
live tensors and kernels in a traced step, by tower; of several traced steps the median counts, since
ops of several threads meet otherwise each time.
"""

import argparse
import concurrent.futures
import multiprocessing
import statistics
from typing import Any, Dict, List, NamedTuple

from benchmarks.harness.figures import write_figures
from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.live_memory import measure_peaks
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.program import open_program
from models import MODELS

_TRACED = 3
_STEPS_BEFORE = 2


class Point(NamedTuple):
  """What a model is measured on: images of a size in pixels, and the examples of each tower."""
  size: int
  rows: int


# Small where a step of the paper's images would take two cores minutes.
POINTS = {
    'linear': Point(28, 512), 'lenet': Point(28, 128), 'convnet': Point(28, 64),
    'alexnet': Point(224, 8), 'alexnet_cifar': Point(32, 64), 'vgg16': Point(64, 8),
    'vgg19': Point(64, 8), 'resnet20': Point(32, 32), 'resnet32': Point(32, 32),
    'resnet56': Point(32, 16), 'resnet110': Point(32, 16), 'resnet50': Point(64, 8),
    'resnet101': Point(64, 8), 'resnet152': Point(64, 8), 'nasnet_cifar': Point(32, 8),
    'nasnet_cifar_large': Point(32, 2), 'nasnet_mobile': Point(96, 4), 'nasnet_large': Point(96, 2)}


def measure(model: str, num_towers: int, optimizer: str = 'momentum') -> List[Dict[str, Any]]:
  """Returns a line for each tower; call it in a process of its own.

  Args:
    model: of the zoo.
    num_towers: on virtual CPU devices.
    optimizer: as for main.py.
  """
  from tensorflow_v1 import tf
  from towers.data import load_synthetic
  from towers.training.settings.config import Config
  from towers.training.stepping.memory import MemoryModel

  point = POINTS[model]
  batch_size = point.rows * num_towers
  # So many that the last batch of an epoch is smaller, as in most runs.
  data_set = load_synthetic(image_shape=(point.size, point.size, 3), num_classes=10,
                            num_train=8 * batch_size - 1, num_validation=2 * batch_size)
  config = Config(model=model, batch_size=batch_size, optimizer=optimizer)
  with open_program(config, data_set, num_towers=num_towers) as steps:
    program = steps.program
    estimates = [MemoryModel(program, index).estimate(batch_size) for index in range(num_towers)]
    steps.start(0)
    for _ in range(_STEPS_BEFORE):
      steps.train()
    traced = [measure_peaks(steps.session, program.train_op) for _ in range(_TRACED)]
    return [dict(model=model, size=point.size, rows=point.rows, num_towers=num_towers,
                 tower=index, optimizer=optimizer,
                 estimated_bytes=estimate.step, is_complete=not estimate.unknown,
                 measured_bytes=[peaks[program.towers[index].device] for peaks in traced],
                 variable_bytes=estimate.variables, batch_bytes=estimate.batches,
                 tensorflow_version=tf.__version__)
            for index, estimate in enumerate(estimates)]


def measure_alone(*arguments: Any) -> List[Dict[str, Any]]:
  """Returns the lines of `measure` in a new process."""
  with concurrent.futures.ProcessPoolExecutor(
      1, mp_context=multiprocessing.get_context('spawn')) as alone:
    return alone.submit(measure, *arguments).result()


def find_ratio(line: Dict[str, Any]) -> float:
  """Returns the estimate as a multiple of what was measured."""
  return line['estimated_bytes'] / statistics.median(line['measured_bytes'])


def format_line(line: Dict[str, Any]) -> str:
  """Returns a row of the table, in Markdown."""
  measured = sorted(number / 1e6 for number in line['measured_bytes'])
  return (f"| {line['tensorflow_version']} | `{line['model']}` | {line['size']} | {line['rows']} | "
          f"{line['tower']} of {line['num_towers']} | {line['estimated_bytes'] / 1e6:.1f} MB | "
          f'{statistics.median(measured):.1f} MB | {measured[0]:.1f} to {measured[-1]:.1f} | '
          f'{find_ratio(line):.2f} |')


def main() -> None:
  """Measures every model, and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(MODELS)), default=','.join(MODELS))
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2')
  parser.add_argument('--optimizer', default='momentum')
  parser.add_argument('--json', type=path_to_write, help='file to write all lines to')
  flags = parser.parse_args()
  print('| TensorFlow | Model | Image | Batch per tower | Tower | Estimated | Measured | from … to '
        '| Ratio |\n|---|---|---|---|---|---|---|---|---|')
  lines: List[Dict[str, Any]] = []
  for model in flags.models:
    for num_towers in flags.towers:
      for line in measure_alone(model, num_towers, flags.optimizer):
        lines.append(line)
        print(format_line(line), flush=True)
  if flags.json:
    write_figures(flags.json, dict(machine=describe_machine(), lines=lines))


if __name__ == '__main__':
  main()
