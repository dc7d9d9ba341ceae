"""The cost of a ring all-reduce: a formula, its fit, and a plan for many machines. No TensorFlow.

In a ring of W workers each part of the sum goes round twice, once to add it up and once to
broadcast it: 2 (W - 1) hops, one after another, and 2 (W - 1) / W of all bytes.

  seconds = hops * latency + share * bytes / bandwidth
"""

from typing import List, NamedTuple, Sequence, Tuple


class Link(NamedTuple):
  """Between neighbours of a ring: latency in seconds per hop, bandwidth in bytes per second."""
  latency: float
  bandwidth: float


class Point(NamedTuple):
  """A measured all-reduce."""
  num_workers: int
  num_bytes: float
  seconds: float


def count_hops(num_workers: int) -> int:
  """Returns how many messages each worker sends, one after another."""
  return 2 * (num_workers - 1)


def count_sent_bytes(num_workers: int, num_bytes: float) -> float:
  """Returns how many bytes each worker sends, and receives, in an all-reduce."""
  return 2 * (num_workers - 1) / num_workers * num_bytes


def ring_seconds(num_workers: int, num_bytes: float, link: Link) -> float:
  """Returns the seconds of an all-reduce."""
  latency = count_hops(num_workers) * link.latency
  return latency + count_sent_bytes(num_workers, num_bytes) / link.bandwidth


def fit_link(points: Sequence[Point]) -> Link:
  """Returns the link with the least squared relative errors; small sums count as much as large.

  Raises:
    ValueError: all sums have the same size.
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
  """Returns the link between workers that share one machine, from one measured with fewer or more.

  All workers share the bandwidth of its cores; latency is mostly waiting and stays the same.
  """
  return Link(link.latency, link.bandwidth * measured_with / num_workers)


def plan(models: Sequence[Tuple[str, int]], links: Sequence[Tuple[str, Link]],
         workers: Sequence[int]) -> List[List[str]]:
  """Returns the rows of a table: the cost of each model's gradients on each link.

  Args:
    models: names and numbers of float32 weights.
    links: names and links.
    workers: numbers of workers.
  """
  rows = [['model', 'workers', 'each sends'] + [name for name, _ in links]]
  for name, num_weights in models:
    for num_workers in workers:
      num_bytes = 4 * num_weights
      sent = f'{count_sent_bytes(num_workers, num_bytes) / 1e6:.1f} MB'
      times = [f'{ring_seconds(num_workers, num_bytes, link) * 1e3:.1f} ms' for _, link in links]
      rows.append([name, str(num_workers), sent] + times)
  return rows
