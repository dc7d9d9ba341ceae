"""What a ring of workers costs: a formula, what it is fitted to, and a plan for many machines. No
TensorFlow.

In a ring of W workers every worker sends each part of the sum once to be added up, and once to be
handed on: 2 (W - 1) hops, one after another, and 2 (W - 1) / W of all bytes.

  seconds = hops * latency + share * bytes / bandwidth
"""

from typing import List, NamedTuple, Sequence, Tuple


class Link(NamedTuple):
  """Between neighbours of a ring: the seconds of a hop that carries nothing, and bytes a second."""
  latency: float
  bandwidth: float


class Point(NamedTuple):
  """A measured sum."""
  num_workers: int
  num_bytes: float
  seconds: float


def count_hops(num_workers: int) -> int:
  """Returns how many messages of each worker follow one after another."""
  return 2 * (num_workers - 1)


def count_sent_bytes(num_workers: int, num_bytes: float) -> float:
  """Returns what each worker sends, and receives, of a sum of so many bytes."""
  return 2 * (num_workers - 1) / num_workers * num_bytes


def ring_seconds(num_workers: int, num_bytes: float, link: Link) -> float:
  """Returns what a sum takes."""
  return count_hops(num_workers) * link.latency + count_sent_bytes(num_workers,
                                                                   num_bytes) / link.bandwidth


def fit_link(points: Sequence[Point]) -> Link:
  """Returns the link that fits best, by relative errors, so that small sums count as much as large
  ones.

  Raises:
    ValueError: fewer than two different sums.
  """
  rows = [(count_hops(point.num_workers) / point.seconds,
           count_sent_bytes(point.num_workers, point.num_bytes) / point.seconds)
          for point in points]
  hops_hops, hops_bytes, bytes_bytes = (
      sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
  hops, sent = (sum(row[i] for row in rows) for i in (0, 1))
  determinant = hops_hops * bytes_bytes - hops_bytes ** 2
  if determinant <= 1e-9 * hops_hops * bytes_bytes:
    raise ValueError('two sums of different sizes are needed')
  return Link(latency=(hops * bytes_bytes - sent * hops_bytes) / determinant,
              bandwidth=determinant / (sent * hops_hops - hops * hops_bytes))


def on_one_machine(link: Link, measured_with: int, num_workers: int) -> Link:
  """Returns the link of a machine whose cores copy the bytes of all its workers, from that of
  another number of them.

  A hop that carries nothing mostly waits, and takes what it takes.
  """
  return Link(link.latency, link.bandwidth * measured_with / num_workers)


def plan(models: Sequence[Tuple[str, int]], links: Sequence[Tuple[str, Link]],
         workers: Sequence[int]) -> List[List[str]]:
  """Returns the rows of a table: what the gradients of a model cost on each link.

  Args:
    models: names, and how many float32 weights each has.
    links: names, and what they are.
    workers: how many.
  """
  rows = [['model', 'workers', 'each sends'] + [name for name, _ in links]]
  for name, num_weights in models:
    for num_workers in workers:
      rows.append([
          name,
          str(num_workers), f'{count_sent_bytes(num_workers, 4 * num_weights) / 1000000.0:.1f} '
          'MB'
      ] + [
          f'{1000.0 * ring_seconds(num_workers, 4 * num_weights, link):.1f} ms' for _, link in links
      ])
  return rows
