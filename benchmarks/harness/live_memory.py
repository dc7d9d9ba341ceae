"""Live memory: the bytes of tensors that a traced step holds at a time, at most."""

import collections
from typing import Any


def measure_peak(session: Any, fetches: Any) -> int:
  """Runs a step and returns the most bytes of live tensors.

  Args:
    session: a `tf.Session` in one process.
    fetches: of the step.

  A tensor lives from the start of its op to the end of the last op that takes it. Tensors at one
  address at one time are one.
  """
  from tensorflow_v1 import tf
  metadata = tf.RunMetadata()
  session.run(fetches, run_metadata=metadata, options=tf.RunOptions(
      trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True))
  consumers = collections.defaultdict(list)
  for graph in metadata.partition_graphs:
    for node in graph.node:
      for name in node.input:
        if not name.startswith('^'):
          source, _, port = name.partition(':')
          consumers[source, int(port or 0)].append(node.name)
  return _find_peak(_find_buffers(metadata.step_stats, consumers))


def _find_buffers(step_stats, consumers):
  """Returns (start, end, bytes) of every buffer."""
  nodes = [node for device in step_stats.dev_stats for node in device.node_stats]
  ends = {node.node_name: node.all_start_micros + max(node.all_end_rel_micros, 1)
          for node in nodes}
  by_address = collections.defaultdict(list)
  for node in nodes:
    for output in node.output:
      allocation = output.tensor_description.allocation_description
      end = max([ends[node.node_name]] + [ends[name] for name in consumers[
          node.node_name, output.slot] if name in ends])
      if allocation.ptr:
        by_address[allocation.ptr].append(
            (node.all_start_micros, end, allocation.allocated_bytes or allocation.requested_bytes))
  buffers = []
  for intervals in by_address.values():
    last = None
    for start, end, num_bytes in sorted(intervals):
      if last is not None and start < last[1]:
        last = (last[0], max(last[1], end), max(last[2], num_bytes))
      else:
        buffers += [] if last is None else [last]
        last = (start, end, num_bytes)
    buffers.append(last)
  return buffers


def _find_peak(buffers):
  changes = [(start, num_bytes) for start, _, num_bytes in buffers]
  changes += [(end, -num_bytes) for _, end, num_bytes in buffers]
  live = peak = 0
  for _, change in sorted(changes):
    live += change
    peak = max(peak, live)
  return peak
