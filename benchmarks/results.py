"""Published accuracies, and what main.py reaches on 1 and on 2 towers over several seeds.

  python -m benchmarks.results                           # an hour or two on two cores
  python -m benchmarks.results --rows=tutorial --seeds=1
  python -m benchmarks.results --rows=cifar10 --data_dir=FOLDER
  python -m benchmarks.results --print                   # the table of what the file has

Each run is a process of main.py. The file of --json keeps its figures, and the next start leaves
out the runs that it has. A row's runs on several towers have the same weights and batches as those
on one, so only rounding sets them apart.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from benchmarks.harness.figures import read_figures, write_figures
from benchmarks.harness.flags import at_least, one_of, path_to_read, path_to_write, several
from benchmarks.harness.machine import describe_machine
from towers.base.installed import find_distributions, find_tensorflow

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FIGURES = os.path.join(_ROOT, 'docs', 'figures', 'results.json')


class Row(NamedTuple):
  """A net on a data set.

  Attributes:
    net: its name, and that of the data.
    published: the accuracy that others report, and where.
    flags: of main.py.
    needs_folder: whether the data can only come from a folder of one's own.
  """
  net: str
  published: str
  flags: Tuple[str, ...]
  needs_folder: bool = False


_FASHION = ('--data=fashion_mnist',)
# Zhong et al. 2020 and their code, github.com/zhunzhong07/Random-Erasing.
_RESNET = ('--model=resnet20', '--augment=cifar', '--batch_norm=sync', '--batch_size=128',
           '--learning_rate=0.1')
_VGG = ('--model=vgg16', '--optimizer=adam', '--learning_rate=0.0001', '--epsilon=1e-7',
        '--schedule=constant')
ROWS = {
    'tutorial': Row(
        'Dense 128, Fashion-MNIST', '0.91 on the training images, less on the test images: '
        'TensorFlow, "Basic classification"',
        (*_FASHION, '--model=benchmarks.harness.tutorial_net:model', '--optimizer=adam',
         '--learning_rate=0.001', '--epsilon=1e-7', '--schedule=constant', '--batch_size=32',
         '--epochs=10')),
    'resnet20_short': Row(
        'ResNet-20, Fashion-MNIST', 'none: an eighth of an epoch',
        (*_FASHION, *_RESNET, '--weight_decay=0.0005', '--steps=60')),
    'resnet20': Row(
        'ResNet-20, Fashion-MNIST', '0.9561: Zhong et al. 2020, the baseline of their table',
        (*_FASHION, *_RESNET, '--weight_decay=0.0005', '--schedule=piecewise',
         '--decay_epochs=150,225', '--epochs=300')),
    'vgg16_short': Row(
        'VGG-16, Fashion-MNIST', 'none: an eighth of an epoch',
        (*_FASHION, *_VGG, '--batch_size=64', '--steps=120')),
    'vgg16': Row(
        'VGG-16, Fashion-MNIST', "0.935: Fashion-MNIST's README, a net of 26 million weights",
        (*_FASHION, *_VGG, '--batch_size=256', '--epochs=100')),
    'cifar10': Row(
        'ResNet-20, CIFAR-10', '0.9125: He et al. 2016, table 6',
        ('--data=cifar10', *_RESNET, '--weight_decay=0.0001', '--schedule=piecewise',
         '--decay_epochs=82,123', '--epochs=164'), needs_folder=True),
    'imagenet': Row(
        'ResNet-50, ImageNet', "0.761: torchvision's table of weights",
        ('--data=tfrecord', '--model=resnet50', '--augment=imagenet', '--batch_norm=first',
         '--batch_size=256', '--learning_rate=0.1', '--weight_decay=0.0001',
         '--schedule=piecewise', '--decay_epochs=30,60', '--epochs=90'), needs_folder=True),
}
DEFAULT_ROWS = ('tutorial', 'resnet20_short', 'vgg16_short')


class Run(NamedTuple):
  """One training: of a row, on some towers, with a seed, by a TensorFlow."""
  row: str
  towers: int
  seed: int
  tensorflow: str

  def flags(self) -> List[str]:
    """Returns the flags of main.py."""
    return [*ROWS[self.row].flags, '--device=cpu', f'--num_gpus={self.towers}',
            f'--seed={self.seed}']


def find_version() -> str:
  """Returns the version of the TensorFlow that the runs import."""
  found = find_tensorflow(find_distributions(sys.path))
  return found.version if found else '?'


def plan(rows: Sequence[str], *, towers: Sequence[int], seeds: int, tensorflow: str) -> List[Run]:
  """Returns all runs, in an order that has every number of towers early."""
  return [Run(row, count, seed, tensorflow)
          for row in rows for seed in range(seeds) for count in towers]


def find(records: Sequence[Dict[str, Any]], run: Run) -> Optional[Dict[str, Any]]:
  """Returns the record of a run, or None; one of other flags is of another run."""
  for record in records:
    if record['tensorflow'] == run.tensorflow and record['flags'] == run.flags():
      return record
  return None


def train(run: Run, data_dir: Optional[str] = None) -> Dict[str, Any]:
  """Runs main.py in a process; returns the record of the run.

  Raises:
    SystemExit: the process failed; its own message has been printed.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'result.json')
    command = [sys.executable, os.path.join(_ROOT, 'main.py'), *run.flags(), '--quiet',
               f'--result_file={path}']
    if data_dir is not None:
      command.append(f'--data_dir={os.path.abspath(data_dir)}')
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL)
    # The usage of this process alone; `Popen.wait` would drop it.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
      raise SystemExit(f"benchmarks.results: this run failed: {' '.join(command)}")
    with open(path, encoding='utf-8') as file:
      result = json.load(file)
  return dict(
      run._asdict(), flags=run.flags(), steps=result['global_step'],
      examples=result['examples_seen'], accuracy=result['validation_accuracy'],
      loss=result['validation_loss'], first_losses=result['first_losses'],
      examples_per_second=result['examples_per_second'], seconds=time.monotonic() - started,
      cpu_seconds=usage.ru_utime + usage.ru_stime, peak_bytes=usage.ru_maxrss * 1024)


