"""The guard: a step whose loss or gradients are not finite changes nothing.

  loss       ─┐                     ┌─ yes ─► update, moving averages, counters
  gradients  ─┴─► sums ─► finite? ──┴─ no  ─► nothing

It sums the averaged gradients, once, not those of every tower: NaN and Inf survive a sum, so no
tower can hide one. On GPUs `device_gate` keeps the weights instead. Only after such a step a
diagnosis looks for their source, with the same batch: since the weights are unchanged, and random
ops are tied to the step, it gets the same values.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from towers.data.composite import find_paths
from towers.graph.writes import StepWrites
from towers.placement.host import HOST
from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import Tensor, tf
from towers.update.all_finite import build_all_finite


class Diagnosis(NamedTuple):
  """What to fetch with the train op to find the source of a NaN or Inf.

  `losses`, `[towers, 1 + losses]` float32, are the towers' shares of the mean loss, and their sums
  of several losses, by `loss_names`. `finite`, `[towers + 1, variables]` bool, is whether a tower's
  gradient of a variable is; the last row is for the averaged gradients. `names` are the variables'.
  `inputs`, `[towers, parts]` bool, is the same of the parts of their batches, at `paths`. `weighs`
  is whether a loss has weights.
  """
  losses: Tensor
  finite: Tensor
  names: List[str]
  loss_names: Sequence[str]
  inputs: Tensor
  paths: List[str]
  weighs: bool = False


def build_is_finite(reduced: ReducedGradients, is_compiled: bool = False) -> Tensor:
  """Returns a scalar bool on the host: whether mean loss and averaged gradients are finite."""
  with tf.name_scope('guard'):
    return build_all_finite([reduced.loss] + [gradient for gradient, _ in reduced.gradients],
                            is_compiled)


def build_diagnosis(reduced: ReducedGradients) -> Diagnosis:
  """Builds the diagnosis, which is no part of a step."""
  trainable = [variable.op.name for variable in tf.trainable_variables()]
  names = [variable.op.name for _, variable in reduced.gradients]
  with tf.name_scope('diagnosis'):
    rows = []
    for tower in reduced.towers:
      parts = [dict(zip(trainable, part)) for part in (tower.gradients, tower.penalty_gradients)]
      rows.append([build_all_finite([part.get(name) for part in parts]) for name in names])
    rows.append([build_all_finite([gradient]) for gradient, _ in reduced.gradients])
    batches = [tower.batch.tensors for tower in reduced.towers]
    paths = [path for path, part in zip(find_paths(batches[0]), tf.nest.flatten(batches[0]))
             if part.dtype.is_floating]
    inputs = [[build_all_finite([part]) for part in tf.nest.flatten(batch)
               if part.dtype.is_floating] for batch in batches]
    with tf.device(HOST):
      losses = [[tower.loss, *(tower.sums[name] for name in tower.losses)]
                for tower in reduced.towers]
      first = reduced.towers[0]
      return Diagnosis(tf.cast(losses, tf.float32), tf.stack(rows), names, first.losses,
                       tf.reshape(inputs, [len(batches), -1]) if paths else
                       tf.ones([len(batches), 0], tf.bool), paths,
                       any(name in first.weights for name in first.losses or ['loss']))


def run_if(is_due: Tensor, update: Callable[[], Sequence[Any]], writes: StepWrites) -> Tensor:
  """Builds `update` so that it runs only if `is_due`; returns a scalar bool, whether it did.

  `update` returns the ops that end it. Tags that it makes by `tf.summary`, which a run fetches with
  the step, are empty if it does not run. Late writes of the graph so far now run only if `is_due`.
  Early ones cannot wait for it: if it is false, their variables get their old values back.
  """
  held = _hold(writes.early)
  # The side of a switch that is not taken is dead, and so are all ops that wait for it. tf.cond
  # would add a switch for every gradient, variable and slot: thousands of ops for a deep net.
  with tf.device(is_due.device):
    no, yes = tf.raw_ops.Switch(data=is_due, pred=is_due)
    gate = tf.identity(yes, name='gate')
  for write in writes.late:
    write.wait_for(gate.op)
  tags = tf.get_collection_ref(tf.GraphKeys.SUMMARIES)
  num_before = len(tags)
  with tf.control_dependencies([gate]):
    ends = update()
  for index in range(num_before, len(tags)):
    if tags[index].graph.is_fetchable(tags[index]):
      with tf.device(HOST):
        empty, _ = tf.raw_ops.Switch(data=tf.constant(''), pred=is_due)
        tags[index] = tf.raw_ops.Merge(inputs=[tags[index], empty])[0]
  with tf.device(is_due.device):
    with tf.control_dependencies(ends):
      done = tf.identity(gate)
    if held:
      no = _put_back(held, tf.identity(no))
    return tf.raw_ops.Merge(inputs=[done, no])[0]


def _hold(writes):
  """Returns the op of each variable that the writes change, with its value before all of them."""
  by_variable: Dict[Any, List[Any]] = {}
  for write in writes:
    for variable in write.variables:
      by_variable.setdefault(variable, []).append(write)
  held = []
  for variable, changing in by_variable.items():
    with tf.device(variable.device):
      value = tf.raw_ops.ReadVariableOp(
          resource=variable.outputs[0], dtype=variable.get_attr('dtype'), name='hold')
    for write in changing:
      write.wait_for(value.op)
    held.append((variable, value))
  return held


def _put_back(held, no):
  """Returns `no` once all variables have their old values again."""
  with tf.control_dependencies([no]):
    ends = []
    for variable, value in held:
      with tf.device(variable.device):
        ends.append(tf.raw_ops.AssignVariableOp(
            resource=variable.outputs[0], value=value, name='put_back'))
  with tf.control_dependencies(ends):
    return tf.identity(no)
