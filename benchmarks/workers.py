"""Several workers: ours beside MultiWorkerMirroredStrategy, as processes on loopback.

  python -m benchmarks.workers            # a small CNN, a small MLP and an embedding, 2 workers
  python -m benchmarks.workers --nets=embedding_40k,embedding,embedding_4m
  python -m benchmarks.workers --nets=mlp --rounds=12 --json=workers.json
  python -m benchmarks.workers --scaling  # ours with 1, 2 and 4 workers, all-reduces, and a plan
                                          # for 8 and 64 machines

  towers      the program of main.py: input, staging, guard, input wait and watch of peers,
              without its progress line
  estimator   Estimator + MultiWorkerMirroredStrategy in a ring, of TensorFlow 1.14
  fit, loop   the same with Keras's model.fit, and with a loop of tf.function, of TensorFlow 2

All workers of all kinds start once and wait; then, in each round, the kinds take the same number of
steps one after another. Every kind trains the same net from the same weights on the same examples
(see `worker_steps`), as the mean loss of the first 20 steps shows. Ratios compare steps per second
of the same round, ours to the best of the others.

With --scaling only ours takes steps, with 1, 2 and 4 workers, followed by all-reduces of several
sizes without a net. The formula of `ring` is fitted to some all-reduces of 2 workers and printed
beside all measurements; the plan rests on the formula alone.
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
# All kinds report the mean loss up to here; nets of this size have allocated their buffers by then.
FIRST_STEPS = 20
_COUNTED_STEPS = 40
_DEFAULT_NETS = 'cnn,mlp,embedding'
_SIZES = (100000, 1000000, 10000000, 100000000)
_UNSEEN_SIZE = 10000000  # Left out of the fit.
_CLUSTER_SIZES = (1, 2, 4)
_FITTED_WORKERS = 2
_PLANNED_MODELS = (('convnet', 454922), ('resnet50', 25557032), ('nasnet_large', 88753150))
_PLANNED_WORKERS = (8, 64)
_HOP_SECONDS = 1e-4
_PLANNED_LINKS = tuple(
    (f'{gigabits} Gb/s', Link(_HOP_SECONDS, gigabits / 8 * 1e9)) for gigabits in (10, 100))
_SECONDS_TO_LEAVE = 20
_SECONDS_TO_SPEAK = 2
_LAST_CHARACTERS = 2000
_WORKER = 'benchmarks.harness.worker_steps'


class Failed(Exception):
  """A worker has ended too early."""


class BenchmarkCluster:
  """The workers of one kind: processes that take steps together on request."""

  def __init__(self, module: str, arguments: Sequence[str], *, num_workers: int,
               limit_seconds: float):
    """Starts the workers.

    Args:
      module: that each runs, with `arguments`, its start time and `limit_seconds`.
      arguments: see above.
      num_workers: on free ports of loopback.
      limit_seconds: after which each ends itself.
    """
    addresses = [f'127.0.0.1:{port}' for port in find_free_ports(num_workers)]
    errors, self._path = tempfile.mkstemp()

    def start(rank):
      command = [sys.executable, '-m', module, *arguments, repr(time.time()), str(limit_seconds)]
      environment = dict(os.environ, TF_CONFIG=format_tf_config(addresses, 'worker', rank))
      return subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=errors, universal_newlines=True)

    self._processes = [start(rank) for rank in range(num_workers)]

  def __enter__(self) -> 'BenchmarkCluster':
    return self

  def __exit__(self, *_: Any) -> None:
    for process in self._processes:
      process.kill()
      process.communicate()
    os.remove(self._path)

  def take(self, num_steps: int) -> List[Dict[str, Any]]:
    """Lets all workers take `num_steps` steps; returns their reports."""
    self._request(num_steps)
    return self.wait()

  def _request(self, num_steps):
    for process in self._processes:
      with contextlib.suppress(BrokenPipeError):  # `wait` sees that it has ended.
        process.stdin.write(f'{num_steps}\n')
        process.stdin.flush()

  def wait(self) -> List[Dict[str, Any]]:
    """Returns the next report of each worker.

    Raises:
      Failed: a worker has ended.
    """
    reports = {}
    with selectors.DefaultSelector() as selector:
      for process in self._processes:
        selector.register(process.stdout, selectors.EVENT_READ)
      while len(reports) < len(self._processes):
        for key, _ in selector.select():
          line = key.fileobj.readline()  # Each writes one whole line and waits.
          if not line:
            raise Failed(self._last_words())
          selector.unregister(key.fileobj)
          reports[key.fd] = json.loads(line)
    return list(reports.values())

  def _last_words(self):
    """Returns the end of the workers' stderr, a moment after one has ended."""
    time.sleep(_SECONDS_TO_SPEAK)
    with open(self._path, encoding='utf-8', errors='replace') as file:
      return file.read()[-_LAST_CHARACTERS:]

  def leave(self) -> None:
    """Asks all workers to leave, and waits a while; `__exit__` kills those that hang."""
    self._request(0)
    until = time.monotonic() + _SECONDS_TO_LEAVE
    for process in self._processes:
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, until - time.monotonic()))


