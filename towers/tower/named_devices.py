"""Named devices: those that a model names by `tf.device` give way to the tower's.

  tower on a GPU   a GPU of any number is the tower's, a CPU is the host
  tower on a CPU   a GPU or CPU of any number is the tower's

So a model that was written for one device trains on N. One that names two of a kind is split over
them by hand: a single tower stays so, several are refused.
"""

import contextlib
import functools
from typing import Dict, Iterator, Sequence

from towers.base.usage_error import UsageError
from towers.graph.source_lines import format_op, is_ours
from towers.placement.host import HOST, is_gpu
from towers.tensorflow_v1 import Operation, tf

# The file of TensorFlow that opens a device which a model names: that of `rnn_cell.DeviceWrapper`.
_PASSES_ON = 'rnn_cell_impl.py'


@contextlib.contextmanager
def giving_way(devices: Sequence[str]) -> Iterator[None]:
  """Opens a context for a call of the model, in the device of one of the towers on `devices`.

  Raises:
    UsageError: the model names two devices of a kind, and there are several towers.
  """
  named: Dict[Operation, str] = {}

  def give_way(op):
    if not op.device:
      return ''
    # What this library or TensorFlow says inside of the model stays, as that of a variable.
    innermost = next(frame for frame in op.graph._device_function_stack.peek_traceable_objs()
                     if not frame.obj.is_null_merge)
    if is_ours(innermost.filename) and not innermost.filename.endswith(_PASSES_ON):
      device = innermost.obj._device_name_or_function
      return _write_out(device) if isinstance(device, str) else op.device
    named[op] = op.device
    return HOST if 'CPU' in op.device and is_gpu(devices[0]) else ''

  with tf.device(give_way):
    yield
  for kind in ('CPU:', 'GPU:'):
    of_kind = {op: device for op, device in named.items() if kind in device}
    first_ops: Dict[str, Operation] = {}
    for op, device in of_kind.items():
      first_ops.setdefault(device.rpartition(':')[2], op)
    if len(first_ops) < 2:
      continue
    if len(devices) > 1:
      shown = ', '.join(f'{kind}{index} for {format_op(op)}' for index, op in first_ops.items())
      raise UsageError(
          f'The model names {len(first_ops)} devices by tf.device ({shown}), and each of '
          f'{len(devices)} towers has one: leave tf.device out, or use num_towers=1.')
    for op, device in of_kind.items():
      op._set_device(device)


@functools.lru_cache(maxsize=None)
def _write_out(device):
  # TensorFlow's queues say 'CPU', which is no device of an op until it is written out.
  return tf.DeviceSpec.from_string(device).to_string()
