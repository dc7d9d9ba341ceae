"""Failures: TensorFlow's errors as one message that names the tower, the input and the fix; and
whether a step that was out of memory can have changed anything.

  tower_1/conv/Conv2D ──► gradients ──► guard ──► update of all variables
          │ no room                       └ waits for all of them, so nothing was updated

TensorFlow has no word for a step that failed half-way. But an op that waits for the failed one has
not run, so where all writes of a step wait for it, every variable has the value of before the step.
"""

import contextlib
import re
from typing import Any, Iterator, Optional, Set, Union

import numpy as np

from towers.base.reason import find_message, find_reason, is_about_room
from towers.base.usage_error import UsageError
from towers.coupling.check import advise_size
from towers.graph.sizes import format_bytes
from towers.graph.source_lines import format_op
from towers.graph.walk import find_dependents, find_loops, find_needed
from towers.graph.writes import find_writes
from towers.input.feed import Feed
from towers.input.micro_batches import find_more
from towers.process.run_error import OutOfMemory, RunError
from towers.session.engine import Engine
from towers.tensorflow_v1 import Operation, tf
from towers.training_graph import TrainingGraph
from towers.warm_start.first_batch import find_late

# TensorFlow names the op that failed in brackets, and may number its part on a device.
_NODE = re.compile(r'\[\[(?:\{\{node |node )?([^\s}\]]+)')
_TOWER = re.compile(r'tower_(\d+)/.*')
# The check of an area whose balance a run of the user's own has disturbed, see `staging`.
_STARVED = re.compile(r'The staging area of tower \d+ \(split \w+\) must hold \d+ batches')
_UNFED = re.compile(r"You must feed a value for placeholder tensor '([^']+)'")
_UNEQUAL = re.compile('Cannot (batch tensors with different shapes|add tensor to the batch)')
_LABEL = re.compile(r'label value of (-?\d+) which is outside the valid range of (\[.*?\))')
# What CUDA's libraries and copies to a GPU say in place of ResourceExhaustedError.
_OF_GPUS = re.compile(r'Dst tensor is not initialized|_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY')
# A ResourceExhaustedError about something else.
_OF_FILES = re.compile('Too many open files|larger than max')
_NO_ROOM = re.compile(r'shape ?\[([\d,]*)\] and type (\w+) on (?:\S*?)((?:device:)?[A-Z]+:\d+) ')


def explain(error: Exception, engine: Engine) -> Union[RunError, UsageError]:
  """Returns the error of a step in words for the user."""
  program = engine.program
  text = find_message(error)
  when = f'in {engine.activity}, after {engine.step} steps'
  with program.graph.as_default():
    early = find_late(program.towers[0].batch.tensors) if engine.activity == 'set-up' else []
  if early:
    return UsageError(f'The variable {format_op(early[0].op)}, starts from the examples of a '
                      'batch, and there is none before the first step: give the program '
                      'init_from=lambda batch: model(batch, True), which takes the first one.')
  unfed = _UNFED.search(text)
  if unfed:
    return UsageError(f'Nothing feeds the placeholder {_format_named(program, unfed[1])}: feed it '
                      'in each step, as by session.run([program.gradients.loss, program.train_op], '
                      '{rate: 0.01}); or let a variable take its place, which '
                      'session.run(rate.assign(0.01)) sets.')
  starved = _STARVED.search(text)
  if starved:
    return RunError(f'{starved[0]} between two runs, and another number is there: a run of '
                    'session.tf_session has taken a batch and put none, or the other way round. '
                    'Nothing was changed. Use session.run instead, and session.restore to go on '
                    'from a checkpoint.')
  if is_out_of_memory(error):
    return _explain_memory(error, text, when, engine)
  cause = find_reason(error)
  nodes = _NODE.findall(text)
  feed = next(filter(None, (find_feed(node, program) for node in nodes)), None)
  if feed:
    fix = ("Examples of unequal sizes are padded by towers.padded(examples, pad_to='batch')."
           if _UNEQUAL.search(cause) else
           'Correct the data: a run that has saved and starts again resumes from there.')
    return RunError(f'{feed} failed {when}: {cause}. {fix}')
  tower = next(filter(None, map(_TOWER.match, nodes)), None)
  label = _LABEL.search(cause)
  if tower and label:
    return UsageError(f'Tower {tower[1]} got the label {label[1]}, and its model knows those in '
                      f'{label[2]}: correct the labels, or give the model more classes. To '
                      'one that a weight of 0 leaves out give another: tf.maximum(labels, 0).')
  if tower:
    return RunError(f'Tower {tower[1]} failed {when}, in the op '
                    f'{_format_named(program, tower[0])}: {advise_size(cause, program.towers[0])}')
  return RunError(f'The run failed {when}: {cause}')


