"""Functions as optimizers: `(grads_and_vars, global_step) -> op` may clip, schedule and apply.

What it reads of a variable is the value before the step, unless it waits for an assignment itself.
The program counts its steps behind all else, so what a function adds to `global_step` is left out.
"""

import contextlib
import inspect
from typing import Any, Callable, Sequence, Tuple

from towers.base.usage_error import UsageError
from towers.graph.source_lines import format_op
from towers.graph.walk import find_dependents, find_needed, list_sources
from towers.graph.writes import READERS, find_writes
from towers.placement.counters import get_global_step
from towers.tensorflow_v1 import Gradient, Operation, Optimizer, Variable, stop_waiting, tf

Update = Callable[[Sequence[Tuple[Gradient, Variable]], Variable], Operation]


class FunctionOptimizer(Optimizer):
  """An optimizer that is a function."""

  def __init__(self, function: Update):
    """Takes the function, which is called within the step, and its name."""
    super().__init__(use_locking=False, name=getattr(function, '__name__', 'function'))
    self._function = function

  def apply_gradients(self, grads_and_vars: Sequence[Tuple[Gradient, Variable]],
                      global_step: Any = None, name: Any = None) -> Operation:
    """Returns the op that does what the function returns."""
    graph, step = tf.get_default_graph(), get_global_step()
    num_ops = len(graph.get_operations())
    ends = tf.nest.flatten(self._function(list(grads_and_vars), step))
    if not all(hasattr(end, 'op') or isinstance(end, tf.Operation) for end in ends):
      raise UsageError(f'The optimizer {self.get_name()} returned {ends}: return the op that '
                       'updates the variables, as tf.group(*updates).')
    done = tf.group(*ends)
    made = find_needed([done], within=set(graph.get_operations()[num_ops:]))
    writes = [write for write in find_writes(graph) if write.op in made]
    if not {weight.handle.op for _, weight in grads_and_vars} & {
        variable for write in writes for variable in write.variables}:
      raise UsageError(f'The optimizer {self.get_name()} returned {ends!r:.200}, which update none '
                       f'of its {len(grads_and_vars)} variables: return the op that does, as '
                       'tf.train.AdamOptimizer(1e-3).apply_gradients(pairs).')
    for write in writes:
      after = find_dependents([write.op])
      for op in [op for variable in write.variables for op in variable.outputs[0].consumers()]:
        if op in made and op.type in READERS and op not in after:
          write.wait_for(op)
      if step.handle.op in write.variables:
        self._leave_out(write.op)
    return done

  def _leave_out(self, write):
    """Lets what waits for a write of the step wait for what this waits for."""
    for op in list(write._control_outputs):
      if op.type == 'ReadVariableOp' and op.outputs[0].consumers():
        raise UsageError(
            f'The optimizer {self.get_name()} reads global_step by {format_op(op)}, after it has '
            'counted the step, which is left to the program: compute with global_step + 1.')
      stop_waiting(op, write, *list_sources(write))


def takes_gradients(optimizer: Any) -> bool:
  """Returns whether this is a function of gradients and the step, not of the learning rate."""
  if isinstance(optimizer, (Optimizer, type)) or not callable(optimizer):
    return False
  needed = []
  with contextlib.suppress(ValueError):  # Functions of C may not tell.
    needed = [parameter for parameter in inspect.signature(optimizer).parameters.values()
              if parameter.default is parameter.empty
              and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]
  return len(needed) == 2
