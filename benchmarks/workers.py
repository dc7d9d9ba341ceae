"""Several workers: ours beside MultiWorkerMirroredStrategy, as processes on loopback that take
turns.

  python -m benchmarks.workers            # a small CNN and a small MLP, 2 workers; five minutes
  python -m benchmarks.workers --nets=mlp --rounds=12 --json=workers.json
  python -m benchmarks.workers --scaling  # ours with 1, 2 and 4 workers, sums, and a plan
                                          # for 8 and 64 machines

  towers      the program of main.py: input, staging, guard, input wait and watch of peers,
              without its progress line
  estimator   Estimator + MultiWorkerMirroredStrategy in a ring, of TensorFlow 1.14
  fit, loop   the same with Keras's model.fit, and with a loop of tf.function, of TensorFlow 2

All workers of all kinds are started once and wait; then in each round one kind after another takes
as many steps. So every kind trains the same net, from the same weights, on the same examples (see
`worker_steps`), and the mean loss of the first 20 steps shows it. Ratios are of steps per second in
one round, ours to the best of the others.

With --scaling ours alone takes steps with 1, 2 and 4 workers, and sums of several sizes without any
net. The formula of `ring` is fitted to some sums of 2 workers, and told beside all that were
measured; the plan rests on the formula alone.
"""

import argparse
import contextlib
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Sequence, Tuple

from benchmarks.harness.figures import write_figures
from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from benchmarks.harness.worker_steps import NETS
from benchmarks.peers.ring import Link, Point, fit_link, on_one_machine, plan, ring_seconds
from benchmarks.step import in_turn
from towers.launch.ports import find_free_ports
from towers.launch.tf_config import format_tf_config

OURS = 'towers'
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# All kinds tell of the losses up to here; a net of this size has made its buffers by then.
FIRST_STEPS = 20
_COUNTED_STEPS = 40
_SIZES = (100000, 1000000, 10000000, 100000000)
_UNSEEN_SIZE = 10000000  # By the fit.
_TEAMS = (1, 2, 4)
_FITTED_WORKERS = 2
_PLANNED_MODELS = (('convnet', 454922), ('resnet50', 25557032), ('nasnet_large', 88753150))
_PLANNED_WORKERS = (8, 64)
_HOP_SECONDS = 1e-4
_PLANNED_LINKS = tuple(
    (f'{gigabits} Gb/s', Link(_HOP_SECONDS, gigabits / 8 * 1e9)) for gigabits in (10, 100))
_SECONDS_TO_LEAVE = 20
_SECONDS_TO_SPEAK = 2
_LAST_CHARACTERS = 2000


class Failed(Exception):
  """A worker has ended before its time."""


class BenchmarkCluster:
  """The workers of one kind: processes that take steps together when they are asked for."""

  def __init__(self, module: str, arguments: Sequence[str], *, num_workers: int,
               limit_seconds: float):
    """Starts them.

    Args:
      module: that each runs, with `arguments`, the time of its start and `limit_seconds`.
      arguments: see above.
      num_workers: on free ports of loopback.
      limit_seconds: after which each ends itself.
    """
    addresses = [f'127.0.0.1:{port}' for port in find_free_ports(num_workers)]
    errors, self._path = tempfile.mkstemp()
    self._processes = [
        subprocess.Popen(
            [sys.executable, '-m', module, *arguments,
             repr(time.time()),
             str(limit_seconds)], cwd=_ROOT,
            env=dict(os.environ, TF_CONFIG=format_tf_config(addresses, 'worker', worker)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, universal_newlines=True)
        for worker in range(num_workers)
    ]

  def __enter__(self) -> 'BenchmarkCluster':
    return self

  def __exit__(self, *_: Any) -> None:
    for process in self._processes:
      process.kill()
      process.communicate()
    os.remove(self._path)

  def ask(self, count: int) -> List[Dict[str, Any]]:
    """Asks all to take so many steps; returns what each reports."""
    self._tell(count)
    return self.wait()

  def _tell(self, count):
    for process in self._processes:
      with contextlib.suppress(BrokenPipeError):  # The end of its other pipe tells.
        process.stdin.write(f'{count}\n')
        process.stdin.flush()

  def wait(self) -> List[Dict[str, Any]]:
    """Returns the next report of each.

    Raises:
      Failed: one has ended instead.
    """
    reports = {}
    with selectors.DefaultSelector() as selector:
      for process in self._processes:
        selector.register(process.stdout, selectors.EVENT_READ)
      while len(reports) < len(self._processes):
        for key, _ in selector.select():
          line = key.fileobj.readline()  # Each writes one whole line, and waits.
          if not line:
            raise Failed(self._last_words())
          selector.unregister(key.fileobj)
          reports[key.fd] = json.loads(line)
    return list(reports.values())

  def _last_words(self):
    """Returns the end of what all have written, a moment after one has ended."""
    time.sleep(_SECONDS_TO_SPEAK)
    with open(self._path, encoding='utf-8', errors='replace') as file:
      return file.read()[-_LAST_CHARACTERS:]

  def leave(self) -> None:
    """Asks all to leave; who does not is killed in the end, as TensorFlow may wait for ever for one
    that is gone.
    """
    self._tell(0)
    until = time.monotonic() + _SECONDS_TO_LEAVE
    for process in self._processes:
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, until - time.monotonic()))