def _format_named(program, name) -> str:
  """Returns an op's name with its line; the name alone of one in a function or another graph."""
  with contextlib.suppress(KeyError, ValueError):
    return format_op(program.graph.get_operation_by_name(name))
  return name


def find_feed(node: str, program: TrainingGraph) -> Optional[str]:
  """Returns in words whose input the op `node` is: split and towers; None for other ops."""
  for feed in program.feeds:
    name = feed.inputs.name
    match = re.search(rf'next_{name}(?:_\d+)?/(?:iterator_(\d+)/)?IteratorGetNext', node)
    if match:
      return f'The input of {describe_towers(feed, int(match[1] or 0))} (split {name})'
  return None


def describe_towers(feed: Feed, iterator: int) -> str:
  """Returns in words which towers an iterator feeds: one in mode `shard`, otherwise all."""
  count = len(feed.devices)
  if len(feed.inputs.shards) == count:
    return f'tower {iterator}'
  return f'all {count} towers, which share one iterator'


def _explain_memory(error, text, when, engine):
  program, plan = engine.program, engine.program.plan
  match = _NO_ROOM.search(text)
  if match:
    shape, dtype, device = match.groups()
    sizes = [int(size) for size in shape.split(',') if size]
    num_bytes = tf.as_dtype(dtype).size * int(np.prod(sizes))
    where = (f"{device.replace('device:', '')} has no room for a tensor of shape "
             f"[{shape.replace(',', ', ')}], {dtype}, {format_bytes(num_bytes)}")
  else:
    where = f'a device has no room: {find_reason(error)}'

  largest = max(plan.shares(plan.micro_batch_size))
  cause = f'{when}: {where}, at {largest} examples per tower'
  advice = [f'a smaller batch (batch_size={max(plan.num_towers, plan.batch_size // 2)})']
  # Before the first step there are variables alone, of which micro-batches have as many.
  accumulate = None if engine.activity == 'set-up' else find_more(plan)
  if accumulate is not None:
    advice.insert(0, f'the same batch in more micro-batches (accumulate={accumulate})')
  if program.towers[0].recomputed is None:
    advice.append('activations computed again in the backward pass (recompute=auto)')
  message = (f"Out of memory {cause}. Try {', '.join(advice)}, 16 bits "
             '(precision=mixed), or more towers with the same batch.')
  return OutOfMemory(message, cause=cause, step=engine.step, accumulate=accumulate, error=error,
                     activity=engine.activity)


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
  with program.graph.as_default():
    variables = [getattr(variable, 'handle', variable).op for variable in tf.global_variables()]
  needed = find_needed([program.train_op.op])
  writes = {write.op for write in find_writes(program.graph, variables) if write.op in needed}
  return any(writes <= _find_waiting(op) for op in _find_failed(shortage.error, program.graph))


def _find_failed(error: Any, graph: Any) -> Iterator[Operation]:
  """Yields the ops of towers that an error names; an op of a function has no tower in its name."""
  for name in filter(_TOWER.match, _NODE.findall(find_message(error))):
    with contextlib.suppress(KeyError, ValueError):  # TensorFlow's own, between two devices.
      yield graph.get_operation_by_name(name)


def _find_waiting(failed: Operation) -> Set[Operation]:
  """Returns the ops that cannot run before `failed` has ended, and `failed`.

  A Merge may: it passes on whichever of its inputs comes first. Behind it an op waits only if it
  waits for the failed op in another way too. In a loop another iteration may have failed.
  """
  if find_loops(failed):
    return set()
  merges = {op for op in failed.graph.get_operations() if op.type in ('Merge', 'RefMerge')}
  return find_dependents([failed], without=merges)
