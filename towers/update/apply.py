"""Apply: one optimizer step with the averaged gradients."""

import contextlib
from typing import Any, ContextManager, Dict, List, Optional, Sequence, Union

from towers.base.garbage_collector import uncollected
from towers.base.usage_error import UsageError
from towers.graph.walk import find_dependents, find_needed, list_ops
from towers.graph.writes import (
  StepWrites,
  check_held,
  check_once,
  check_replicated,
  check_updates,
  find_step_writes,
)
from towers.placement.counters import get_examples_seen, get_global_step
from towers.placement.host import HOST
from towers.placement.replicas import follow_writes, rounding_alike
from towers.reduce.gradients import ReducedGradients
from towers.reduce.rows import has_each_once, merge_rows
from towers.tensorflow_v1 import Optimizer, Tensor, replaced, tf
from towers.tower.precision import build_growth
from towers.update.device_gate import DeviceGate, gates_on_device
from towers.update.groups import Group
from towers.update.moving_averages import Averages
from towers.update.nan_guard import build_is_finite, run_if
from towers.update.noise import tie_noise
from towers.update.slots import SlotCreator, make_slots, noting_made


@uncollected()
def build_train_op(reduced: ReducedGradients, *, optimizer: Union[Optimizer, Sequence[Group]],
                   weight_decay: float = 0.0, is_compiled: bool = False,
                   averages: Optional[Averages] = None, seed: int = 0) -> Tensor:
  """Returns what to run to update all weights, and both counters, once: whether it did, a bool.

  A step whose loss or gradients are not all finite is skipped, so that no variable changes.

  Args:
    reduced: the gradients. The UPDATE_OPS of their first tower run with the step.
    weight_decay: adds `weight_decay * weight` to the gradient of every variable of two or more
      dimensions, once: weights decay, biases and norms do not.
    is_compiled: whether XLA compiles on the towers' devices.
    averages: of the weights, which the step moves too.
    seed: of what the update draws.

  Raises:
    UsageError: the model changes a variable in a way that every tower, micro-batch or worker would
      repeat, see `writes`.
  """
  num_ops = len(tf.get_default_graph().get_operations())
  with tf.name_scope('apply'):
    done = _build_step(reduced, _list_groups(optimizer, reduced), weight_decay, is_compiled,
                       averages)
    step_ops = set(tf.get_default_graph().get_operations()[num_ops:])
    tie_noise(done, step_ops, [tower.scope for tower in reduced.towers], seed)
    if reduced.replicas:
      follow_writes(step_ops - {variable.initializer for variable in tf.global_variables()})
    if reduced.clear is None:
      return done
    # The sums are cleared after they have been read, and after a skipped step too.
    with tf.control_dependencies([done, reduced.loss]), tf.control_dependencies([reduced.clear()]):
      return tf.identity(done)


def _list_groups(optimizer, reduced):
  """Returns (group, the indices of its gradients) of each group that has gradients."""
  names = [variable.op.name for _, variable in reduced.gradients]
  groups = [Group(optimizer, set(names))] if isinstance(optimizer, Optimizer) else optimizer
  by_group = [(group, [index for index, name in enumerate(names) if name in group.names])
              for group in groups]
  return [(group, indices) for group, indices in by_group if indices]


