"""AllReduce: what towers that have replicas of the variables, and workers, must tell each other in
a step.

  worker 0   tower 0   gradients ─┐                                 ┌─► guard ─► apply
             tower 1   gradients ─┤                                 ├─► guard ─► apply
                                  ├─ all-reduce ─► mean over all ───┤
  worker 1   tower 0   gradients ─┤                                 ├─► guard ─► apply
             tower 1   gradients ─┘                                 └─► guard ─► apply

Where the towers of a worker share variables, their gradients are summed already, and each worker
takes part once. With several workers the same all-reduce carries loss, number of examples, the step
that a worker is at, and what it asks for. Every worker finds the same bits in it: whether the step
is done, whether to stop early, when to save, all is decided by each of them without asking again.
"""

from typing import Any, List, NamedTuple, Tuple

from tensorflow_v1 import tf
from towers.placement.collectives import FUSION_BYTES, choose_collective, sum_fused
from towers.placement.counters import get_global_step
from towers.placement.host import HOST
from towers.placement.replicas import rounding_alike
from towers.placement.workers import ALONE, Workers
from towers.reduce.gradients import ReducedGradients

# What a worker may ask all others for, between two steps.
VOTES = ('leave', 'save')
# Steps are compared modulo this number, so that the squares of many stay exact in float32.
_STEPS_APART = 13


class Votes(NamedTuple):
  """What the workers agree on in a step.

  Attributes:
    told: `[3]` float32 on the host, to be fetched with the step: whether all workers were at the
      same step, and for each of VOTES how many asked for it.
    requests: `[2]` float32 variable: what this worker asks for.
  """
  told: Any
  requests: Any


def all_reduce_gradients(reduced: ReducedGradients, *, workers: Workers = ALONE,
                         collective: str = 'auto',
                         fusion_bytes: int = FUSION_BYTES) -> ReducedGradients:
  """Returns the mean over the examples of all towers of all workers; what it was given where
  nothing is to exchange.

  Workers that are not at the same step find a loss that is no number, so that a guarded step
  changes nothing.

  Args:
    reduced: of this worker, see `gradients`.
    workers: of which this is one.
    collective: 'ring', 'nccl' or 'auto', which is nccl where all gradients are on GPUs.
    fusion_bytes: of gradients that are summed together.

  Raises:
    UsageError: a collective that the devices do not have, or gradients that none can sum.
  """
  has_replicas = bool(reduced.replicas)
  if workers.num_workers == 1 and not has_replicas:
    return reduced
  with tf.name_scope('all_reduce'):
    if workers.num_workers == 1:
      # Sparse gradients have been gathered on every tower already.
      dense = [place for place, (gradient, _) in enumerate(reduced.gradients)
               if not isinstance(gradient, tf.IndexedSlices)]
      return _sum_dense(reduced, dense, collective, fusion_bytes)
    return _average_workers(reduced, workers, collective, fusion_bytes)


def _sum_dense(reduced, dense, collective, fusion_bytes):
  """Returns the same with the dense gradients, those at the places `dense`, summed for every tower.
  """
  devices = [tower.device for tower in reduced.towers]
  pairs = [reduced.gradients] + list(reduced.replicas)
  totals, all_reduce = sum_fused([[of_tower[place][0] for place in dense] for of_tower in pairs],
                                 devices=devices, kind=choose_collective(collective, devices),
                                 fusion_bytes=fusion_bytes)
  gradients, *replicas = [list(of_tower) for of_tower in pairs]
  for of_tower, found in zip([gradients] + replicas, totals):
    for place, total in zip(dense, found):
      of_tower[place] = (total, of_tower[place][1])
  return reduced._replace(gradients=gradients, replicas=replicas,
                          all_reduce=all_reduce._replace(num_gathered=len(gradients) - len(dense)))


