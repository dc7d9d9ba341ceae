"""Timeline: when each op of some steps ran, as a trace for Chrome and Perfetto.

  session.run   ├── step 7 ──────────────┤├── step 8 ─────────────┤   one lane for each part of the
  input              ├ get next ┤                                     straight line, on whatever
  staging       ├ get ┤           ├ put ┤                             device its ops are
  tower 0            ├ Conv2D ┤├ MatMul ┤ …
  tower 1             ├ Conv2D ┤├ MatMul ┤ …
  update                                 ├ AddN ┤├ apply ┤

Only the traced steps are slower: TensorFlow records each of their ops. The file has Google's "Trace
Event Format": a JSON object of complete events.
"""

import json
import re
import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from towers.base.files import write_whole
from towers.base.output import write_line
from towers.session.session import Session
from towers.tensorflow_v1 import tf
from towers.training.callbacks import Callback

# In the order in which a batch passes them; then come the towers.
_LANES = ['session.run', 'input', 'staging']
_LAST_LANES = ['update', 'validation']
_OP = re.compile(r' = (\w+)\(')


class Event(NamedTuple):
  """A bar of the trace."""
  lane: str  # 'input', 'staging', 'tower 0', …
  name: str  # The op's type, or another text for the bar.
  start: int  # Microseconds since 1970.
  microseconds: int  # Its duration.
  details: Dict[str, str]  # Shown after a click on the bar.


class Timeline(Callback):
  """Traces some steps, and writes the file after the last of them."""

  def __init__(self, path: str, session: Session, *, first: int, last: int, first_step: int,
               warn: Callable[[str], None] = write_line):
    """Starts to trace if the next step is one to trace."""
    self._path, self._session, self._first, self._last = path, session, first, last
    self._warn = warn
    self._events: List[Event] = []
    self._is_tracing = False
    self._is_written = False
    self._switch(first_step)

  def on_step(self, run: Any) -> None:
    """Starts to trace before the first step to trace, and stops after the last one."""
    if self._is_tracing or run.step == self._first - 1:
      self._switch(run.step)

  def on_close(self, run: Any) -> None:
    """Writes the steps traced so far, unless the file is already written."""
    if self._is_tracing:
      self._session.calls.run_by(None)
      self._write()
    elif not self._is_written:
      self._warn(f'WARNING: no step from {self._first} to {self._last} was run, so {self._path} is '
                 'not written')

  def _switch(self, step):
    is_tracing = self._first <= step + 1 <= self._last
    if is_tracing != self._is_tracing:
      self._is_tracing = is_tracing
      self._session.calls.run_by(self._run if is_tracing else None)
      if not is_tracing:
        self._write()

  def _run(self, run, fetches):
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    metadata = tf.RunMetadata()
    start = time.time()
    results = run(fetches, options=options, run_metadata=metadata)
    microseconds = int((time.time() - start) * 1e6)
    self._events.append(Event(lane='session.run', name=f'step {self._session.step + 1}',
                              start=int(start * 1e6), microseconds=microseconds, details={}))
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
  """Returns the bars of one session run, from its RunMetadata's `step_stats`."""
  events = []
  for device in step_stats.dev_stats:
    # Beside the threads of data sets, 1.14 lists each op here once more.
    is_host_threads = device.device == '/host:CPU'
    for node in device.node_stats:
      if node.node_name == '_SOURCE' or (is_host_threads and '::' not in node.node_name):
        continue
      match = _OP.search(node.timeline_label)
      name = match.group(1) if match else re.split(r'::|:|/', node.node_name)[-1]
      details = dict(op=node.node_name, device=device.device, label=node.timeline_label)
      events.append(Event(
          lane=find_lane(node.node_name, device.device), name=name, start=node.all_start_micros,
          microseconds=max(node.all_end_rel_micros, 1), details=details))
  return events


def find_lane(op: str, device: str = '') -> str:
  """Returns the lane of an op, which follows from its name.

  The streams of a GPU have lanes of their own: they run the kernels that a tower's lane starts.
  """
  scopes = op.split('/')
  takes_next = any(scope.startswith('next_') for scope in scopes)
  if 'Iterator::' in op or scopes[0] == 'switch' or takes_next:
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
  """Returns the JSON: a process for each lane, with a row for each bar that overlaps others."""
  lanes = sorted({event.lane for event in events}, key=_lane_order)
  traced: List[Dict[str, Any]] = []
  for index, lane in enumerate(lanes):
    traced.append(dict(ph='M', name='process_name', pid=index, args=dict(name=lane)))
    traced.append(dict(ph='M', name='process_sort_index', pid=index, args=dict(sort_index=index)))
    in_lane = sorted((event for event in events if event.lane == lane),
                     key=lambda event: (event.start, -event.microseconds))
    row_ends: List[int] = []
    for event in in_lane:
      row = next((row for row, end in enumerate(row_ends) if end <= event.start), len(row_ends))
      row_ends[row:row + 1] = [event.start + event.microseconds]
      traced.append(dict(ph='X', name=event.name, pid=index, tid=row, ts=event.start,
                         dur=event.microseconds, args=event.details))
  return json.dumps(dict(traceEvents=traced, displayTimeUnit='ms'))


def _lane_order(lane):
  if lane in _LANES:
    return 0, _LANES.index(lane), lane
  tower = re.match(r'tower (\d+)', lane)
  if tower:
    return 1, int(tower.group(1)), lane
  return 2, _LAST_LANES.index(lane) if lane in _LAST_LANES else len(_LAST_LANES), lane
