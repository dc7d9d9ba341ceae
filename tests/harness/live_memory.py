"""Live memory: the bytes that a traced step holds at a time on each device, at most.

TensorFlow's trace tells what each op allocates: for its outputs, whose addresses show which of them
share memory, and for its kernel alone. So the same holds on CPUs and GPUs, whatever the allocator.
What is there before the step does not count: variables, constants, and batches that wait.
"""

import collections
import re
from typing import Any, Dict, List, Tuple

_DEVICE = re.compile(r'device:[A-Z]+:\d+$')
# What these give was made by other threads, before the step or beside it.
_GIVEN = ('Unstage', 'IteratorGetNext', 'IteratorGetNextSync')

Interval = Tuple[int, int, int]  # Start, end, bytes.


def measure_peaks(session: Any, fetches: Any) -> Dict[str, int]:
  """Runs a step and returns the most bytes that each device holds for it, by '/device:CPU:0'.

  A tensor lives from the start of its op to the end of the last op that takes it, and what a kernel
  takes besides as long as its op.
  """
  from tensorflow_v1 import tf
  metadata = tf.RunMetadata()
  session.run(fetches, run_metadata=metadata, options=tf.RunOptions(
      trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True))
  consumers = collections.defaultdict(list)
  given = set()
  for graph in metadata.partition_graphs:
    for node in graph.node:
      if node.op in _GIVEN:
        given.add(node.name)
      for name in node.input:
        if not name.startswith('^'):
          source, _, port = name.partition(':')
          consumers[source, int(port or 0)].append(node.name)
  intervals = _find_intervals(metadata.step_stats, consumers, given)
  return {device: _find_peak(of_device) for device, of_device in intervals.items()}


def measure_peak(session: Any, fetches: Any) -> int:
  """Returns the same of the device that holds most."""
  return max(measure_peaks(session, fetches).values())


def _find_intervals(step_stats, consumers, given):
  """Returns by device the intervals of all buffers and kernels."""
  nodes = [(node, '/' + _DEVICE.search(device.device).group(0)) for device in step_stats.dev_stats
           if _DEVICE.search(device.device) for node in device.node_stats]
  nodes.sort(key=lambda pair: pair[0].all_start_micros)
  ends = {node.node_name: node.all_start_micros + max(node.all_end_rel_micros, 1)
          for node, _ in nodes}
  intervals: Dict[str, List[Interval]] = {}
  # By address the device and interval of the buffer that was there last.
  last: Dict[int, Tuple[str, Interval]] = {}
  for node, device in nodes:
    start, end = node.all_start_micros, ends[node.node_name]
    of_device = intervals.setdefault(device, [])
    taken = sum(memory.total_bytes for memory in node.memory)
    kernel = max((memory.peak_bytes for memory in node.memory), default=0)
    for output in node.output:
      allocation = output.tensor_description.allocation_description
      address = allocation.ptr
      if not address or node.node_name in given:
        continue
      until = max([end] + [ends[name] for name in consumers[node.node_name, output.slot]
                           if name in ends])
      before = last.get(address)
      size = allocation.allocated_bytes or allocation.requested_bytes
      # What shares the memory of an earlier tensor, or comes from another device, takes no more.
      if before and (before[1][1] >= end or taken < size):
        if before[1][1] < until:
          last[address] = before[0], (before[1][0], until, before[1][2])
      elif taken >= size:
        if before:
          intervals[before[0]].append(before[1])
        last[address] = device, (start, until, allocation.requested_bytes)
        taken -= size
        kernel -= size
    if kernel > 0:
      of_device.append((start, end, kernel))
  for device, interval in last.values():
    intervals[device].append(interval)
  return intervals


def _find_peak(intervals):
  changes = [(start, num_bytes) for start, _, num_bytes in intervals]
  changes += [(end, -num_bytes) for _, end, num_bytes in intervals]
  live = peak = 0
  for _, change in sorted(changes):
    live += change
    peak = max(peak, live)
  return peak
