"""Out of memory: how TensorFlow says it, and whether the failed step can have changed anything.

  tower_1/conv/Conv2D ──► gradients ──► guard ──► update of all variables
          │ no room                       └ waits for all of them, so nothing was updated

TensorFlow has no word for a step that failed half-way. But an op that waits for the failed one has
not run, so where all writes of a step wait for it, every variable has the value of before the step.
"""

import re
from typing import Any, Iterator, Set

from towers.base.reason import find_message, is_about_room
from towers.graph.walk import find_dependents, find_loops, find_needed
from towers.graph.writes import find_writes
from towers.process.run_error import OutOfMemory
from towers.session.engine import Engine
from towers.tensorflow_v1 import Operation, tf
from towers.training_graph import TrainingGraph

# TensorFlow names the op that failed in brackets, and may number its part on a device.
NODE = re.compile(r'\[\[(?:\{\{node |node )?([^\s}\]]+)')
_IN_TOWER = re.compile(r'tower_\d+/')
# What CUDA's libraries and copies to a GPU say in place of ResourceExhaustedError.
_OF_GPUS = re.compile(r'Dst tensor is not initialized|_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY')
# A ResourceExhaustedError about something else.
_OF_FILES = re.compile('Too many open files|larger than max')


def is_out_of_memory(error: Exception) -> bool:
  """Whether an error of TensorFlow says that a device is out of memory."""
  text = str(error)
  if isinstance(error, tf.errors.ResourceExhaustedError):
    return not is_about_room(text) and not _OF_FILES.search(text)
  return isinstance(error, tf.errors.OpError) and bool(_OF_GPUS.search(text))


def has_changed_nothing(shortage: OutOfMemory, engine: Engine) -> bool:
  """Whether all variables that a checkpoint holds are as they were before the run that failed.

  False where that cannot be shown: the op that failed is in no tower, or behind the first write.
  """
  program, activity = engine.program, shortage.activity
  if activity == 'warm-up' or activity == 'validation' and program.averages is None:
    return True
  if program.averages is not None and engine.session.run(program.averages.is_exchanged):
    return False
  writes = _find_step_writes(program)
  return any(writes <= _find_waiting(op) for op in _find_failed(shortage.error, program.graph))


def _find_step_writes(program: TrainingGraph) -> Set[Operation]:
  """Returns the ops of a training step that write what a checkpoint holds."""
  with program.graph.as_default():
    variables = [getattr(variable, 'handle', variable).op for variable in tf.global_variables()]
  needed = find_needed([program.train_op.op])
  return {write.op for write in find_writes(program.graph, variables) if write.op in needed}


def _find_failed(error: Any, graph: Any) -> Iterator[Operation]:
  """Yields the ops of towers that an error names; an op of a function has no tower in its name."""
  for name in NODE.findall(find_message(error)):
    try:
      if _IN_TOWER.match(name):
        yield graph.get_operation_by_name(name)
    except (KeyError, ValueError):
      continue  # TensorFlow's own, between two devices.


def _find_waiting(failed: Operation) -> Set[Operation]:
  """Returns the ops that cannot run before `failed` has ended, and `failed`.

  A Merge may: it passes on whichever of its inputs comes first. Behind it an op waits only if it
  waits for the failed op in another way too. In a loop another iteration may have failed.
  """
  if find_loops(failed):
    return set()
  merges = {op for op in failed.graph.get_operations() if op.type in ('Merge', 'RefMerge')}
  return find_dependents([failed], without=merges)
