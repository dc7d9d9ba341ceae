"""Postponed writes: those that a loss waits for, put into UPDATE_OPS, where one tower runs them.

  u.assign(new) ──control──► sigma ──► loss        becomes        new ──► sigma ──► loss
                                                                   └──► u.assign(new)

What reads the variable after the write gets the value that is written, where no tower writes what
its own examples make, also if it does not wait for it, as variables by ref have it. A write stays
where it is if that value is not known, as in a loop or where several writes of the variable are
read in between.
"""

import re
from typing import Callable, Container, Dict, List, Sequence

from towers.graph.walk import find_dependents, find_loops, find_needed, list_branches
from towers.tensorflow_v1 import Operation, replace_tensor, replaced, stop_waiting, tf

WRITES = re.compile('Assign(Add|Sub|)VariableOp$|ResourceScatter')
# Ops that pass a handle on.
PASSES = ('Switch', 'Identity', 'Enter')


def postpone_writes(ops: Sequence[Operation], losses: Sequence[Operation],
                    others: Sequence[Operation],
                    may_postpone: Callable[[Operation, Operation], bool],
                    is_own: Callable[[Operation], bool]) -> None:
  """Puts writes that losses wait for into UPDATE_OPS.

  Args:
    ops: of a model's call.
    losses, others: its results. What others alone wait for stays, such as a metric's total.
    may_postpone: whether the write of a variable may run once a step: (write, variable).
    is_own: whether what an op writes depends on the tower's own examples.
  """
  writes = [op for op in ops if WRITES.match(op.type)]
  after = find_dependents(writes)
  of_losses, needed = find_needed(losses, within=after), find_needed(others, within=after)
  needed |= of_losses
  early = [op for op in writes if op in of_losses]
  last: Dict[Operation, Operation] = {}
  for write in early:
    variable = find_variable(write)
    if (variable.type != 'VarHandleOp' or find_loops(write) or not may_postpone(write, variable)
        or not _replace_reads(write, early, needed,
                              [] if is_own(write) else ops[ops.index(write) + 1:])):
      continue
    for reader in write._control_outputs:
      if reader in needed:
        stop_waiting(reader, write)
    if variable in last:
      write._add_control_input(last[variable])
    last[variable] = _leave_branches(write)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, last[variable])


def find_variable(op: Operation) -> Operation:
  """Returns the op of the variable that an op takes first, or what its handle comes from."""
  op = op.inputs[0].op
  while op.type in PASSES:
    op = op.inputs[0].op
  return op


def _replace_reads(write: Operation, early: List[Operation], needed: Container[Operation],
                   later: Sequence[Operation]) -> bool:
  """Gives what reads the variable after a write its value; returns whether it is known."""
  variable, context = find_variable(write), write._get_control_flow_context()
  reads = [op for op in find_dependents([write], within=needed) if op is not write and op.inputs
           and op.inputs[0].dtype == tf.resource and find_variable(op) is variable
           and op.type not in PASSES]
  is_known = write.type.startswith('Assign') and sum(
      find_variable(other) is variable for other in early) == 1
  if is_known:
    reads += [op for op in later if op.type == 'ReadVariableOp' and op not in reads
              and find_variable(op) is variable and op._get_control_flow_context() is context]
  if not reads:
    return True
  if not is_known or any(
      op.type != 'ReadVariableOp' or op._get_control_flow_context() is not context for op in reads):
    return False
  handle, value = write.inputs
  with tf.control_dependencies(None), replaced((write.graph, '_control_flow_context', context)):
    if write.type != 'AssignVariableOp':
      old = tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype)
      value = old + value if write.type.startswith('AssignAdd') else old - value
    value = tf.stop_gradient(value)  # As a variable that is read.
  for read in reads:
    replace_tensor(read.outputs[0], value)
  return True


def _leave_branches(op: Operation) -> Operation:
  """Returns an op after a write that runs where the branches around this one are not taken too."""
  for branch in list_branches(op._get_control_flow_context()):
    with tf.control_dependencies(None):
      both = tf.raw_ops.Switch(data=branch.pred, pred=branch.pred)
      with tf.control_dependencies([op]):
        taken = tf.identity(both[branch.branch])
      op = tf.raw_ops.Merge(inputs=[taken, both[1 - branch.branch]])[0].op
  return op