def kinds_of(version: str) -> List[str]:
  """Returns what a version of TensorFlow has, ours first."""
  return [OURS] + (['estimator'] if version.startswith('1.') else ['fit', 'loop'])


def measure(net: str, kinds: Sequence[str], *, num_workers: int, batch_size: int, rounds: int,
            seconds: float, limit_seconds: float) -> Dict[str, Any]:
  """Returns the steps per second of each kind in each round, and what else is told of it.

  Args:
    net: one of worker_steps.NETS.
    kinds: of worker_steps.KINDS.
    num_workers: of each kind.
    batch_size: of each worker.
    rounds: in which all take turns.
    seconds: of a turn, about, of the slowest.
    limit_seconds: after which all processes end themselves.
  """
  clusters: Dict[str, BenchmarkCluster] = {}
  found: Dict[str, Dict[str, Any]] = {}
  with contextlib.ExitStack() as opened:
    for kind in kinds:
      # One after another, so that set-ups do not slow each other down.
      clusters[kind] = opened.enter_context(
          BenchmarkCluster('benchmarks.harness.worker_steps',
                           [kind, net, str(batch_size)], num_workers=num_workers,
                           limit_seconds=limit_seconds))
      setup = max(report['seconds'] for report in clusters[kind].wait())
      found[kind] = dict(setup_seconds=setup, mean_loss=clusters[kind].ask(FIRST_STEPS - 1)[0][
          'mean_loss'],
                         steps_per_second=[], cpu_milliseconds=[])
    slowest = max(report['seconds']
                  for cluster in clusters.values()
                  for report in cluster.ask(_COUNTED_STEPS))
    count = max(10, int(_COUNTED_STEPS * seconds / slowest))
    for number in range(rounds):
      for kind in in_turn(list(kinds), number):
        reports = clusters[kind].ask(count)
        found[kind]['steps_per_second'].append(count / max(report['seconds'] for report in reports))
        found[kind]['cpu_milliseconds'].append(
            sum(report['cpu_seconds'] for report in reports) / count * 1e3)
    for cluster in clusters.values():
      cluster.leave()
  return dict(net=net, num_workers=num_workers, batch_size=batch_size, steps_per_turn=count,
              kinds=found)


def best_peer(line: Dict[str, Any]) -> str:
  """Returns the fastest kind but ours, or '' where there is none."""
  others = [kind for kind in line['kinds'] if kind != OURS]
  return max(others, key=lambda kind: statistics.median(line['kinds'][kind]['steps_per_second']),
             default='')


def ratios(line: Dict[str, Any], peer: str) -> List[float]:
  """Returns how many steps ours takes while a peer takes one, in each round."""
  kinds = line['kinds']
  return [ours / other for ours, other in zip(kinds[OURS]['steps_per_second'], kinds[peer][
      'steps_per_second'])]


def format_spread(values: Sequence[float], form: str) -> str:
  """Returns the median, and the smallest and largest."""
  return ' '.join([form, f'({form} to {form})'
                  ]) % (statistics.median(values), min(values), max(values))


def format_line(line: Dict[str, Any]) -> str:
  """Returns a table: a row for each kind, and the ratio."""
  rows = [
      '{net}, {num_workers} workers of {batch_size} examples, turns of {steps_per_turn} steps'.
      format(**line)
  ]
  for kind, found in line['kinds'].items():
    rows.append('  %-9s  %-28s steps/s   CPU %6.2f ms a step of all workers   set-up %5.1f s   '
                'mean loss of %d steps %.5f' %
                (kind, format_spread(found['steps_per_second'],
                                     '%.1f'), statistics.median(found['cpu_milliseconds']),
                 found['setup_seconds'], FIRST_STEPS, found['mean_loss']))
  peer = best_peer(line)
  if peer:
    rows.append('  ours to {}, by rounds: {}'.format(peer, format_spread(ratios(line, peer),
        '%.2f')))
  return '\n'.join(rows)