def _average_workers(reduced, workers, collective, fusion_bytes):
  """Returns the mean over the examples of all workers, and on what they agree."""
  pairs = [reduced.gradients] + list(reduced.replicas)
  devices = [tower.device for tower in reduced.towers
            ] if reduced.replicas else [_find_device(reduced)]
  # Where workers have equal shares, the mean of their means is right.
  is_even = isinstance(reduced.num_examples, int)
  with tf.device(HOST):
    own = tf.cast(reduced.num_examples, tf.float32)
    requests = tf.Variable(tf.zeros([len(VOTES)]), name='requests', trainable=False,
                           use_resource=True, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    step = tf.cast(get_global_step().read_value() % _STEPS_APART, tf.float32)
    tail = tf.concat([
        tf.stack([tf.cast(reduced.loss, tf.float32) * own, own, step,
                  tf.square(step)]),
        requests.read_value()
    ], 0)
  shares: List[List[Any]] = []
  for place, (of_tower, device) in enumerate(zip(pairs, devices)):
    with tf.device(device):
      # What a worker tells as one, its first tower tells.
      sent = [tail if place == 0 else tf.zeros_like(tail)]
      for gradient, variable in of_tower:
        tensors = _take_apart(gradient, variable, None if is_even else own)
        is_told = place > 0 and isinstance(gradient, tf.IndexedSlices)
        sent += [tf.zeros_like(tensor) for tensor in tensors] if is_told else tensors
      shares.append(sent)
  totals, all_reduce = sum_fused(shares, devices=devices,
                                 kind=choose_collective(collective, devices),
                                 fusion_bytes=fusion_bytes, num_workers=workers.num_workers)
  with tf.device(HOST):
    loss, count, steps, squares, leave, save = tf.unstack(totals[0][0])
    # Equal numbers, and no others, have a mean square that is the square of their mean.
    is_same = tf.equal(workers.num_workers * squares, tf.square(steps))
    loss = tf.cast(tf.where(is_same, loss / tf.maximum(count, 1.0), float('nan')),
                   reduced.loss.dtype)
    votes = Votes(tf.stack([tf.cast(is_same, tf.float32), leave, save]), requests)
    scale = 1.0 / workers.num_workers if is_even else 1.0 / tf.maximum(count, 1.0)
  with rounding_alike(True):
    gradients, *replicas = [_put_together(of_tower, found[1:], scale, device)
                            for of_tower, found, device in zip(pairs, totals, devices)]
  return reduced._replace(
      loss=loss, gradients=gradients, replicas=replicas, votes=votes,
      all_reduce=all_reduce._replace(num_gradients=len(gradients)),
      num_examples=reduced.num_examples *
      workers.num_workers if is_even else tf.cast(count, tf.int64))


def _find_device(reduced):
  """Returns the device that all shared variables stand on, or the host."""
  devices = {variable.device for _, variable in reduced.gradients}
  return devices.pop() if len(devices) == 1 else HOST


def _take_apart(gradient, variable, weight) -> List[Any]:
  """Returns the dense tensors that carry a gradient to other workers, times `weight`."""
  tensors = [tf.convert_to_tensor(gradient)
            ] if not isinstance(gradient, tf.IndexedSlices) else _repeat_rows(
                gradient,
                variable.shape.as_list()[0])
  tensors[0].set_shape(variable.shape)
  if weight is not None:
    tensors[0] = tensors[0] * tf.cast(weight, tensors[0].dtype)
  return tensors


def _repeat_rows(slices, num_rows):
  """Returns a sparse gradient as a dense one, and for each row whether it was touched."""
  touched = tf.unsorted_segment_sum(tf.ones_like(slices.indices, tf.float32), slices.indices,
                                    num_rows)
  touched.set_shape([num_rows])
  return [tf.unsorted_segment_sum(slices.values, slices.indices, num_rows), touched]


def _put_together(pairs, received, scale, device) -> List[Tuple[Any, Any]]:
  """Returns gradients with their variables from the sums over all workers; sparse ones of all rows
  that any touched.
  """
  received = list(received)
  gradients = []
  with tf.device(device):
    for gradient, variable in pairs:
      total = received.pop(0)
      if isinstance(gradient, tf.IndexedSlices):
        indices = tf.cast(tf.reshape(tf.where(received.pop(0) > 0), [-1]), gradient.indices.dtype)
        gradients.append((tf.IndexedSlices(
            tf.gather(total, indices) * tf.cast(scale, total.dtype), indices,
            gradient.dense_shape), variable))
      else:
        gradients.append((total * tf.cast(scale, total.dtype), variable))
  return gradients
