"""Staging areas: batches wait on their tower's device while the step before them computes.

One `StagingArea` per tower and per split, so that a batch of one split is never taken for a batch of the other.

            step 7          step 8
  put   ──► batch 8         batch 9          a run of step s takes batch s out and puts batch s + depth in
  area      [7]             [8]              depth 1: one batch waits between two steps
  get   ──► batch 7         batch 8

A `get` on an empty area and a `put` on a full one block a thread for good: neither a run's time limit nor Ctrl-C ends
them. So the areas are kept in balance: warming up puts exactly `depth` batches, every run that gets also puts, and the
room for one batch more than `depth` lets the two run in either order. No area is ever empty or full when it matters.
"""

from typing import Any, Callable, List, NamedTuple, Sequence

from tensorflow_v1 import StagingArea, tf
from usage_error import check_same_number


class Stage(NamedTuple):
  """The staging areas of one split.

  Attributes:
    depth: batches that wait in each area between two runs.
    get: `get(tower)` builds the op that takes the tower's next batch, a flat list of tensors, where it is called.
    put_ops: put the next batch of each tower; run with every get, and `depth` times to warm up. They are not grouped: a
      group would have every device tell the host when it is done.
    clear_op: empties all areas, before their iterators start anew. Then warm up again.
    sizes: for each tower how many batches wait in its area, a scalar int32 tensor; to tell why a run does not go on.
  """
  depth: int
  get: Callable[[int], List[Any]]
  put_ops: List[Any]
  clear_op: Any
  sizes: List[Any]


def build_stage(batches: Sequence[Sequence[Any]], *, devices: Sequence[str], depth: int, name: str) -> Stage:
  """Builds an area per tower, each on its tower's device.

  Args:
    batches: for each tower a flat list of tensors, the batch to put.
    devices: for each tower its device.
    depth: batches that wait in each area between two runs, at least 1.
    name: of the split, for the graph.

  Raises:
    UsageError: there are more or fewer devices than batches.
  """
  check_same_number(len(batches), f'batches to stage for {name}', len(devices), 'devices',
                    fix='give a device for each tower.')
  areas, puts, clears, sizes = [], [], [], []
  for tower, (tensors, device) in enumerate(zip(batches, devices)):
    with tf.device(device), tf.name_scope('stage_%s_%d' % (name, tower)):
      area = StagingArea([tensor.dtype for tensor in tensors], [tensor.shape for tensor in tensors],
                         capacity=depth + 1)
      areas.append(area)
      puts.append(area.put(tensors))
      # On the area's device, where neither goes by itself: elsewhere they find another area, or none.
      clears.append(area.clear())
      sizes.append(area.size())

  def get(tower):
    taken = areas[tower].get()
    # An area of one tensor gives the tensor itself, on TensorFlow 2.x as on 1.14.
    return list(taken) if isinstance(taken, (list, tuple)) else [taken]

  return Stage(depth=depth, get=get, put_ops=puts, clear_op=tf.group(*clears, name='clear_%s' % name), sizes=sizes)
