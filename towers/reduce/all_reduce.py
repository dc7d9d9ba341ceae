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

Gradients may cross between workers in 16 bits (`wire`); numbers and indices never do. Then the
numbers are summed before, and each worker divides its gradients by the examples of all, so that no
sum is larger than its largest term.
"""

import itertools
from typing import List, NamedTuple, Optional, Tuple

from tensorflow_v1 import DType, Gradient, Tensor, Variable, tf
from towers.placement.collectives import (
    FUSION_BYTES,
    can_gather,
    choose_collective,
    choose_wire,
    sum_fused,
)
from towers.placement.counters import get_global_step
from towers.placement.host import HOST
from towers.placement.replicas import rounding_alike
from towers.placement.workers import ALONE, Workers, sum_over_workers
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


class _Part(NamedTuple):
  """What a tower sends of a gradient in one tensor.

  Attributes:
    value: the tensor.
    wire: its dtype between workers, or None for its own.
    is_gathered: whether those of all workers follow one another; else they are summed.
  """
  value: Tensor
  wire: Optional[DType] = None
  is_gathered: bool = False


def all_reduce_gradients(reduced: ReducedGradients, *, workers: Workers = ALONE,
                         collective: str = 'auto',
                         fusion_bytes: int = FUSION_BYTES,
                         wire: str = 'float32') -> ReducedGradients:
  """Returns the mean over the examples of all towers of all workers.

  One worker whose towers share variables has it already. Workers at different steps get a loss of
  NaN, so that a guarded step changes nothing.

  Args:
    reduced: of this worker, see `gradients`.
    workers: of which this is one.
    collective: 'ring', 'nccl' or 'auto', which is nccl where all gradients are on GPUs.
    fusion_bytes: of gradients that one collective sums.
    wire: in what gradients cross between workers: 'float32', as they are; 'float16' or 'bfloat16'.

  Raises:
    UsageError: a collective or a wire that the devices do not have, or gradients that none can sum.
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
    return _average_workers(reduced, workers, collective, fusion_bytes, choose_wire(
        wire, num_workers=workers.num_workers, collective=collective))


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


def _average_workers(reduced, workers, collective, fusion_bytes, wire):
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
    # What a share is multiplied by before it is sent.
    weight = None if is_even else own
    if wire is not None:
      tail = sum_over_workers(tail, workers)
      weight = 1.0 / workers.num_workers if is_even else own / tf.maximum(tail[1], 1.0)

  slots = plan_slots(reduced.gradients, workers,
                     gathers=can_gather(workers.num_workers, devices[0]))
  parts: List[List[List[_Part]]] = []
  shares: List[List[Tensor]] = []
  for tower, (of_tower, device) in enumerate(zip(pairs, devices)):
    with tf.device(device):
      parts.append([_list_parts(_weigh(gradient, weight), variable, of_variable, wire)
                    for (gradient, variable), of_variable in zip(of_tower, slots)])
      sent = [part.value for part in itertools.chain(*parts[-1])]
      if wire is None:
        # The first tower sends what a worker sends once.
        sent.insert(0, tail if tower == 0 else tf.zeros_like(tail))
      shares.append(sent)
  listed = [] if wire is not None else [_Part(tail)]
  listed += itertools.chain(*parts[0])
  totals, all_reduce = sum_fused(shares, devices=devices,
                                 kind=choose_collective(collective, devices),
                                 fusion_bytes=fusion_bytes, num_workers=workers.num_workers,
                                 rank=workers.rank, wires=[part.wire for part in listed],
                                 gathered=[index for index, part in enumerate(listed)
                                           if part.is_gathered])

  with tf.device(HOST):
    loss, count, steps, squares, leave, save = tf.unstack(totals[0][0] if wire is None else tail)
    # Only of equal numbers the mean square is the square of the mean.
    is_same = tf.equal(workers.num_workers * squares, tf.square(steps))
    loss = tf.cast(tf.where(is_same, loss / tf.maximum(count, 1.0), float('nan')),
                   reduced.loss.dtype)
    votes = Votes(tf.stack([tf.cast(is_same, tf.float32), leave, save]), requests)
    # What a sum is multiplied by.
    scale = None
    if wire is None:
      scale = 1.0 / workers.num_workers if is_even else 1.0 / tf.maximum(count, 1.0)
  with rounding_alike(True):
    received = [_join_parts(found if wire else found[1:], of_tower, device)
                for found, of_tower, device in zip(totals, parts, devices)]
    rows = _read_rows(reduced.gradients, received[0], slots, weight, scale, devices[0])
    gradients, *replicas = [_find_means(of_tower, found, rows, scale, device)
                            for of_tower, found, device in zip(pairs, received, devices)]
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


def _list_parts(gradient, variable, slots, wire) -> List[_Part]:
  """Returns what a tower sends of a gradient: all of it, or its rows in `slots`.

  Nothing if that has no static shape: then `slots` sends it. The rows of replicas have none, since
  their first tower has merged those of all towers.
  """
  if slots is None:
    gradient = tf.convert_to_tensor(gradient)
    gradient.set_shape(variable.shape)
    return [_Part(gradient, wire)]
  if not isinstance(slots.most, int):
    return []
  sent = slots.write(gradient)
  if wire is None:
    return [_Part(sent, None, slots.is_gathered)]
  values, indices = slots.part(sent)
  return [_Part(values, wire, slots.is_gathered), _Part(indices, None, slots.is_gathered)]


def _join_parts(totals, parts, device) -> List[Optional[Tensor]]:
  """Returns for each gradient the sum of what was sent, with its parts joined again."""
  totals, joined = iter(totals), []
  with tf.device(device):
    for of_gradient in parts:
      found = [next(totals) for _ in of_gradient]
      joined.append(tf.concat(found, 1) if len(found) > 1 else found[0] if found else None)
  return joined


def _weigh(gradient, weight):
  """Returns a gradient times a scalar, as it is if that is None."""
  return gradient if weight is None else scale_gradient(gradient, tf.cast(weight, gradient.dtype))


def _read_rows(pairs, received, slots, weight, scale, device) -> List[Optional[tf.IndexedSlices]]:
  """Returns the means of the sparse gradients, the same for all towers, and None for the others.
  """
  rows: List[Optional[tf.IndexedSlices]] = []
  with tf.device(device):
    for (gradient, _), total, of_variable in zip(pairs, received, slots):
      if of_variable is None:
        rows.append(None)
        continue
      if total is None:
        total = of_variable.sum(_weigh(gradient, weight))
      rows.append(of_variable.read(total, gradient, 1.0 if scale is None else scale))
  return rows


def _find_means(pairs, received, rows, scale, device) -> List[Tuple[Gradient, Variable]]:
  """Returns a tower's mean gradients and variables: `rows`, or from sums over workers."""
  with tf.device(device):
    return [(_weigh(total, scale) if of_variable is None else of_variable, variable)
            for (_, variable), total, of_variable in zip(pairs, received, rows)]
