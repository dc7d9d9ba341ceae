"""Average: a step's mean loss and gradients, over towers, micro-batches and workers.

  towers ──► sum ──► accumulate over micro-batches ──► divide by weights, where losses have any
         ──► all-reduce over replicas and workers ──► mean over the global batch

  worker 0   tower 0   gradients ─┐                                 ┌─► guard ─► apply
             tower 1   gradients ─┤                                 ├─► guard ─► apply
                                  ├─ all-reduce ─► mean over all ───┤
  worker 1   tower 0   gradients ─┤                                 ├─► guard ─► apply
             tower 1   gradients ─┘                                 └─► guard ─► apply

If the towers of a worker share variables, their gradients are summed already, and each worker takes
part once. Between workers the same all-reduce carries the losses, numbers of examples, steps and
votes, and of sparse gradients the rows that were touched (see `rows`). All workers get the same
bits, so each decides for itself, and all alike, whether to do the step, to stop and to save.

Gradients may cross in 16 bits (`wire`); numbers and indices never do. Then the numbers are summed
before, and each worker divides its gradients by the examples of all, so that no sum is larger than
its largest term.
"""

import dataclasses
import functools
from typing import Any, Iterator, NamedTuple, Sequence

from towers.base.garbage_collector import uncollected
from towers.placement.collectives import FUSION_BYTES, choose_collective, choose_wire, sum_packed
from towers.placement.counters import get_global_step
from towers.placement.host import HOST
from towers.placement.replicas import rounding_alike
from towers.placement.workers import ALONE, Workers, sum_over_workers
from towers.reduce.accumulate import accumulate_gradients
from towers.reduce.gradients import ReducedGradients, make_dense, scale_gradient, sum_towers
from towers.reduce.rows import plan_slots
from towers.reduce.weights import divide_by_weights
from towers.tensorflow_v1 import Tensor, Variable, tf
from towers.tower.tower import Tower

# What a worker can vote for between two steps.
VOTES = ('leave', 'save', 'stop')
# Steps are compared modulo this number, so that sums of their squares stay exact in float32.
_STEPS_APART = 13


class Votes(NamedTuple):
  """What the workers agree on in a step.

  `counts`, `[1 + votes]` float32 on the host, is whether all workers are at the same step, and for
  each of VOTES how many workers vote for it. `own`, a `[votes]` float32 variable, has this one's.
  """
  counts: Tensor
  own: Variable


@uncollected()
def average_gradients(towers: Sequence[Tower], *, workers: Workers = ALONE,
                      collective: str = 'auto', fusion_bytes: int = FUSION_BYTES,
                      wire: str = 'float32') -> ReducedGradients:
  """Returns the mean loss and gradients over the global batch; sparse gradients stay sparse.

  The towers are all of this worker; one collective sums gradients of `fusion_bytes`. Workers at
  different steps get a loss of NaN, so that a guarded step changes nothing.

  Raises:
    UsageError: a collective or a wire that these devices do not have, or gradients that none can
      sum.
  """
  wire_dtype = choose_wire(wire, num_workers=workers.num_workers)
  reduced = sum_towers(towers)
  if towers[0].global_batch.num_micro_batches > 1:
    reduced = accumulate_gradients(reduced)
  reduced = divide_by_weights(reduced, workers)
  if workers.num_workers == 1 and not reduced.replicas:
    return reduced
  devices = _list_devices(reduced)
  sum_all = functools.partial(sum_packed, devices=devices, pack_bytes=fusion_bytes,
                              kind=choose_collective(collective, devices))
  with tf.name_scope('all_reduce'):
    if workers.num_workers == 1:
      return _sum(reduced, workers, sum_all)[0]
    own, requests = _list_numbers(reduced)
    mean, total = _average(reduced, own, workers, sum_all, wire_dtype)
    return _read_numbers(mean, total, requests, workers)


def _list_devices(reduced):
  """Returns the towers' devices, or that of the variables that they share: the host for several."""
  if reduced.replicas:
    return [tower.device for tower in reduced.towers]
  devices = {variable.device or HOST for _, variable in reduced.gradients}
  return list(devices) if len(devices) == 1 else [HOST]


