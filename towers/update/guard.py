"""The guard: a step whose loss or gradients are not finite changes nothing.

  loss       ─┐                     ┌─ yes ─► update, moving averages, counters
  gradients  ─┴─► sums ─► finite? ──┴─ no  ─► nothing

It sums the averaged gradients, once, not those of every tower: NaN and Inf survive a sum, so no
tower can hide one. Only after such a step a diagnosis looks for their source, with the same batch:
since the weights are unchanged, and random ops are tied to the step, it gets the same values (see
`Diagnosis`).
"""

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from tensorflow_v1 import Tensor, tf
from towers.graph.ordered_sum import add_all
from towers.graph.writes import StepWrites
from towers.placement.host import HOST
from towers.reduce.gradients import ReducedGradients


class Diagnosis(NamedTuple):
  """What to fetch with the train op to find the source of a NaN or Inf.

  Attributes:
    losses: `[towers]` float32, each tower's share of the mean loss.
    finite: `[towers + 1, variables]` bool: whether a tower's gradient of a variable is finite; the
      last row is for the averaged gradients.
    names: of the variables.
  """
  losses: Tensor
  finite: Tensor
  names: List[str]


def build_is_finite(reduced: ReducedGradients) -> Tensor:
  """Returns a scalar bool on the host: whether the mean loss and all averaged gradients are finite.
  """
  with tf.name_scope('guard'):
    return _all_finite([reduced.loss] + [gradient for gradient, _ in reduced.gradients])


def build_diagnosis(reduced: ReducedGradients) -> Diagnosis:
  """Builds the diagnosis, which is no part of a step."""
  variables = [variable for _, variable in reduced.gradients]
  trainable = tf.trainable_variables()
  with tf.name_scope('diagnosis'):
    rows = []
    for tower in reduced.towers:
      names = [variable.op.name for variable in trainable]
      parts = [dict(zip(names, part)) for part in (tower.gradients, tower.penalty_gradients)]
      rows.append([_all_finite([part.get(variable.op.name) for part in parts])
                   for variable in variables])
    rows.append([_all_finite([gradient]) for gradient, _ in reduced.gradients])
    with tf.device(HOST):
      return Diagnosis(tf.stack([tf.cast(tower.loss, tf.float32) for tower in reduced.towers]),
                       tf.stack(rows), [variable.op.name for variable in variables])


def run_guarded(is_finite: Tensor, update: Callable[[], Sequence[Any]],
                writes: StepWrites) -> Tensor:
  """Builds `update` so that it runs only if `is_finite`; returns a scalar bool, whether it did.

  Args:
    is_finite: a scalar bool.
    update: builds the update, and returns the ops that end it.
    writes: of the graph so far. Late ones now wait for `is_finite` and run only if it is true.
      Early ones cannot wait: if it is false, their variables get their old values back.
  """
  held = _hold(writes.early)
  # The side of a switch that is not taken is dead, and so are all ops that wait for it. tf.cond
  # would add a switch for every gradient, variable and slot: thousands of ops for a deep net, and
  # seconds to build them.
  with tf.device(is_finite.device):
    no, yes = tf.raw_ops.Switch(data=is_finite, pred=is_finite)
    gate = tf.identity(yes, name='gate')
  for write in writes.late:
    write.wait_for(gate.op)
  with tf.control_dependencies([gate]):
    ends = update()
  with tf.device(is_finite.device):
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


def _all_finite(values):
  """Returns a scalar bool on the host: whether all tensors and IndexedSlices are finite.

  One pass without a copy: a sum is finite only if all of its terms are, and so is the sum of sums.
  A sum of finite terms overflows only near the largest float, where training has failed anyway.
  Each device sends a single number to the host.
  """
  on_device: Dict[Any, List[Any]] = {}

  @functools.lru_cache(maxsize=None)
  def all_axes(rank, device):
    """Returns one constant for all tensors of a rank: otherwise each variable needs an op more."""
    with tf.device(device):
      return tf.constant(list(range(rank)))

  for value in _undo_splits(values):
    tensor = value.values if isinstance(value, tf.IndexedSlices) else value
    with tf.device(tensor.device):
      if tensor.dtype in (tf.float16, tf.bfloat16):
        tensor = tf.cast(tensor, tf.float32)
      rank = tensor.shape.ndims
      total = tensor if rank == 0 else tf.reduce_sum(tensor, rank and all_axes(rank, tensor.device))
    on_device.setdefault((total.dtype, tensor.device), []).append(total)
  by_dtype: Dict[Any, List[Any]] = {}
  for (dtype, device), totals in on_device.items():
    with tf.device(device):
      by_dtype.setdefault(dtype, []).append(add_all(totals))
  with tf.device(HOST):
    finite = [tf.is_finite(add_all(totals)) for totals in by_dtype.values()]
    if not finite:
      return tf.constant(True)
    return finite[0] if len(finite) == 1 else tf.reduce_all(tf.stack(finite))


def _undo_splits(values):
  """Returns the values without None, and the whole in place of all parts of a split tensor."""
  values = [value for value in values if value is not None]
  names = {value.name for value in values if isinstance(value, tf.Tensor)}
  undone: Dict[str, Any] = {}
  for value in values:
    split = value.op
    is_part = split.type == 'SplitV' and isinstance(value, tf.Tensor)
    if is_part and all(part.name in names for part in split.outputs):
      undone[split.name] = split.inputs[0]
    else:
      undone[value.name] = value
  return undone.values()
