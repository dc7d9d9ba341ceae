"""Memory: what is estimated before a run beside what a step holds, for every model of the zoo.

  python -m benchmarks.memory          # a line for each tower; an hour on two cores
  python -m benchmarks.memory --models=resnet20,lenet --towers=1,2,4 --json=FILE
  python -m benchmarks.memory --print                        # the table of what the file has

The file of --json keeps all lines, those of another TensorFlow too. Each point is a process of its
own, whose session is that of main.py. The memory measured is that of live tensors and kernels in a
traced step, by tower; of several traced steps the median counts, since ops of several threads meet
otherwise each time. Memory comes from malloc here, without the gaps of TensorFlow's pool.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import statistics
from typing import Any, Dict, List, NamedTuple

from benchmarks.harness.figures import read_figures, write_figures
from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.live_memory import measure_peaks
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.program import open_program
from models import MODELS

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIGURES = os.path.join(_ROOT, 'docs', 'figures', 'memory.json')
_TRACED = 3
_STEPS_BEFORE = 1


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


def measure(model: str, num_towers: int) -> List[Dict[str, Any]]:
  """Returns a line for each tower; call it in a process of its own.

  Args:
    model: of the zoo.
    num_towers: on virtual CPU devices.
  """
  # A pool may give a kernel twice the memory that it asks for, and traces count what it gives.
  os.environ['TF_CPU_ALLOCATOR_USE_BFC'] = '0'
  from tensorflow_v1 import tf
  from towers.data import load_synthetic
  from towers.training.settings.config import Config
  from towers.training.stepping.memory import MemoryModel

  point = POINTS[model]
  batch_size = point.rows * num_towers
  # So many that the last batch of an epoch is smaller, as in most runs.
  data_set = load_synthetic(image_shape=(point.size, point.size, 3), num_classes=10,
                            num_train=8 * batch_size - 1, num_validation=2 * batch_size)
  config = Config(model=model, batch_size=batch_size)
  with open_program(config, data_set, num_towers=num_towers) as steps:
    program = steps.program
    estimates = [MemoryModel(program, index).estimate(batch_size) for index in range(num_towers)]
    steps.start(0)
    for _ in range(_STEPS_BEFORE):
      steps.train()
    traced = [measure_peaks(steps.session, program.train_op) for _ in range(_TRACED)]
    return [dict(model=model, size=point.size, rows=point.rows, num_towers=num_towers,
                 tower=index,
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
  """Returns what is estimated and measured of a tower, in words."""
  measured = sorted(number / 1e6 for number in line['measured_bytes'])
  return (f"TensorFlow {line['tensorflow_version']}, {line['model']}, images of {line['size']}, "
          f"{line['rows']} per tower, tower {line['tower']} of {line['num_towers']}: estimated "
          f"{line['estimated_bytes'] / 1e6:.1f} MB, measured {measured[0]:.1f} to "
          f'{measured[-1]:.1f} MB, {find_ratio(line):.2f} of the median')


def format_table(lines: List[Dict[str, Any]]) -> str:
  """Returns a table with a row for each TensorFlow and model, in Markdown."""
  towers = sorted({(line['num_towers'], line['tower']) for line in lines})
  names = [f"tower {tower} of {count}" for count, tower in towers]
  rows: Dict[Any, Any] = {}
  for line in lines:
    head = line['tensorflow_version'], list(MODELS).index(line['model'])
    middle = statistics.median(line['measured_bytes'])
    rows.setdefault(head, (line, {}))[1][line['num_towers'], line['tower']] = (
        f"{line['estimated_bytes'] / 1e6:.1f} / {middle / 1e6:.1f} MB: {find_ratio(line):.2f}")
  return '\n'.join([
      f"| TensorFlow | Model | Image | Batch per tower | {' | '.join(names)} |",
      '|---' * (4 + len(towers)) + '|'] + [
          f"| {version} | `{line['model']}` | {line['size']} | {line['rows']} | "
          f"{' | '.join(cells.get(tower, '') for tower in towers)} |"
          for (version, _), (line, cells) in sorted(rows.items())])


def read_lines(path: str) -> List[Dict[str, Any]]:
  """Returns the lines of a file, none if it is not there."""
  return read_figures(path)['lines'] if os.path.exists(path) else []


def main() -> None:
  """Measures every model, and prints a line for each tower."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(MODELS)), default=','.join(MODELS))
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2')
  parser.add_argument('--json', type=path_to_write, default=FIGURES,
                      help='file of all lines, in which those of new points replace older ones')
  parser.add_argument('--print', action='store_true', help='measure nothing')
  flags = parser.parse_args()
  if flags.print:
    print(format_table(read_lines(flags.json)))
    return
  for model in flags.models:
    for num_towers in flags.towers:
      found = measure_alone(model, num_towers)
      print(*map(format_line, found), sep='\n', flush=True)
      point = model, num_towers, found[0]['tensorflow_version']
      lines = [line for line in read_lines(flags.json) if point != (
          line['model'], line['num_towers'], line['tensorflow_version'])] + found
      write_figures(flags.json, dict(machine=describe_machine(), lines=lines))