def _build_step(reduced, groups, weight_decay, is_compiled, averages):
  """Returns the bool whether the guard has let the step be done, which does it."""
  update_ops, gate = list(reduced.towers[0].update_ops), None
  if gates_on_device(reduced, [group for group, _ in groups]):
    gate = DeviceGate(_decay(reduced, weight_decay), is_compiled)
    reduced, weight_decay, is_finite = gate.reduced, 0.0, gate.is_finite
  else:
    is_finite = build_is_finite(reduced, is_compiled)
  writes = _find_writes(reduced, update_ops, is_finite)
  if gate is not None:
    writes = writes._replace(late=gate.pass_writes(writes.late))
  for group, indices in groups:
    with noting_made(group.names):
      make_slots(group.optimizer, [reduced.gradients[index][1] for index in indices])
  with tf.device(HOST):
    # Not under the guard: every op there waits for it, even constants, and the counters for these.
    one, seen = tf.constant(1, tf.int64), reduced.num_examples
    seen = tf.constant(seen, tf.int64) if isinstance(seen, int) else tf.cast(seen, tf.int64)
  shares = averages.build_shares(get_global_step()) if averages else {}
  gated = gate and _apply_gradients(
      reduced, groups, _find_readers(update_ops, reduced), gate, update_ops)

  def update():
    applied = gated or _apply_gradients(_decay(reduced, weight_decay), groups, update_ops)
    # After the update, since the learning rate may read the counters; with the loss, beside which
    # the next batch is put.
    with tf.control_dependencies([applied, reduced.loss, *shares.values()]), tf.device(HOST):
      ends = [get_global_step().assign_add(one, read_value=False),
              get_examples_seen().assign_add(seen, read_value=False)]
      if reduced.loss_scale is not None:
        ends.append(build_growth(reduced.loss_scale))
    if averages is not None:
      with rounding_alike(reduced.all_reduce is not None):
        ends += averages.build_update(shares, after=applied)
    return ends

  return run_if(is_finite, update, writes)


def _decay(reduced, weight_decay):
  """Returns `reduced` with the decay in the gradients; that of an AdamW of its own is in none."""
  if not weight_decay:
    return reduced
  return reduced.map_gradients(
      lambda gradient, variable: gradient if variable.shape.ndims < 2 else
      tf.convert_to_tensor(gradient) + weight_decay * variable.read_value())


def _apply_gradients(reduced, groups, before, gate=None, beside=()):
  """Returns the op that updates all variables and replicas, after `before`, and runs `beside`."""
  # One op to wait for: each update of a thousand variables would wait for a thousand update ops.
  before = [tf.group(*before)] if len(before) > 1 else before
  # Numbers such as momentum are on the host; updates stand with their variables all the same.
  with tf.control_dependencies(before), rounding_alike(reduced.all_reduce is not None), \
      tf.device(HOST):
    applied = list(beside)
    for group, indices in groups:
      optimizer = group.optimizer
      creator = SlotCreator(reduced, of_replicas=not _has_own_step(optimizer))
      with tf.variable_creator_scope(creator), _merging_once(optimizer), \
          noting_made(group.names), gate.gating(optimizer) if gate else contextlib.nullcontext():
        applied.append(_apply_group(optimizer, reduced, indices) if group.every == 1 else
                       _apply_in_turn(group, reduced, indices))
    return applied[0] if len(applied) == 1 else tf.group(*applied)


def _find_readers(update_ops, reduced):
  """Returns the update ops that read a weight for more than the gradients do.

  An update need not wait for the others, such as moving averages; if it did, XLA would make a
  program of its own of it, since it compiles no write that follows another.
  """
  weights = {variable.handle.op for gradients in [reduced.gradients, *reduced.replicas]
             for _, variable in gradients}
  passed = find_needed([gradient.op for gradient, _ in reduced.gradients])
  return [op for op in update_ops
          if any(tensor.op in weights
                 for source in find_needed([getattr(op, 'op', op)], without=passed)
                 for tensor in source.inputs)]


def _has_own_step(optimizer):
  """Returns whether an optimizer has an `apply_gradients` of its own, or is a function."""
  return type(optimizer).apply_gradients is not Optimizer.apply_gradients


