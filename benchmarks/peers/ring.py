"""The cost of a ring all-reduce: a formula, and a plan for many machines. No TensorFlow.

In a ring of W workers each part of the sum goes round twice, once to add it up and once to hand it
out: 2 (W - 1) messages, one after another, which carry 2 (W - 1) / W of all bytes. A worker of
TensorFlow asks its neighbour for each part long before that has it; the first request alone must
arrive before anything can be sent, which takes one more latency.

  seconds = (messages + 1) * latency + sent bytes / bandwidth
"""

from typing import List, NamedTuple, Sequence, Tuple


class Link(NamedTuple):
  """Between neighbours of a ring: latency in seconds per message, bandwidth in bytes per second."""
  latency: float
  bandwidth: float


class Point(NamedTuple):
  """A measured all-reduce."""
  num_workers: int
  num_bytes: float
  seconds: float


def count_messages(num_workers: int) -> int:
  """Returns how many messages each worker sends, one after another."""
  return 2 * (num_workers - 1)


def count_sent_bytes(num_workers: int, num_bytes: float) -> float:
  """Returns how many bytes each worker sends, and receives, in an all-reduce."""
  return 2 * (num_workers - 1) / num_workers * num_bytes


def ring_seconds(num_workers: int, num_bytes: float, link: Link) -> float:
  """Returns the seconds of an all-reduce."""
  if num_workers == 1:
    return 0.0
  waits = (count_messages(num_workers) + 1) * link.latency
  return waits + count_sent_bytes(num_workers, num_bytes) / link.bandwidth


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
