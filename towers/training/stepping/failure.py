"""Failures: what TensorFlow raises, told with the tower, the queue and the fix instead of a stack
trace.

  OutOfRangeError, NotFoundError,
  InvalidArgumentError … from an iterator   ─► the split and the towers it feeds
  ResourceExhaustedError                    ─► device, shape, examples, what to try
  anything else                             ─► the op, and its tower if it is in one
"""

import re
from typing import Any, Dict, List, Optional

from tensorflow_v1 import tf
from towers.input.pipeline import GET_NEXTS
from towers.training.faults.reason import find_reason
from towers.training.faults.run_error import RunError
from towers.training.stepping.memory import estimate_memory, format_bytes
from towers.training.stepping.steps import Steps
from towers.training_graph import TrainingGraph

_NODE = re.compile(r'\[\[(?:\{\{node |node )?([^\s}\]]+)')
_NO_ROOM = re.compile(r'shape ?\[([\d,]*)\] and type (\w+) on (?:\S*?)((?:device:)?[A-Z]+:\d+) ')


def explain(error: Exception, steps: Steps) -> RunError:
  """Returns what an error of a step means."""
  program = steps.program
  text = getattr(error, 'message', None) or str(error)
  when = f'in {steps.activity}, after {steps.step} steps'
  if isinstance(error, tf.errors.ResourceExhaustedError):
    return RunError(_explain_memory(error, text, when, program))
  cause = find_reason(error)
  for node in _NODE.findall(text):
    feed = find_feed(node, program)
    if feed:
      return RunError(f'{feed} failed {when}: {cause}. Whatever was saved before is whole: correct '
                      'the data, and the run goes on from there.')
  for node in _NODE.findall(text):
    tower = re.match(r'tower_(\d+)/', node)
    if tower:
      return RunError(f'Tower {tower.group(1)} failed {when}, in the op {node}: {cause}')
  return RunError(f'The run failed {when}: {cause}')


def find_feed(node: str, program: TrainingGraph) -> Optional[str]:
  """Returns which split and towers the op `node` takes batches for, in words, or None if it takes
  none.
  """
  names = [program.feed.inputs.name]
  if program.validation is not None:
    names.append(program.validation.feed.inputs.name)
  try:
    op = program.gradients.loss.graph.get_operation_by_name(node)
  except (KeyError, ValueError):
    return None
  if op.type not in GET_NEXTS:
    return None
  for name, feed in zip(names,
                        [program.feed, program.validation.feed if program.validation else None]):
    if f'next_{name}' in node and feed is not None:
      return f'The input of {describe_towers(feed, op)} (split {name})'
  return None


def describe_towers(feed: Any, op: Any) -> str:
  """Returns which towers an op that takes a batch takes it for: one of `shard`, otherwise all, in
  words.
  """
  handles: List[Any] = []
  for other in op.graph.get_operations():
    if other.type in GET_NEXTS and f'next_{feed.inputs.name}' in other.name:
      handle = _origin(other.inputs[0])
      if handle not in handles:
        handles.append(handle)
  count = len(feed.devices)
  if len(handles) == count and count > 1:
    return f'tower {int(handles.index(_origin(op.inputs[0])))}'
  return 'tower 0' if count == 1 else f'all {count} towers, which share one iterator'


def _origin(handle):
  """Returns the op that an iterator's handle comes from, outside of any branch."""
  op = handle.op
  while op.type in ('Switch', 'Identity', 'RefSwitch', 'Enter'):
    op = op.inputs[0].op
  return op


def _explain_memory(error, text, when, program):
  plan = program.plan
  match = _NO_ROOM.search(text)
  if match:
    shape, dtype, device = match.groups()
    num_bytes = 1
    for size in filter(None, shape.split(',')):
      num_bytes *= int(size)
    kinds: Dict[str, int] = {'double': 8, 'int64': 8, 'half': 2, 'bfloat16': 2, 'bool': 1,
    'uint8': 1, 'int8': 1}
    where = (f"{device.replace('device:', '')} has no room for a tensor of shape "
             f"[{shape.replace(',', ', ')}], {dtype}, "
             f"{format_bytes(num_bytes * kinds.get(dtype, 4))}")
  else:
    where = 'a device has no room: ' + find_reason(error)
  largest = max(plan.shares(plan.micro_batch_size))
  advice = [f'a smaller batch (--batch_size={int(max(plan.num_towers, plan.batch_size // 2))})']
  runs = plan.accumulate * 2
  if plan.batch_size % runs == 0 and plan.batch_size // runs >= plan.num_towers:
    advice.insert(0, f'the same batch in more runs (--accumulate={runs})')
  return (f"Out of memory {when}: {where}, at {largest} examples per tower. A tower is estimated "
          f"to take at least {estimate_memory(program).describe()}. Try {', '.join(advice)}, "
          "numbers of 16 bits in the model, or more towers with the same batch.")
