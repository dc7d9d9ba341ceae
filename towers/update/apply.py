"""Apply: one optimizer step with the averaged gradients."""

from typing import Any

from tensorflow_v1 import tf
from towers.base.collector import uncollected
from towers.graph.writes import check_once, check_replicated, check_updates, find_step_writes
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.host import HOST
from towers.placement.replicas import follow_writes, rounding_alike, slot_creator
from towers.reduce.gradients import ReducedGradients
from towers.tower.precision import build_growth
from towers.update.guard import build_is_finite, run_guarded
from towers.update.slots import make_slots


@uncollected()
def build_train_op(reduced: ReducedGradients, *, optimizer: Any, weight_decay: float = 0.0,
                   guard: bool = True) -> Any:
  """Returns what to run to update all weights once, and both counters.

  Args:
    reduced: the gradients. The UPDATE_OPS of the first tower that they came from run with the step.
    optimizer: a `tf.train.Optimizer`.
    weight_decay: adds `weight_decay * weight` to the gradient of every variable of two or more
      dimensions, once, whatever the number of towers: weights decay, biases and norms do not.
    guard: do nothing in a step whose loss or gradients are not all finite: every variable stays
      what it was, whatever changes it. What is returned is then a scalar bool, whether the step was
      done; else an op.

  Raises:
    UsageError: the model changes a variable where every tower, micro-batch or worker would do it,
      see `writes`.
  """
  # A tower may read a variable for more than its own gradient. Its forward pass is over when its
  # loss is there, which the guard waits for by itself.
  before = [] if guard else [reduced.loss]
  update_ops = list(reduced.towers[0].update_ops)
  num_ops = len(tf.get_default_graph().get_operations())
  with tf.name_scope('apply'):
    is_finite = build_is_finite(reduced) if guard else None
    writes = _find_writes(reduced, update_ops, is_finite)
    make_slots(optimizer, [variable for _, variable in reduced.gradients])
    with tf.device(HOST):
      # Not behind the guard, whose answer every op there waits for, constants too, and the counters
      # for these.
      one, seen = tf.constant(1, tf.int64), reduced.num_examples
      seen = tf.constant(seen, tf.int64) if isinstance(seen, int) else tf.cast(seen, tf.int64)

    def update():
      decayed = reduced.map_gradients(
          lambda gradient, variable: _decay(gradient, variable, weight_decay))
      with tf.control_dependencies(before + update_ops), tf.variable_creator_scope(
          slot_creator), rounding_alike(reduced.all_reduce is not None):
        applied = optimizer.apply_gradients(sum(decayed.replicas, decayed.gradients))
      # The learning rate may read these counters, and what is not ordered runs in any order.
      with tf.control_dependencies([applied]), tf.device(HOST):
        ends = [get_global_step().assign_add(one, read_value=False),
                get_examples_seen().assign_add(seen, read_value=False)]
        if reduced.loss_scale is not None:
          ends.append(build_growth(reduced.loss_scale))
      return ends

    if is_finite is not None:
      done = run_guarded(is_finite, update, writes)
    else:
      for write in writes.late:
        write.wait_for(reduced.loss.op)
      done = tf.group(*update(), name='step')
    if reduced.replicas:
      step_ops = set(tf.get_default_graph().get_operations()[num_ops:])
      follow_writes(step_ops - {variable.initializer for variable in tf.global_variables()})
    if reduced.clear is None:
      return done
    # Nothing may be cleared before it has been read; and it is cleared after a step that was not
    # done as well.
    with tf.control_dependencies([done, reduced.loss]), tf.control_dependencies([reduced.clear()]):
      return tf.identity(done) if guard else tf.no_op()


def _find_writes(reduced, update_ops, is_finite):
  """Returns what the model writes in a step; refuses what would not be what one tower writes."""
  check_updates(update_ops)
  of_towers = [value for tower in reduced.towers for value in [tower.loss] + tower.gradients]
  # What every micro-batch runs cannot wait for the last one.
  ends = [reduced.loss if is_finite is None else is_finite, reduced.add_op]
  writes = find_step_writes(of_towers, update_ops, ends)
  check_once(writes, num_towers=len(reduced.towers), accumulates=reduced.add_op is not None)
  if reduced.all_reduce is not None:
    check_replicated(writes)
  return writes


def _decay(gradient, variable, weight_decay):
  if not weight_decay or variable.shape.ndims < 2:
    return gradient
  return tf.convert_to_tensor(gradient) + weight_decay * variable.read_value()
