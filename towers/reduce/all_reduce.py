"""All-reduce: the mean over towers that have replicas of the variables, and over workers.

  worker 0   tower 0   gradients ─┐                                 ┌─► guard ─► apply
             tower 1   gradients ─┤                                 ├─► guard ─► apply
                                  ├─ all-reduce ─► mean over all ───┤
  worker 1   tower 0   gradients ─┤                                 ├─► guard ─► apply
             tower 1   gradients ─┘                                 └─► guard ─► apply

If the towers of a worker share variables, their gradients are summed already, and each worker takes
part once. With several workers the same all-reduce carries each worker's loss, number of examples,
step and votes, and of sparse gradients the rows that were touched (see `rows`). All workers get
the same bits, so that each decides for itself, and all alike, whether to do the step, when to stop
and when to save.
"""

from typing import List, NamedTuple, Tuple

from tensorflow_v1 import Gradient, Tensor, Variable, tf
from towers.placement.collectives import FUSION_BYTES, choose_collective, sum_fused
from towers.placement.counters import get_global_step
from towers.placement.host import HOST
from towers.placement.replicas import rounding_alike
from towers.placement.workers import ALONE, Workers
from towers.reduce.gradients import ReducedGradients, scale_gradient
from towers.reduce.rows import plan_slots

# What a worker can vote for between two steps.
VOTES = ('leave', 'save')
# Steps are compared modulo this number, so that sums of their squares stay exact in float32.
_STEPS_APART = 13


class Votes(NamedTuple):
  """What the workers agree on in a step.

  Attributes:
    counts: `[3]` float32 on the host, to fetch with the step: whether all workers are at the same
      step, and for each of VOTES how many workers vote for it.
    own: `[2]` float32 variable: this worker's votes.
  """
  counts: Tensor
  own: Variable


def all_reduce_gradients(reduced: ReducedGradients, *, workers: Workers = ALONE,
                         collective: str = 'auto',
                         fusion_bytes: int = FUSION_BYTES) -> ReducedGradients:
  """Returns the mean over the examples of all towers of all workers.

  One worker whose towers share variables has it already. Workers at different steps get a loss of
  NaN, so that a guarded step changes nothing.

  Args:
    reduced: of this worker, see `gradients`.
    workers: of which this is one.
    collective: 'ring', 'nccl' or 'auto', which is nccl where all gradients are on GPUs.
    fusion_bytes: of gradients that one collective sums.

  Raises:
    UsageError: a collective that the devices do not have, or gradients that none can sum.
  """
  has_replicas = bool(reduced.replicas)
  if workers.num_workers == 1 and not has_replicas:
    return reduced
  with tf.name_scope('all_reduce'):
    if workers.num_workers == 1:
      # The sparse gradients are on every tower already.
      dense = [index for index, (gradient, _) in enumerate(reduced.gradients)
               if not isinstance(gradient, tf.IndexedSlices)]
      return _sum_dense(reduced, dense, collective, fusion_bytes)
    return _average_workers(reduced, workers, collective, fusion_bytes)


def _sum_dense(reduced, dense, collective, fusion_bytes):
  """Returns `reduced` with its dense gradients, those of the indices `dense`, summed over towers.
  """
  devices = [tower.device for tower in reduced.towers]
  pairs = [reduced.gradients] + list(reduced.replicas)
  totals, all_reduce = sum_fused([[of_tower[index][0] for index in dense] for of_tower in pairs],
                                 devices=devices, kind=choose_collective(collective, devices),
                                 fusion_bytes=fusion_bytes)
  gradients, *replicas = [list(of_tower) for of_tower in pairs]
  for of_tower, found in zip([gradients] + replicas, totals):
    for index, total in zip(dense, found):
      of_tower[index] = (total, of_tower[index][1])
  return reduced._replace(gradients=gradients, replicas=replicas,
                          all_reduce=all_reduce._replace(num_gathered=len(gradients) - len(dense)))