def format_spread(values: Sequence[float]) -> str:
  """Returns the mean, and the standard deviation of several values."""
  mean = f'{statistics.mean(values):.4f}'
  return f'{mean} ± {statistics.stdev(values):.4f}' if len(values) > 1 else mean


def format_table(runs: Sequence[Run], records: Sequence[Dict[str, Any]]) -> str:
  """Returns a line for each row and number of towers, in Markdown."""
  lines = ['| Row | Net, data | Published | Towers | Steps | Test accuracy | Seeds | Wall s | '
           'CPU s | Peak memory |', '|---' * 10 + '|']
  groups: Dict[Tuple[str, int], List[Dict[str, Any]]] = {}
  for run in runs:
    record = find(records, run)
    groups.setdefault((run.row, run.towers), []).extend([record] if record else [])
  for (name, towers), found in groups.items():
    row = ROWS[name]
    start = f'| `{name}` | {row.net} | {row.published} | {towers} |'
    if not found:
      lines.append(f'{start} | not run | 0 | | | |')
      continue

    def middle(key, found=found):
      return statistics.median(record[key] for record in found)
    lines.append(
        f"{start} {found[0]['steps']:,} | {format_spread([each['accuracy'] for each in found])} | "
        f"{len(found)} | {middle('seconds'):.0f} | {middle('cpu_seconds'):.0f} | "
        f"{max(each['peak_bytes'] for each in found) / 1e9:.2f} GB |")
  return '\n'.join(lines)


def format_pairs(runs: Sequence[Run], records: Sequence[Dict[str, Any]]) -> str:
  """Returns, for each row and seed, the accuracies of all numbers of towers side by side."""
  towers = sorted({run.towers for run in runs})
  names = ['1 tower' if count == 1 else f'{count} towers' for count in towers]
  lines = ['| Row | Seed | ' + ' | '.join(names) + ' | Apart, first losses | Apart, last loss |',
           '|---' * (len(towers) + 4) + '|']
  for row, seed in dict.fromkeys((run.row, run.seed) for run in runs):
    found = [find(records, run) for run in runs if (run.row, run.seed) == (row, seed)]
    sets = [record for record in found if record]
    if len(sets) < len(towers) or len(sets) < 2:
      continue
    cells = [f"{record['accuracy']:.4f}" for record in sorted(sets, key=lambda r: r['towers'])]
    first = max(max(column) - min(column)
                for column in zip(*(record['first_losses'] for record in sets)))
    losses = [record['loss'] for record in sets]
    lines.append(f"| `{row}` | {seed} | {' | '.join(cells)} | {first:.0e} | "
                 f'{max(losses) - min(losses):.4f} |')
  return '\n'.join(lines)


def main(arguments: Optional[Sequence[str]] = None) -> None:
  """Trains what the file lacks, and prints the tables of what it then has."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--rows', type=several(one_of(ROWS)), default=','.join(DEFAULT_ROWS),
                      help=f"of {','.join(ROWS)}")
  parser.add_argument('--seeds', type=at_least(1), default=5, help='runs of each: seeds 0, 1, …')
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2')
  parser.add_argument('--data_dir', type=path_to_read, help='folder of the data, if it needs one')
  parser.add_argument('--json', type=path_to_write, default=FIGURES, help='file of all figures')
  parser.add_argument('--print', action='store_true', help='train nothing')
  flags = parser.parse_args(arguments)
  content = read_figures(flags.json) if os.path.exists(flags.json) else dict(records=[])
  runs = plan(flags.rows, towers=flags.towers, seeds=flags.seeds, tensorflow=find_version())
  for run in runs if not flags.print else ():
    if find(content['records'], run):
      continue
    if ROWS[run.row].needs_folder and flags.data_dir is None:
      parser.error(f'--rows={run.row} needs --data_dir, the folder of its data')
    record = dict(train(run, flags.data_dir), machine=describe_machine())
    content['records'].append(record)
    write_figures(flags.json, content)
    print(f"{run.row}, {run.towers} towers, seed {run.seed}: accuracy {record['accuracy']:.4f}, "
          f"{record['seconds']:.0f} s, {record['cpu_seconds']:.0f} CPU s", file=sys.stderr,
          flush=True)
  print(f"{format_table(runs, content['records'])}\n\n{format_pairs(runs, content['records'])}")


if __name__ == '__main__':
  main()