def kinds_of(version: str) -> List[str]:
  """Returns the kinds that run on a version of TensorFlow, ours first."""
  return [OURS] + (['estimator'] if version.startswith('1.') else ['fit', 'loop'])


def measure(net: str, kinds: Sequence[str], *, num_workers: int, batch_size: int, rounds: int,
            seconds: float, limit_seconds: float) -> Dict[str, Any]:
  """Returns the steps per second of each kind in each round, with set-up, CPU time and loss.

  Args:
    net: one of worker_steps.NETS.
    kinds: of worker_steps.KINDS.
    num_workers: of each kind.
    batch_size: of each worker.
    rounds: in which all take turns.
    seconds: about how long a turn of the slowest kind takes.
    limit_seconds: after which all processes end themselves.
  """
  clusters: Dict[str, BenchmarkCluster] = {}
  found: Dict[str, Dict[str, Any]] = {}
  with contextlib.ExitStack() as opened:
    for kind in kinds:
      # One after another, so that set-ups do not slow each other down.
      cluster = BenchmarkCluster(_WORKER, [kind, net, str(batch_size)], num_workers=num_workers,
                                 limit_seconds=limit_seconds)
      clusters[kind] = opened.enter_context(cluster)
      setup = max(report['seconds'] for report in cluster.wait())
      mean_loss = cluster.take(FIRST_STEPS - 1)[0]['mean_loss']
      found[kind] = dict(setup_seconds=setup, mean_loss=mean_loss, steps_per_second=[],
                         cpu_milliseconds=[])

    slowest = max(report['seconds'] for cluster in clusters.values()
                  for report in cluster.take(_COUNTED_STEPS))
    num_steps = max(10, int(_COUNTED_STEPS * seconds / slowest))
    for index in range(rounds):
      for kind in in_turn(list(kinds), index):
        reports = clusters[kind].take(num_steps)
        turn_seconds = max(report['seconds'] for report in reports)
        cpu_seconds = sum(report['cpu_seconds'] for report in reports)
        found[kind]['steps_per_second'].append(num_steps / turn_seconds)
        found[kind]['cpu_milliseconds'].append(cpu_seconds / num_steps * 1e3)

    for cluster in clusters.values():
      cluster.leave()
  return dict(net=net, num_workers=num_workers, batch_size=batch_size, steps_per_turn=num_steps,
              kinds=found)


def best_peer(line: Dict[str, Any]) -> str:
  """Returns the fastest kind except ours, or '' if there is none."""
  others = [kind for kind in line['kinds'] if kind != OURS]
  return max(others, key=lambda kind: statistics.median(line['kinds'][kind]['steps_per_second']),
             default='')


def ratios(line: Dict[str, Any], peer: str) -> List[float]:
  """Returns how many steps ours takes while a peer takes one, in each round."""
  return [ours / other for ours, other in zip(line['kinds'][OURS]['steps_per_second'],
                                              line['kinds'][peer]['steps_per_second'])]


def format_spread(values: Sequence[float], form: str) -> str:
  """Returns the median, the smallest and the largest value, each in the %-format `form`."""
  return f'{form} ({form} to {form})' % (statistics.median(values), min(values), max(values))


def format_line(line: Dict[str, Any]) -> str:
  """Returns a table: a row for each kind, and the ratio."""
  rows = [f"{line['net']}, {line['num_workers']} workers of {line['batch_size']} examples, "
          f"turns of {line['steps_per_turn']} steps"]
  for kind, found in line['kinds'].items():
    rows.append(f"  {kind:9}  {format_spread(found['steps_per_second'], '%.1f'):28} steps/s   "
                f"CPU {statistics.median(found['cpu_milliseconds']):6.2f} ms a step of all workers"
                f"   set-up {found['setup_seconds']:5.1f} s   "
                f"mean loss of {FIRST_STEPS} steps {found['mean_loss']:.5f}")
  peer = best_peer(line)
  if peer:
    rows.append(f"  ours to {peer}, by rounds: {format_spread(ratios(line, peer), '%.2f')}")
  return '\n'.join(rows)


def measure_all_reduce(*, rounds: int,
                       limit_seconds: float) -> Tuple[List[Point], Dict[int, float]]:
  """Returns the seconds of all-reduces of all sizes, and the CPU seconds per byte.

  CPU seconds are those of one worker, by the number of workers. Clusters take turns; the fastest
  round counts, because other work on the machine only adds to it.
  """
  seconds: Dict[Any, List[float]] = {}
  used: Dict[int, List[float]] = {}
  with contextlib.ExitStack() as opened:
    arguments = ['all_reduce', ','.join(map(str, _SIZES)), '0']
    clusters = [
        opened.enter_context(BenchmarkCluster(_WORKER, arguments, num_workers=num_workers,
                                              limit_seconds=limit_seconds))
        for num_workers in _CLUSTER_SIZES if num_workers > 1
    ]
    for cluster in clusters:
      cluster.wait()  # The first step also allocates.

    for index in range(rounds):
      for cluster in clusters[::-1] if index % 2 else clusters:
        reports = cluster.take(1)
        num_workers = len(reports)
        cpu_seconds = statistics.mean(report['cpu_seconds'] for report in reports)
        used.setdefault(num_workers, []).append(cpu_seconds / sum(_SIZES))
        for size in _SIZES:
          slowest = max(report[str(size)][0] for report in reports)
          seconds.setdefault((num_workers, size), []).append(slowest)

    for cluster in clusters:
      cluster.leave()
  points = [Point(num_workers, size, min(found))
            for (num_workers, size), found in sorted(seconds.items())]
  return points, {num_workers: min(found) for num_workers, found in used.items()}