def _average_workers(reduced, workers, collective, fusion_bytes):
  """Returns the mean over the examples of all workers, with their votes."""
  pairs = [reduced.gradients] + list(reduced.replicas)
  devices = [_find_device(reduced)]
  if reduced.replicas:
    devices = [tower.device for tower in reduced.towers]
  # With equal shares the mean of the workers' means is right.
  is_even = isinstance(reduced.num_examples, int)

  with tf.device(HOST):
    own = tf.cast(reduced.num_examples, tf.float32)
    requests = tf.Variable(tf.zeros([len(VOTES)]), name='requests', trainable=False,
                           use_resource=True, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    step = tf.cast(get_global_step().read_value() % _STEPS_APART, tf.float32)
    numbers = tf.stack([tf.cast(reduced.loss, tf.float32) * own, own, step, tf.square(step)])
    tail = tf.concat([numbers, requests.read_value()], 0)

  slots = plan_slots(reduced.gradients, workers)
  shares: List[List[Tensor]] = []
  for tower, (of_tower, device) in enumerate(zip(pairs, devices)):
    with tf.device(device):
      # The first tower sends what a worker sends once.
      sent = [tail if tower == 0 else tf.zeros_like(tail)]
      for (gradient, variable), of_variable in zip(of_tower, slots):
        if _is_fused(of_variable):
          share = _weigh(gradient, None if is_even else own)
          sent.append(_make_tensor(share, variable, of_variable))
      shares.append(sent)
  totals, all_reduce = sum_fused(shares, devices=devices,
                                 kind=choose_collective(collective, devices),
                                 fusion_bytes=fusion_bytes, num_workers=workers.num_workers)

  with tf.device(HOST):
    loss, count, steps, squares, leave, save = tf.unstack(totals[0][0])
    # Only of equal numbers the mean square is the square of the mean.
    is_same = tf.equal(workers.num_workers * squares, tf.square(steps))
    loss = tf.cast(tf.where(is_same, loss / tf.maximum(count, 1.0), float('nan')),
                   reduced.loss.dtype)
    votes = Votes(tf.stack([tf.cast(is_same, tf.float32), leave, save]), requests)
    scale = 1.0 / workers.num_workers if is_even else 1.0 / tf.maximum(count, 1.0)
  with rounding_alike(True):
    weight = None if is_even else own
    rows = _read_rows(reduced.gradients, totals[0][1:], slots, weight, scale, devices[0])
    gradients, *replicas = [_find_means(of_tower, found[1:], slots, rows, scale, device)
                            for of_tower, found, device in zip(pairs, totals, devices)]
  if is_even:
    num_examples = reduced.num_examples * workers.num_workers
  else:
    num_examples = tf.cast(count, tf.int64)
  return reduced._replace(
      loss=loss, gradients=gradients, replicas=replicas, votes=votes, num_examples=num_examples,
      all_reduce=all_reduce._replace(num_gradients=len(gradients)),
      row_slots=[of_variable for of_variable in slots if of_variable is not None])


def _find_device(reduced):
  """Returns the device of all shared variables, or the host if they have several."""
  devices = {variable.device for _, variable in reduced.gradients}
  return devices.pop() if len(devices) == 1 else HOST


def _make_tensor(gradient, variable, slots) -> Tensor:
  """Returns what a tower sends of a gradient: dense, or its rows in `slots`."""
  if slots is None:
    gradient = tf.convert_to_tensor(gradient)
    gradient.set_shape(variable.shape)
    return gradient
  return slots.write(gradient)


def _weigh(gradient, weight):
  """Returns a gradient times the number of examples, if the workers' numbers may differ."""
  return gradient if weight is None else scale_gradient(gradient, tf.cast(weight, gradient.dtype))


def _is_fused(slots):
  """Returns whether all that is sent of a gradient has a static shape.

  The rows of replicas have none: their first tower has merged those of all towers.
  """
  return slots is None or isinstance(slots.most, int)


def _read_rows(pairs, received, slots, weight, scale, device) -> List[tf.IndexedSlices]:
  """Returns the means of the sparse gradients, the same for all towers."""
  received, rows = iter(received), []
  with tf.device(device):
    for (gradient, _), of_variable in zip(pairs, slots):
      if _is_fused(of_variable):
        total = next(received)
      else:
        total = of_variable.sum(_weigh(gradient, weight))
      if of_variable is not None:
        rows.append(of_variable.read(total, gradient, scale))
  return rows


def _find_means(pairs, received, slots, rows, scale, device) -> List[Tuple[Gradient, Variable]]:
  """Returns a tower's mean gradients and variables: `rows`, or from sums over workers."""
  received, rows, means = iter(received), iter(rows), []
  with tf.device(device):
    for (_, variable), of_variable in zip(pairs, slots):
      if of_variable is None:
        total = next(received)
        means.append((total * tf.cast(scale, total.dtype), variable))
        continue
      if _is_fused(of_variable):
        next(received)
      means.append((next(rows), variable))
  return means
