"""The gate on the device: a refused step moves nothing, and no update waits for the host.

              host          │ GPU
  loss        finite? ──────┼──────────► flag ◄── finite? ◄── sum of gradients
                            │              ├─► select(flag, gradients, 0) ──┐
                            │              └─► select(flag, rate, 0) … ─────┴─► update
  counters    ◄── gate ◄────┼─ flag

Behind a gate on the host, the kernels of an update are launched after the backward pass has ended
and its flag has travelled. Here they are launched beside it. With a gradient of 0, a rate of 0 and
a momentum of 1 an update leaves weights and slots as they were, to the bit but for the sign of a
zero; so it is for the optimizers below, and for what adds to variables, as moving averages do. All
other updates wait for the gate on the host, see `nan_guard`.
"""

import dataclasses
import functools
from typing import Any, ContextManager, Dict, List, Sequence, Tuple

from towers.graph.writes import Write
from towers.placement.host import HOST, is_gpu
from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import Optimizer, Tensor, replaced, select, tf
from towers.update.all_finite import find_units, sum_units
from towers.update.groups import Group

# What an optimizer's numbers are in a refused step, by the attributes in which it keeps them. A
# subclass may do more with a gradient than its parent.
_NEUTRAL = {
    tf.train.GradientDescentOptimizer: dict(_learning_rate_tensor=0.0),
    tf.train.MomentumOptimizer: dict(_learning_rate_tensor=0.0, _momentum_tensor=1.0),
    tf.train.AdamOptimizer: dict(_lr_t=0.0, _beta1_t=1.0, _beta2_t=1.0),
    tf.train.AdagradOptimizer: dict(_learning_rate_tensor=0.0)}
# What is added to a variable in a refused step: x + -0.0 and x - 0.0 are x, 0.0 and -0.0 too.
_NOTHING = dict(AssignAddVariableOp=-0.0, AssignSubVariableOp=0.0)


def gates_on_device(reduced: ReducedGradients, groups: Sequence[Group]) -> bool:
  """Returns whether an update can pass a gate on its own GPU, or on that of each replica."""
  towers = [reduced.gradients, *reduced.replicas]
  return (all(type(group.optimizer) in _NEUTRAL and group.every == 1 for group in groups)
          and all(len({value.device for pair in pairs for value in pair}) == 1 for pairs in towers)
          and all(isinstance(gradient, tf.Tensor) and is_gpu(variable.device)
                  and gradient.shape.is_fully_defined() and gradient.dtype.is_floating
                  for pairs in towers for gradient, variable in pairs))


class DeviceGate:
  """The gates of a step's devices, each open if loss and gradients are finite.

  Attributes:
    reduced: with gradients that are 0 where a gate is closed.
    is_finite: a scalar bool on the host.
  """

  def __init__(self, reduced: ReducedGradients, is_compiled: bool):
    """Builds the gates of gradients for which `gates_on_device` holds, as they will be applied."""
    self._flags: Dict[str, Tensor] = {}
    self._is_compiled = is_compiled
    # The only tower's loss before `run_beside`: XLA does not compile a merge, and a step whose
    # gradients wait for one is two programs.
    loss = reduced.loss.op.inputs[0] if reduced.loss.op.type == 'Merge' else reduced.loss
    with tf.name_scope('gate'):
      with tf.device(loss.device):
        loss_is_finite = tf.is_finite(loss)
      passed = [self._pass_gradients(pairs, loss, loss_is_finite)
                for pairs in [reduced.gradients, *reduced.replicas]]
      with tf.device(HOST):
        self.is_finite = tf.identity(list(self._flags.values())[0])
    self.reduced = dataclasses.replace(reduced, gradients=passed[0], replicas=passed[1:])

  def _pass_gradients(self, pairs, loss, loss_is_finite):
    """Builds the gate of the device of a tower's gradients; returns the pairs behind it."""
    device = pairs[0][0].device
    tensors = [gradient for gradient, _ in pairs]
    with tf.device(device):
      units = find_units(tensors + [loss] if loss.device == device else tensors, self._is_compiled)
      finite = [tf.is_finite(total) for total in sum_units(units).values()]
      if loss.device != device:
        finite.append(loss_is_finite)
      self._flags[device] = flag = functools.reduce(tf.logical_and, finite)
      passed: Dict[str, Tensor] = {}
      for unit in units:
        passed.update(unit.split(select(flag, unit.tensor, -0.0)))
    return [(passed[gradient.name], variable) for gradient, variable in pairs]

  def pass_writes(self, writes: Sequence[Write]) -> List[Write]:
    """Puts what adds to variables of these devices behind the gate; returns all other writes."""
    found: Dict[Tuple[str, str], List[Any]] = {}
    others = []
    for write in writes:
      op = write.op
      device = write.variables[0].device if len(write.variables) == 1 else ''
      is_known = device in self._flags and op.type in _NOTHING and write.entries == [op]
      if is_known and op._get_control_flow_context() is None and (
          op.inputs[1].shape.is_fully_defined() and op.inputs[1].dtype.is_floating):
        found.setdefault((device, op.type), []).append(op)
      else:
        others.append(write)
    for (device, kind), ops in found.items():
      with tf.device(device), tf.name_scope('gate'):
        passed: Dict[str, Tensor] = {}
        # What is added may have been computed on another device.
        added = [tf.identity(op.inputs[1]) for op in ops]
        for unit in find_units(added, self._is_compiled):
          passed.update(unit.split(select(self._flags[device], unit.tensor, _NOTHING[kind])))
        for op, value in zip(ops, added):
          op._update_input(1, passed[value.name])
    return others

  def gating(self, optimizer: Optimizer) -> ContextManager[None]:
    """Returns a context in which an optimizer's update passes the gates of the devices."""
    neutral = _NEUTRAL[type(optimizer)]
    prepare, apply_dense = optimizer._prepare, optimizer._resource_apply_dense
    by_device: Dict[str, Dict[str, Tensor]] = {}

    def prepare_gated():
      prepare()
      for device, flag in self._flags.items():
        with tf.device(device), tf.name_scope('gate'):
          by_device[device] = {name: select(flag, _move_here(getattr(optimizer, name)), number)
                               for name, number in neutral.items()}
      vars(optimizer).update(by_device[list(self._flags)[0]])

    def apply_gated(gradient, variable):
      vars(optimizer).update(by_device[variable.device])
      return apply_dense(gradient, variable)

    return replaced((optimizer, '_prepare', prepare_gated),
                    (optimizer, '_resource_apply_dense', apply_gated))


def _move_here(number):
  """Returns a constant as one of the device where it is called, so that no step sends it there."""
  value = tf.get_static_value(number)
  return number if value is None else tf.constant(value, number.dtype)
