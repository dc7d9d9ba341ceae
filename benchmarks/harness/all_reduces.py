"""All-reduces of workers: on one machine, over slow links beside the formula, and on paper.

On one machine all workers share its cores, and wait for these rather than for a link. Over links
that are slow enough the cores do not matter, and the formula of `ring` holds or does not.
"""

import contextlib
import statistics
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from benchmarks.harness.slow_links import SlowLinks
from benchmarks.harness.worker_cluster import BenchmarkCluster
from benchmarks.peers.ring import Link, Point, plan, ring_seconds

_SIZES = (100000, 1000000, 10000000, 100000000)
_CLUSTER_SIZES = (2, 4)
# Over slow links.
_LINKED_SIZES = (100000, 1000000)
_LINKED_CLUSTER_SIZES = (2, 4, 8)
_LINKED_NET, _LINKED_NET_BYTES = 'mlp', 4 * (784 * 128 + 128 + 128 * 10 + 10)
_LINKED_STEPS, _FIRST_STEPS = 5, 10
_PLANNED_MODELS = (('convnet', 454922), ('resnet50', 25557032), ('nasnet_large', 88753150))
_PLANNED_WORKERS = (8, 64, 512)
_PLANNED_LATENCY = 1e-4
_PLANNED_LINKS = tuple(
    (f'{gigabits} Gb/s', Link(_PLANNED_LATENCY, gigabits / 8 * 1e9)) for gigabits in (10, 100))


class LinkedPoint(NamedTuple):
  """An all-reduce, or a step of a net with one, over a slow link.

  Attributes:
    what: in words.
    link: of each worker.
    point: what was measured.
    own_seconds: the same over links without limits, where it waits for cores alone.
  """
  what: str
  link: Link
  point: Point
  own_seconds: float

  @property
  def formula_seconds(self) -> float:
    """What the link takes by the formula."""
    return ring_seconds(self.point.num_workers, self.point.num_bytes, self.link)


def read_link(text: str) -> Link:
  """Reads 'MS:MBIT', such as '5:50' for 5 ms and 50 Mb/s.

  Raises:
    ValueError: it is no such text.
  """
  milliseconds, megabits = map(float, text.split(':'))
  if not (milliseconds >= 0 and megabits > 0):
    raise ValueError(text)
  return Link(milliseconds / 1e3, megabits / 8 * 1e6)


def measure_all_reduces(*, rounds: int,
                        limit_seconds: float) -> Tuple[List[Point], Dict[int, float]]:
  """Returns the seconds of all-reduces of all sizes, and the CPU seconds per byte.

  CPU seconds are those of one worker, by the number of workers. Clusters take turns; the fastest
  round counts, because other work on the machine only adds to it.
  """
  seconds: Dict[Any, List[float]] = {}
  used: Dict[int, List[float]] = {}
  with contextlib.ExitStack() as opened:
    clusters = [
        opened.enter_context(BenchmarkCluster(_all_reduces_of(_SIZES), num_workers=num_workers,
                                              limit_seconds=limit_seconds))
        for num_workers in _CLUSTER_SIZES
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


def _all_reduces_of(sizes):
  """Returns arguments of `worker_steps`."""
  return ['all_reduce', ','.join(map(str, sizes)), '0']


def measure_links(links: Sequence[Link], *, batch_size: int, limit_seconds: float,
                  tell: Callable[[str], Any]) -> List[LinkedPoint]:
  """Returns all-reduces, and steps of a net, of several numbers of workers over slow links.

  Args:
    links: that all workers get in turn.
    batch_size: of each worker.
    limit_seconds: after which all processes end themselves.
    tell: called with the row of each of the results.
  """
  found = []
  kinds: List[Tuple[str, List[str], Tuple[int, ...], Callable[..., List[float]]]] = [
      ('all-reduce', _all_reduces_of(_LINKED_SIZES), _LINKED_SIZES, _time_all_reduces),
      (f'step of {_LINKED_NET}', ['towers', _LINKED_NET, str(batch_size)], (_LINKED_NET_BYTES,),
       _time_steps),
  ]
  for num_workers in _LINKED_CLUSTER_SIZES:
    for what, arguments, sizes, time_all in kinds:
      with SlowLinks(num_workers) as network, \
          BenchmarkCluster(arguments, num_workers=num_workers, limit_seconds=limit_seconds,
                           links=network) as cluster:
        cluster.wait()
        cluster.take(_FIRST_STEPS)
        own = time_all(cluster)
        for link in links:
          network.set(link)
          cluster.take(1)  # TCP gets to know the link.
          for num_bytes, seconds, own_seconds in zip(sizes, time_all(cluster), own):
            point = Point(num_workers, num_bytes, seconds)
            found.append(LinkedPoint(what, link, point, own_seconds))
            tell(format_linked(found[-1]))
        cluster.leave()
  return found


def _time_all_reduces(cluster):
  """Returns the seconds of the fastest all-reduce of each size."""
  reports = cluster.take(_LINKED_STEPS)
  slowest = {size: map(max, zip(*(report[str(size)] for report in reports)))
             for size in _LINKED_SIZES}
  return [min(slowest[size]) for size in _LINKED_SIZES]


def _time_steps(cluster):
  """Returns the seconds of a step, as the only one."""
  reports = cluster.take(_LINKED_STEPS)
  return [max(report['seconds'] for report in reports) / _LINKED_STEPS]


def format_linked(row: LinkedPoint) -> str:
  """Returns a row: what was measured beside the formula, alone and with the step's own time."""
  link, point, formula = row.link, row.point, row.formula_seconds
  return (f'  {point.num_workers} workers  {link.latency * 1e3:3.0f} ms '
          f'{link.bandwidth * 8e-6:4.0f} Mb/s  {row.what:11} {point.num_bytes / 1e6:4.1f} MB  '
          f'measured {point.seconds * 1e3:7.1f} ms  formula {formula * 1e3:7.1f} ms '
          f'({formula / point.seconds:.2f})  without limits {row.own_seconds * 1e3:5.1f} ms, with '
          f'the formula {(formula + row.own_seconds) / point.seconds:.2f}')


def format_all_reduces(points: Sequence[Point], used: Dict[int, float]) -> str:
  """Returns a table of all-reduces on one machine, and what they cost in CPU time."""
  rows = ['all-reduces of workers that share the cores of this machine:']
  rows += [f'  {point.num_workers} workers {point.num_bytes / 1e6:6.1f} MB  '
           f'{point.seconds * 1e3:8.2f} ms' for point in points]
  costs = ', '.join(f'{1e9 * seconds_per_byte:.2f} ms of {num_workers}'
                    for num_workers, seconds_per_byte in sorted(used.items()))
  return '\n'.join([*rows, f'CPU of each worker for a MB: {costs}'])


def format_plan() -> str:
  """Returns the cost of gradients on many machines, by the formula."""
  rows = [f'a plan, with {_PLANNED_LATENCY * 1e3:.1f} ms a message:']
  for row in plan(_PLANNED_MODELS, _PLANNED_LINKS, _PLANNED_WORKERS):
    rows.append('  ' + ''.join(f'{cell:>14}' for cell in row))
  return '\n'.join(rows)