def _apply_group(optimizer, reduced, indices):
  """Returns the op that updates a group's variables and replicas.

  A step of one's own may take a norm, go by names or keep what is of no weight: it gets each weight
  once, and each row of a table once, and replicas become copies of what it makes.
  """
  is_own = _has_own_step(optimizer)
  update = optimizer.apply_gradients(
      [(merge_rows(gradient), variable) for gradient, variable in map(
          reduced.gradients.__getitem__, indices)] if is_own else reduced.list_pairs(indices))
  if update is None:
    raise UsageError(f'The optimizer {type(optimizer).__name__} returned None: return the op that '
                     'updates the variables, as return super().apply_gradients(…).')
  return _copy_weights(update, reduced, indices) if is_own and reduced.replicas else update


def _copy_weights(update, reduced, indices):
  """Returns the op that copies weights to their replicas, after an update."""
  # No tower gets its gradients unless all ask for theirs.
  gradients = [pairs[index][0] for pairs in reduced.replicas for index in indices]
  copies = [update]
  with tf.control_dependencies([update, *list_ops(gradients)]):
    for index in indices:
      first = reduced.gradients[index][1]
      with tf.device(first.device):
        value = first.read_value()
      for pairs in reduced.replicas:
        if pairs[index][1] is not first:
          with tf.device(pairs[index][1].device):
            copies.append(pairs[index][1].assign(value, read_value=False))
  return tf.group(*copies)


def _apply_in_turn(group, reduced, indices):
  """Returns the op that updates variables if the next step is one of their optimizer's turns."""
  # Within the guard's branch, which tf.cond would leave.
  turn = get_global_step().read_value() % group.every + 1
  due = tf.reduce_any(tf.equal(turn, [*(group.turns or [group.every])]))
  return run_if(due, lambda: [_apply_group(group.optimizer, reduced, indices)],
                StepWrites([], [])).op


def _merging_once(optimizer: Optimizer) -> ContextManager[None]:
  """Keeps an optimizer from merging rows that are merged already.

  Of a table of 64 columns it takes a tenth of a millisecond for each thousand rows.
  """
  name = '_resource_apply_sparse_duplicate_indices'
  # Optimizers with a method of their own apply rows with the same index one after another.
  if getattr(type(optimizer), name, None) is not getattr(Optimizer, name):
    return contextlib.nullcontext()
  merge_and_apply = getattr(optimizer, name)

  def apply(rows, variable, indices):
    act = optimizer._resource_apply_sparse if has_each_once(indices) else merge_and_apply
    return act(rows, variable, indices)

  return replaced((optimizer, name, apply))


def _find_writes(reduced, update_ops, is_finite):
  """Returns what the model writes in a step; refuses writes that towers would repeat."""
  check_updates(update_ops)
  of_towers = [value for tower in reduced.towers for value in [
      tower.loss, *tower.gradients, *tower.penalty_gradients]]
  # An op that every micro-batch runs cannot wait for the last one.
  writes = find_step_writes(of_towers, update_ops, [is_finite, reduced.add_op])
  if len(reduced.towers) > 1 or reduced.add_op is not None:
    check_held(update_ops, of_towers)
  check_once(writes, num_towers=len(reduced.towers), accumulates=reduced.add_op is not None)
  if reduced.all_reduce is not None:
    check_replicated(writes)
  _order_writes(writes.late)
  return writes


def _order_writes(writes):
  """Lets writes of one variable, as of a layer that is called twice, run in the order of the calls.

  In any other a sum has other last bits, and a step would not repeat.
  """
  by_variable: Dict[Any, List[Any]] = {}
  for write in writes:
    if len(write.variables) == 1 and write.op._get_control_flow_context() is None:
      by_variable.setdefault(write.variables[0], []).append(write.op)
  for variable, ops in by_variable.items():
    if len(ops) == 1:
      continue
    ops.sort(key=lambda op: op._id)
    after = find_dependents(ops)
    for read in variable.outputs[0].consumers():
      if (read.type == 'ReadVariableOp' and read._get_control_flow_context() is None
          and read not in after and not find_dependents([read]).isdisjoint(ops[1:])):
        ops[0]._add_control_input(read)
    for before, op in zip(ops, ops[1:]):
      op._add_control_input(before)
