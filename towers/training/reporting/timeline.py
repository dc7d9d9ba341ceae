"""Timeline: what every op of some steps did and when, as one trace that Chrome and Perfetto show.

  session.run   ├── step 7 ──────────────┤├── step 8 ─────────────┤   one lane for each part of the
  input              ├ get next ┤                                     straight line, whatever device
  staging       ├ get ┤           ├ put ┤                             its ops stand on
  tower 0            ├ Conv2D ┤├ MatMul ┤ …
  tower 1             ├ Conv2D ┤├ MatMul ┤ …
  update                                 ├ AddN ┤├ apply ┤

Only the steps asked for run with a full trace, in which TensorFlow writes down every op; they are
slower, the others are not. Format: "Trace Event Format", Google, the JSON object with complete
events.
"""

import json
import re
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from tensorflow_v1 import tf
from towers.base.whole_file import write_whole
from towers.training.reporting.progress import Callback
from towers.training.stepping.steps import Steps

# In the order in which a batch comes through them; towers follow, by number.
_LANES = ['session.run', 'input', 'staging']
_LAST_LANES = ['update', 'validation']
_OP = re.compile(r' = (\w+)\(')


class Event(NamedTuple):
  """What one op did.

  Attributes:
    lane: 'input', 'staging', 'tower 0', …
    name: the op's type, or what else to show on the bar.
    start: microseconds since 1970.
    microseconds: that it took.
    details: what a click on the bar shows.
  """
  lane: str
  name: str
  start: int
  microseconds: int
  details: Dict[str, str]


class Timeline(Callback):
  """Traces the runs of some steps, and writes them when the last one is over."""

  def __init__(self, path: str, steps: Steps, *, first: int, last: int, first_step: int,
               warn: Callable[[str], None] = print):
    """Prepares; traces at once if the next step is to be traced.

    Args:
      path: of the JSON file.
      steps: that train.
      first: the first step to trace, from 1.
      last: the last one.
      first_step: steps that an earlier run did.
      warn: is told what a user should know.
    """
    self._path, self._steps, self._first, self._last = path, steps, first, last
    self._warn = warn
    self._events: List[Event] = []
    self._is_tracing = False
    self._is_written = False
    self._switch(first_step)

  def step(self, *, step: int, loss: float, train_seconds: float) -> None:
    """Begins or ends to trace, when it is time to."""
    if self._is_tracing or step == self._first - 1:
      self._switch(step)

  def close(self) -> None:
    """Writes what was traced, if that has not been done."""
    if self._is_tracing:
      self._steps.run_by(None)
      self._write()
    elif not self._is_written:
      self._warn(f'WARNING: no step from {self._first} to {self._last} was run, so {self._path} is '
                 'not written')

  def _switch(self, step):
    is_tracing = self._first <= step + 1 <= self._last
    if is_tracing != self._is_tracing:
      self._is_tracing = is_tracing
      self._steps.run_by(self._run if is_tracing else None)
      if not is_tracing:
        self._write()

  def _run(self, fetches):
    metadata = tf.RunMetadata()
    start = time.time()
    results = self._steps.session.run(fetches,
                                      options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
                                      run_metadata=metadata)
    self._events.append(Event('session.run', f'step {self._steps.step + 1}', int(start * 1e6),
                              int((time.time() - start) * 1e6), {}))
    self._events += find_events(metadata.step_stats)
    return results

  def _write(self):
    self._is_written = True
    events, self._events = self._events, []
    try:
      write_whole(self._path, format_trace(events).encode())
    except OSError as error:
      self._warn(f'WARNING: the trace {self._path} cannot be written: {error.strerror}')


def find_events(step_stats: Any) -> List[Event]:
  """Returns what the ops of one session run did, from its RunMetadata's `step_stats`."""
  events = []
  for device in step_stats.dev_stats:
    # 1.14 writes every op down here again, beside what the threads of data sets do.
    is_host_threads = device.device == '/host:CPU'
    for node in device.node_stats:
      if node.node_name == '_SOURCE' or (is_host_threads and '::' not in node.node_name):
        continue
      match = _OP.search(node.timeline_label)
      name = match.group(1) if match else re.split(r'::|:|/', node.node_name)[-1]
      events.append(Event(find_lane(node.node_name, device.device), name, node.all_start_micros,
                          max(node.all_end_rel_micros, 1),
                          dict(op=node.node_name, device=device.device, label=node.timeline_label)))
  return events


def find_lane(op: str, device: str = '') -> str:
  """Returns the lane of an op, from its name: its place on the straight line.

  What a GPU's own streams tell has lanes of its own: there the kernel runs that the tower's lane
  only starts.
  """
  scopes = op.split('/')
  if 'Iterator::' in op or scopes[0] == 'switch' or any(
      scope.startswith('next_') for scope in scopes):
    lane = 'input'
  elif re.match(r'(stage|put|switch)_', scopes[0]):
    lane = 'staging'
  elif re.match(r'tower_\d+$', scopes[0]):
    lane = f"tower {scopes[0][len('tower_'):]}"
  elif scopes[0] in ('validation', 'snapshot', 'measure'):
    lane = 'validation'
  else:
    lane = 'update'
  return lane + ' on its GPU' if re.search(r'/(stream|memcpy)', device) else lane


def format_trace(events: Sequence[Event]) -> str:
  """Returns the JSON: a process for each lane, in which bars that overlap stand in rows of their
  own.
  """
  lanes = sorted({event.lane for event in events}, key=_lane_order)
  traced: List[Dict[str, Any]] = []
  for number, lane in enumerate(lanes):
    traced.append(dict(ph='M', name='process_name', pid=number, args=dict(name=lane)))
    traced.append(dict(ph='M', name='process_sort_index', pid=number, args=dict(sort_index=number)))
    rows: List[int] = []  # When each is free again.
    for event in sorted((event for event in events if event.lane == lane),
                        key=lambda event: (event.start, -event.microseconds)):
      row = next((row for row, free in enumerate(rows) if free <= event.start), len(rows))
      rows[row:row + 1] = [event.start + event.microseconds]
      traced.append(
          dict(ph='X', name=event.name, pid=number, tid=row, ts=event.start, dur=event.microseconds,
               args=event.details))
  return json.dumps(dict(traceEvents=traced, displayTimeUnit='ms'))


def _lane_order(lane):
  if lane in _LANES:
    return 0, _LANES.index(lane), lane
  tower = re.match(r'tower (\d+)', lane)
  if tower:
    return 1, int(tower.group(1)), lane
  return 2, _LAST_LANES.index(lane) if lane in _LAST_LANES else len(_LAST_LANES), lane