def format_all_reduce(points: Sequence[Point]) -> str:
  """Returns a table of all-reduces: measured times beside those of the formula.

  The formula is fitted to some all-reduces of 2 workers. For more workers the table shows two
  times: as if each had its own link, and as if all shared the link of the two.
  """
  def is_fitted(point):
    return point.num_workers == _FITTED_WORKERS and point.num_bytes != _UNSEEN_SIZE

  link = fit_link([point for point in points if is_fitted(point)])
  rows = [f'all-reduces of 2 workers fit a latency of {link.latency * 1e3:.2f} ms a hop and '
          f'{link.bandwidth / 1e6:.0f} MB/s']
  for point in points:
    shared = on_one_machine(link, _FITTED_WORKERS, point.num_workers)
    cells = []
    for name, its_link in (('own links', link), ('one machine', shared)):
      seconds = ring_seconds(point.num_workers, point.num_bytes, its_link)
      cells.append(f'{name} {seconds * 1e3:8.2f} ms ({seconds / point.seconds:.2f})')
    rows.append(f'  {point.num_workers} workers {point.num_bytes / 1e6:6.1f} MB  measured '
                f'{point.seconds * 1e3:8.2f} ms  formula: {", ".join(cells)}'
                f'{"" if is_fitted(point) else "  not fitted"}')
  return '\n'.join(rows)


def format_plan() -> str:
  """Returns the cost of gradients on many machines, by the formula."""
  rows = [f'a plan, with {_HOP_SECONDS * 1e3:.1f} ms a hop:']
  for row in plan(_PLANNED_MODELS, _PLANNED_LINKS, _PLANNED_WORKERS):
    rows.append('  ' + ''.join(f'{cell:>14}' for cell in row))
  return '\n'.join(rows)


def main() -> None:
  """Prints a table for each net."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--nets', type=several(one_of(NETS)), default=_DEFAULT_NETS,
                      help='of ' + ','.join(NETS))
  parser.add_argument('--kinds', type=several(str),
                      help='default: all that run on this TensorFlow')
  parser.add_argument('--workers', type=at_least(1), default=2)
  parser.add_argument('--batch_size', type=at_least(1), default=64, help='of each worker')
  parser.add_argument('--rounds', type=at_least(1), default=6)
  parser.add_argument('--seconds', type=at_least(0, float), default=3, help='of a turn')
  parser.add_argument('--limit_seconds', type=at_least(1, float), default=600,
                      help='after which every worker ends itself')
  parser.add_argument('--scaling', action='store_true',
                      help='ours with 1, 2 and 4 workers, and what --sums does')
  parser.add_argument('--sums', action='store_true',
                      help='all-reduces without a net, the formula, and a plan')
  parser.add_argument('--json', type=path_to_write, help='file to write all figures to')
  flags = parser.parse_args()
  from tensorflow_v1 import tf
  from towers.training.reporting.report import find_versions

  known = kinds_of(tf.__version__)
  kinds = flags.kinds or ([OURS] if flags.scaling else known)
  if OURS not in kinds or not set(kinds) <= set(known):
    parser.error(f"--kinds={','.join(kinds)}: choose from {','.join(known)}, which run on "
                 f"TensorFlow {tf.__version__}, with {OURS} among them")
  lines = []
  sums: Dict[str, Any] = {}
  for net in () if flags.sums else flags.nets:
    for num_workers in _CLUSTER_SIZES if flags.scaling else (flags.workers,):
      line = measure(net, kinds, num_workers=num_workers, batch_size=flags.batch_size,
                     rounds=flags.rounds, seconds=flags.seconds, limit_seconds=flags.limit_seconds)
      lines.append(line)
      print(format_line(line), flush=True)
  if flags.scaling or flags.sums:
    points, used = measure_all_reduce(rounds=flags.rounds, limit_seconds=flags.limit_seconds)
    sums = dict(points=[point._asdict() for point in points], cpu_seconds_of_a_byte=used)
    costs = ', '.join(f'{1e9 * seconds_per_byte:.2f} ms of {num_workers}'
                      for num_workers, seconds_per_byte in sorted(used.items()))
    print(f'{format_all_reduce(points)}\nCPU of each worker for a MB: {costs}\n{format_plan()}')
  if flags.json:
    write_figures(flags.json, dict(versions=find_versions(), lines=lines, sums=sums))


if __name__ == '__main__':
  main()