def measure_all_reduce(*, rounds: int,
                       limit_seconds: float) -> Tuple[List[Point], Dict[int, float]]:
  """Returns the seconds of sums of all sizes, and by the number of workers the CPU seconds of a
  byte in each of them.

  Of all rounds, in which clusters take turns, the fastest counts, since others on the machine only
  add to it.
  """
  seconds: Dict[Any, List[float]] = {}
  used: Dict[int, List[float]] = {}
  with contextlib.ExitStack() as opened:
    clusters = [
        opened.enter_context(
            BenchmarkCluster('benchmarks.harness.worker_steps',
                             ['all_reduce', ','.join(map(str, _SIZES)), '0'],
                             num_workers=num_workers, limit_seconds=limit_seconds))
        for num_workers in _TEAMS
        if num_workers > 1
    ]
    for cluster in clusters:
      cluster.wait()  # The first step also allocates.
    for number in range(rounds):
      for cluster in clusters[::-1] if number % 2 else clusters:
        reports = cluster.ask(1)
        used.setdefault(len(reports), []).append(
            statistics.mean(report['cpu_seconds'] for report in reports) / sum(_SIZES))
        for size in _SIZES:
          seconds.setdefault((len(reports), size),
                             []).append(max(report[str(size)][0] for report in reports))
    for cluster in clusters:
      cluster.leave()
  points = [
      Point(num_workers, size, min(found)) for (num_workers, size), found in sorted(seconds.items())
  ]
  return points, {num_workers: min(found) for num_workers, found in used.items()}


def format_all_reduce(points: Sequence[Point]) -> str:
  """Returns a table of sums, measured and by the formula, which is fitted to some of those of 2
  workers.

  Of more workers it tells two times: as if each had a link of its own, and as if all shared that of
  the two.
  """
  def is_fitted(point):
    return point.num_workers == _FITTED_WORKERS and point.num_bytes != _UNSEEN_SIZE

  link = fit_link([point for point in points if is_fitted(point)])
  rows = [f'sums of 2 workers fit a latency of {link.latency * 1000.0:.2f} ms a hop and '
          f'{link.bandwidth / 1000000.0:.0f} MB/s']
  for point in points:
    cells = []
    for name, of_team in (('own links', link), ('one machine',
                                                on_one_machine(link, _FITTED_WORKERS,
                                                               point.num_workers))):
      seconds = ring_seconds(point.num_workers, point.num_bytes, of_team)
      cells.append(f'{name} {seconds * 1000.0:8.2f} ms ({seconds / point.seconds:.2f})')
    rows.append(f"  {point.num_workers} workers {point.num_bytes / 1000000.0:6.1f} MB  measured "
                f"{point.seconds * 1000.0:8.2f} ms  formula: "
                f"{', '.join(cells)}{'' if is_fitted(point) else '  not fitted'}")
  return '\n'.join(rows)


def format_plan() -> str:
  """Returns what gradients cost on many machines, by the formula."""
  rows = plan(_PLANNED_MODELS, _PLANNED_LINKS, _PLANNED_WORKERS)
  return '\n'.join([f'a plan, with {_HOP_SECONDS * 1000.0:.1f} ms a hop:'] + [
      '  ' + ''.join(f'{cell:>14}' for cell in row) for row in rows])


def main() -> None:
  """Prints a table for each net."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--nets', type=several(one_of(NETS)), default=','.join(NETS))
  parser.add_argument('--kinds', type=several(str), help='default: all that this TensorFlow has')
  parser.add_argument('--workers', type=at_least(1), default=2)
  parser.add_argument('--batch_size', type=at_least(1), default=64, help='of each worker')
  parser.add_argument('--rounds', type=at_least(1), default=6)
  parser.add_argument('--seconds', type=at_least(0, float), default=3, help='of a turn')
  parser.add_argument('--limit_seconds', type=at_least(1, float), default=600,
                      help='after which every worker ends itself')
  parser.add_argument('--scaling', action='store_true', help='ours with 1, 2 and 4 workers, and '
                                                             'what --sums does')
  parser.add_argument('--sums', action='store_true', help='sums without a net, the formula, and a '
                                                          'plan')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args()
  from tensorflow_v1 import tf
  from towers.training.reporting.report import find_versions

  known = kinds_of(tf.__version__)
  kinds = flags.kinds or ([OURS] if flags.scaling else known)
  if OURS not in kinds or not set(kinds) <= set(known):
    parser.error(f"--kinds={','.join(kinds)}: choose of {','.join(known)}, which TensorFlow "
                 f"{tf.__version__} has, with {OURS} among them")
  lines = []
  sums: Dict[str, Any] = {}
  for net in () if flags.sums else flags.nets:
    for num_workers in _TEAMS if flags.scaling else (flags.workers,):
      lines.append(
          measure(net, kinds, num_workers=num_workers, batch_size=flags.batch_size,
                  rounds=flags.rounds, seconds=flags.seconds, limit_seconds=flags.limit_seconds))
      print(format_line(lines[-1]), flush=True)
  if flags.scaling or flags.sums:
    points, used = measure_all_reduce(rounds=flags.rounds, limit_seconds=flags.limit_seconds)
    sums = dict(points=[point._asdict() for point in points], cpu_seconds_of_a_byte=used)
    print('{}\nCPU of each worker for a MB: {}\n{}'.format(
        format_all_reduce(points), ', '.join('%.2f ms of %d' % (1e9 * found, num_workers)
                                             for num_workers, found in sorted(used.items())),
        format_plan()))
  if flags.json:
    write_figures(flags.json, dict(versions=find_versions(), lines=lines, sums=sums))


if __name__ == '__main__':
  main()