def _list_numbers(reduced):
  """Returns what a worker tells the others in a step, a float32 vector, and the variable of votes.

  These are the loss times the examples, the examples, the step, its square, votes and metrics.
  """
  with tf.device(HOST):
    count = tf.cast(reduced.num_examples, tf.float32)
    requests = tf.Variable(tf.zeros([len(VOTES)]), name='requests', trainable=False,
                           use_resource=True, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    step = tf.cast(get_global_step().read_value() % _STEPS_APART, tf.float32)
    numbers = tf.stack([tf.cast(reduced.loss, tf.float32) * count, count, step, tf.square(step)])
    metrics = [] if reduced.metrics is None else [reduced.metrics]
    return tf.concat([numbers, requests.read_value(), *metrics], 0), requests


def _average(reduced, own, workers, sum_all, wire):
  """Returns the mean, and the sum of the workers' numbers.

  One all-reduce brings both. Where gradients cross in the dtype `wire`, numbers go ahead.
  """
  # With equal shares the mean of the workers' means is right.
  is_even = isinstance(reduced.num_examples, int)
  if wire is None:
    weighed = reduced if is_even else _scale(reduced, own[1])
    summed, total = _sum(weighed, workers, sum_all, numbers=own)
    with tf.device(HOST):
      count = workers.num_workers if is_even else tf.maximum(total[1], 1.0)
      return _scale(summed, 1.0 / count), total
  with tf.device(HOST):
    total = sum_over_workers(own, workers)
    share = 1.0 / workers.num_workers if is_even else own[1] / tf.maximum(total[1], 1.0)
  return _sum(_scale(reduced, share), workers, sum_all, wire=wire)[0], total


def _scale(reduced, scale):
  return reduced.map_gradients(
      lambda gradient, _: scale_gradient(gradient, tf.cast(scale, gradient.dtype)))


def _sum(reduced, workers, sum_all, *, numbers=None, wire=None):
  """Returns `reduced` with the sums over all towers and workers, and the sum of `numbers`, if any.

  Between workers sparse gradients go as rows in slots: their values, which may be rounded, and
  their indices. Those without a static shape go alone; a single worker has them on each tower.
  """
  pairs, devices = [reduced.gradients, *reduced.replicas], _list_devices(reduced)
  is_alone = workers.num_workers == 1
  slots = [None] * len(pairs[0]) if is_alone else plan_slots(reduced.gradients, workers)
  stay = [is_alone and isinstance(gradient, tf.IndexedSlices) for gradient, _ in pairs[0]]
  shares, wires = [], []
  for tower, (of_tower, device) in enumerate(zip(pairs, devices)):
    with tf.device(device):
      # The first tower sends what a worker sends once.
      sent = [] if numbers is None else [(numbers if tower == 0 else tf.zeros_like(numbers), None)]
      for (gradient, variable), of_variable, stays in zip(of_tower, slots, stay):
        if of_variable is None and not stays:
          sent.append((make_dense(gradient, variable), wire))
        elif of_variable is not None and of_variable.is_known:
          values, indices = of_variable.part(of_variable.write(gradient))
          sent += [(values, wire), (indices, None)]
    shares.append([share for share, _ in sent])
    wires = [wire for _, wire in sent]
  totals, all_reduce = sum_all(shares, num_workers=workers.num_workers, wires=wires)

  with rounding_alike(True):
    # For each tensor that was sent its sums, one for each tower.
    received: Iterator[Any] = zip(*totals)
    total = None if numbers is None else next(received)[0]
    found = []
    for of_variable, stays, *before in zip(slots, stay, *pairs):
      if stays:
        found.append([gradient for gradient, _ in before])
      elif of_variable is None:
        found.append(next(received))
      else:
        gradient = before[0][0]
        with tf.device(devices[0]):
          rows = (tf.concat([next(received)[0], next(received)[0]], 1) if of_variable.is_known
                  else of_variable.sum(gradient))
          found.append([of_variable.read(rows, gradient)] * len(pairs))
  summed = [[(gradient, variable) for gradient, (_, variable) in zip(of_tower, before)]
            for of_tower, before in zip(zip(*found), pairs)]
  return dataclasses.replace(
      reduced, gradients=summed[0], replicas=summed[1:], row_slots=list(filter(None, slots)),
      all_reduce=all_reduce._replace(num_gradients=len(slots) - sum(stay),
                                     num_gathered=sum(stay))), total


def _read_numbers(mean, total, requests, workers):
  """Returns the mean with its loss, its number of examples and the votes."""
  with tf.device(HOST):
    loss, count, steps, squares = tf.unstack(total[:4])
    wishes = total[4:4 + len(VOTES)]
    metrics = None if mean.metrics is None else total[4 + len(VOTES):]
    # Only of equal numbers the mean square is the square of the mean.
    is_same = tf.equal(workers.num_workers * squares, tf.square(steps))
    loss = tf.where(is_same, loss / tf.maximum(count, 1.0), float('nan'))
    votes = Votes(tf.concat([[tf.cast(is_same, tf.float32)], wishes], 0), requests)
    num_examples = (mean.num_examples * workers.num_workers
                    if isinstance(mean.num_examples, int) else tf.cast(count, tf.int64))
  return dataclasses.replace(
      mean, loss=tf.cast(loss, mean.loss.dtype), metrics=metrics, begins_with_loss=False,
      votes=votes, num_examples=num_examples)
