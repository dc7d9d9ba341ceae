"""Staging areas: batches wait on their tower's device while the step before them computes.

One `StagingArea` per tower and per split, so that no batch is taken for one of the other split.

            step 7          step 8
  put   ──► batch 8         batch 9    a run of step s takes batch s out and puts batch s + depth in
  area      [7]             [8]        depth 1: one batch waits between two steps
  get   ──► batch 7         batch 8

A `get` on an empty area and a `put` on a full one block a thread for good: neither a run's time
limit nor Ctrl-C ends them. So the areas stay in balance: warming up puts exactly `depth` batches,
every run that gets also puts, and the room for one batch more than `depth` lets the two run in
either order. A run that finds an area out of balance fails at once, before it could block.
"""

from typing import Any, Callable, List, NamedTuple, Sequence

from towers.base.usage_error import check_same_number
from towers.placement.host import HOST, is_gpu
from towers.tensorflow_v1 import StagingArea, tf


class Stage(NamedTuple):
  """The staging areas of one split.

  Attributes:
    depth: batches that wait in each area between two runs.
    get: `get(tower)` builds the op that takes the tower's next batch, a flat list of tensors, where
      it is called, once for each tower.
    put_ops: put the next batch of each tower; run with every get. They are not grouped, since in a
      group every device would report to the host.
    fill_ops: put the next batch of each tower to warm up; run `depth` times after `clear_op`.
    clear_op: empties all areas, before their iterators start anew. Then warm up again.
  """
  depth: int
  get: Callable[[int], List[Any]]
  put_ops: List[Any]
  fill_ops: List[Any]
  clear_op: Any


def build_stage(batches: Sequence[Sequence[Any]], *, devices: Sequence[str], depth: int,
                name: str) -> Stage:
  """Builds an area of a `depth` of at least 1 for each tower, on its device.

  The batches to put are flat lists of tensors, and the name is that of the split. More or fewer
  devices than batches are a UsageError.
  """
  check_same_number(len(batches), f'batches to stage for {name}', len(devices), 'devices',
                    fix='give a device for each tower.')
  areas = []
  for tower, (tensors, device) in enumerate(zip(batches, devices)):
    with tf.device(device), tf.name_scope(f'stage_{name}_{tower}'):
      areas.append(_Area(tensors, device, capacity=depth + 1))
  puts = [area.put_op for area in areas]

  def get(tower):
    size = areas[tower].size()
    # A branch may be a function, and no op outside can wait for one inside: the put may be first.
    is_ordered = size.graph is puts[tower].graph
    message = (
        f'The staging area of tower {tower} (split {name}) must hold {depth} batches between two '
        'runs. An earlier run took a batch and put none, or put one and took none. Fetch the mean '
        'loss, the train op or the sums of a validation, which put the next batch, or feed.put_ops '
        'beside what a tower computes. Now start the feed again, with feed.start(). It holds')
    is_balanced = tf.equal(size, depth) if is_ordered else size >= depth
    check = tf.raw_ops.Assert(condition=is_balanced, data=[message, size])
    if is_ordered:
      # The put waits as well, so that an area out of balance stays so, and every later run fails.
      puts[tower]._add_control_input(check)
    with tf.control_dependencies([check]):
      return areas[tower].get()

  return Stage(depth=depth, get=get, put_ops=puts, fill_ops=[area.fill_op for area in areas],
               clear_op=tf.group(*[area.clear_op for area in areas], name=f'clear_{name}'))


class _Area:
  """A StagingArea on a tower's device and, beside a GPU, one on the host for the host's numbers.

  How many examples of a batch count is an int32 scalar, with which GPUs let the host compute: from
  a GPU's memory it would come back in every step.
  """

  def __init__(self, tensors, device, capacity):
    self._on_host = [is_gpu(device) and tensor.shape.ndims == 0 for tensor in tensors]
    self._areas = []
    for on_host, where in ((False, device), (True, HOST)):
      mine = self._pick(tensors, on_host)
      if mine:
        with tf.device(where):
          area = StagingArea([tensor.dtype for tensor in mine], [tensor.shape for tensor in mine],
                             capacity=capacity)
        self._areas.append((area, on_host, where))
    self.put_op, self.fill_op = self._put(tensors), self._put(tensors)
    # On the area's device, since a clear does not follow it: elsewhere it finds another or none.
    clears = self._of_each(lambda area, _: area.clear())
    self.clear_op = clears[0] if len(clears) == 1 else tf.group(*clears)

  def _pick(self, values, on_host):
    return [value for value, is_there in zip(values, self._on_host) if is_there == on_host]

  def _of_each(self, build):
    results = []
    for area, on_host, where in self._areas:
      with tf.device(where):
        results.append(build(area, on_host))
    return results

  def _put(self, tensors):
    """Returns the op that puts a batch; both areas take part, and stay in balance together."""
    put_op, *others = self._of_each(lambda area, on_host: area.put(self._pick(tensors, on_host)))
    for other in others:
      put_op._add_control_input(other)
    return put_op

  def size(self):
    """Returns how many batches wait."""
    return self._areas[0][0].size()

  def get(self):
    """Returns the next batch as a flat list."""
    # An area of one tensor gives the tensor itself, on TensorFlow 2.x as on 1.14.
    taken = [list(values) if isinstance(values, (list, tuple)) else [values]
             for values in self._of_each(lambda area, _: area.get())]
    return [taken[on_host].pop(0) for on_host in self._on_host]


def run_beside(value: Any, op: Any) -> Any:
  """Returns `value`, as early as before; a run that needs the result also runs `op`.

  A merge passes on its input that is not dead, as soon as it is there. The other input is always
  dead and waits for the op, which makes the op part of the run. (Were both alive, 2.x would write
  one of them into memory that is in use.)
  """
  # Not a constant, which Grappler would remove with all that depends on it.
  with tf.device(HOST if is_gpu(value.device) else value.device):
    never = tf.placeholder_with_default(False, [], 'never')
  _, dead = tf.raw_ops.Switch(data=value, pred=never)
  with tf.control_dependencies([op]):
    late = tf.identity(dead)
  return tf.raw_ops.Merge(inputs=[value, late])[0]
