"""Collectives: TensorFlow's all-reduce of the gradients of towers and workers, packed into a few.

  tower 0   logits/biases logits/weights │ hidden/biases hidden/weights   the last layer first, for
  tower 1   logits/biases logits/weights │ hidden/biases hidden/weights   its gradients are ready
            one all-reduce               │ the next                       first

A ring adds up each part of a sum once, in the order of the towers, and passes it on: all towers get
the same bits, and the same in every run. Between several workers, the towers of each add up first,
and one of them, in turn, takes part in a ring that has a member for each worker:

  worker 0   tower 0 ─┐                    ┌─► tower 0
             tower 1 ─┴─► sum ─┐      ┌────┴─► tower 1
                               ├─ all-reduce, perhaps of 16 bits
  worker 1   tower 0 ─┐        │      └────┬─► tower 0
             tower 1 ─┴─► sum ─┘           └─► tower 1

TensorFlow matches the collectives of devices and workers by keys, the same in the graphs of all
workers. A worker's server remembers the group and shape of each key, so keys follow from a hash of
these, and a server can train one program after another. With NCCL, TensorFlow starts those of a
device by falling keys: these follow the backward pass, so that the all-reduce runs beside it.
"""

import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from towers.base.usage_error import UsageError, check_choice
from towers.graph.ordered_sum import add_all
from towers.placement.host import is_gpu
from towers.placement.packing import pack, plan_packs, unpack
from towers.tensorflow_v1 import DType, Operation, Tensor, collectives, tf

COLLECTIVES = ('auto', 'ring', 'nccl')
WIRES = ('float32', 'float16', 'bfloat16')
FUSION_BYTES = 4000000
# The keys of three kinds of groups, each plus what tells its groups apart: one device of each
# worker for single values, the same for gradients, and the devices of one worker.
_VALUES, _WORKERS, _TOWERS = 0, 1 << 10, 2 << 10
# The lowest keys of a program: of single values, and of gradients. Other graphs have lower ones.
_LOWEST_KEY = 1 << 30
_LOWEST_OF_GRADIENTS = _LOWEST_KEY + (1 << 29)
_NUM_KEYS = 1 << 29
_KEYS = 'collective_instance_keys'
_DTYPES = (tf.float32, tf.float64)  # Of rings on both targets; 1.14 has no others.


class AllReduce(NamedTuple):
  """What a step's all-reduce sums, by ring or nccl."""
  kind: str
  num_gradients: int  # The tensors that are summed, in `num_collectives`.
  num_collectives: int
  num_bytes: int  # Their size as they are sent, for one tower or worker.
  group_size: int  # How many shares a collective sums, of towers of one worker or of workers.
  num_workers: int = 1  # Or the workers, each of which has summed its towers before.
  num_gathered: int = 0  # The sparse gradients, whose rows are gathered instead.
  wire: Optional[DType] = None  # That gradients are sent in, if it is not their own.

  @property
  def num_messages(self) -> int:
    """The messages of a ring that wait for one another (Patarasuk and Yuan 2009)."""
    return 2 * (self.group_size - 1)

  @property
  def sent_bytes(self) -> int:
    """What each member of a ring sends, and receives, in all of these messages."""
    return self.num_bytes * self.num_messages // self.group_size


def choose_collective(kind: str, devices: Sequence[str]) -> str:
  """Returns 'ring' or 'nccl'; `auto` is nccl where all devices are GPUs."""
  check_choice('collective', kind, COLLECTIVES)
  has_gpus = all(map(is_gpu, devices))
  if kind == 'nccl' and not has_gpus:
    raise UsageError('collective=nccl runs on GPUs alone, and the towers stand on '
                     f"{', '.join(devices)}: use collective=ring.")
  return kind if kind != 'auto' else 'nccl' if has_gpus else 'ring'


def choose_wire(wire: str, *, num_workers: int) -> Optional[DType]:
  """Returns the dtype in which workers send gradients, or None for that of each gradient.

  One worker sends nothing, whatever the wire: a run may go on with fewer workers.
  """
  check_choice('wire', wire, WIRES)
  if wire != 'float32' and not collectives.SUMS_16_BITS:
    raise UsageError(f'wire={wire}, which TensorFlow {tf.__version__} cannot sum between '
                     'workers: use wire=float32, or TensorFlow 2.x.')
  return None if wire == 'float32' or num_workers == 1 else tf.as_dtype(wire)


def _make_keys(count, *facts, lowest=_LOWEST_KEY):
  """Returns new keys of this graph that fall by one; another graph has them for the same facts."""
  known = tf.get_collection_ref(_KEYS)
  last = zlib.crc32(repr((len(known), facts)).encode())
  while True:
    keys = [lowest + last % (_NUM_KEYS - count) + index for index in reversed(range(count))]
    if set(known).isdisjoint(keys):
      known.extend(keys)
      return keys
    last += count


def sum_packed(shares: Sequence[Sequence[Tensor]], *, devices: Sequence[str], kind: str,
               pack_bytes: int = FUSION_BYTES, num_workers: int = 1,
               wires: Sequence[Optional[DType]] = ()) -> Tuple[List[List[Tensor]], AllReduce]:
  """Sums the tensors of several devices; returns each device's sums, and what was summed.

  The tensors have the same static shapes and dtypes on every device of every worker; `wires` are
  their dtypes of 16 bits between workers, None for a tensor's own, or empty where all have these.
  """
  first = shares[0]
  for share in first:
    _check_dtype(share)
  wires = wires or [None] * len(first)
  sizes = [((share.dtype, wire), share.shape.num_elements() * (wire or share.dtype).size)
           for share, wire in zip(first, wires)]
  packs = plan_packs(sizes, pack_bytes)
  # Those of several workers take turns on the devices.
  homes = [devices[count % len(devices)] for count in range(len(packs))]
  facts = [(home, wires[indices[0]], [(first[index].dtype, first[index].shape)
                                      for index in indices]) for home, indices in zip(homes, packs)]
  sums: List[List[Any]] = [[None] * len(sizes) for _ in devices]
  group_size = num_workers if num_workers > 1 else len(devices)

  keys = _make_keys(len(packs), 'sum', facts, group_size, lowest=_LOWEST_OF_GRADIENTS)
  for count, (indices, home, key) in enumerate(zip(packs, homes, keys), 1):
    with tf.name_scope(f'all_reduce_{count}'):
      packed = []
      for of_device, device in zip(shares, devices):
        with tf.device(device):
          packed.append(tf.identity(pack([of_device[index] for index in indices])))
      ring = dict(group_size=group_size, instance_key=key, kind=kind)
      if num_workers == 1:
        totals = _sum_of_towers(packed, devices, **ring)
      else:
        totals = [_sum_of_workers(packed, home, wires[indices[0]], **ring)] * len(devices)
    shapes = [first[index].shape for index in indices]
    for of_device, total, device in zip(sums, totals, devices):
      with tf.device(device), tf.name_scope(f'split_{count}'):
        total = total if total.device == device else tf.identity(total)
        for index, part in zip(indices, unpack(total, shapes)):
          of_device[index] = part

  return sums, AllReduce(kind, len(sizes), len(packs), sum(size for _, size in sizes),
                         group_size, num_workers, wire=next(filter(None, wires), None))


def _sum_of_towers(shares, devices, **ring):
  """Returns the sum over the devices of the only worker, on each device."""
  totals = []
  for share, device in zip(shares, devices):
    with tf.device(device):
      totals.append(collectives.all_reduce(share, group_key=_TOWERS + len(devices), **ring))
  # A collective that runs alone hangs: whatever needs one of them runs all.
  with tf.device(devices[0]), tf.control_dependencies([total.op for total in totals[1:]]):
    totals[0] = tf.identity(totals[0])
  return totals


def _sum_of_workers(shares, home, wire, **ring):
  """Returns the sum over the devices of all workers, on `home`, which takes part for this one's."""
  with tf.device(home):
    share = add_all(shares)
    sent = share if wire is None else tf.cast(share, wire)
    total = collectives.all_reduce(sent, group_key=_WORKERS + _code_of(home), **ring)
    return total if wire is None else tf.cast(total, share.dtype)


def meet_towers(devices: Sequence[str], kind: str) -> Operation:
  """Returns an op to run before the first step, in which the towers of the only worker meet.

  If a tower fails in a step, TensorFlow 1.14 ends the collectives that wait for it only if they
  have met before.
  """
  with tf.name_scope('meet_towers'):
    sums, _ = sum_packed([[tf.zeros([])] for _ in devices], devices=devices, kind=kind)
  return sums[0][0].op


def _code_of(device):
  """Returns a number for a device: a group of one worker's GPU and another's CPU would be none."""
  spec = tf.DeviceSpec.from_string(device)
  return 2 * spec.device_index + (spec.device_type == 'GPU')


def _check_dtype(share):
  if share.dtype not in _DTYPES:
    raise UsageError(f'{share.op.name} is of {share.dtype.name}, which no all-reduce can sum: '
                     'use variables=host, first or balanced, and one worker.')


def sum_one_of_workers(value: Tensor, *, num_workers: int, shape_index: Tensor,
                       num_shapes: int) -> Tensor:
  """Returns the sum of all workers' tensors on the host, whose shape each step chooses of several.

  Each has a `shape_index`, an int32 scalar below `num_shapes`, the same in all. No tensor is empty.
  """
  _check_dtype(value)
  value, group = join_group(value, num_workers, 'sum of one of several', num_shapes)
  return collectives.all_reduce_one_of(value, shape_index=shape_index, **group)


def broadcast_value(value: Tensor, *, num_workers: int, is_source: bool) -> Tensor:
  """Returns the source's value on each worker; others give any tensor of its shape and dtype."""
  value, group = join_group(value, num_workers, 'hand out')
  return collectives.broadcast(value if is_source else None, value, **group)


def join_group(value: Tensor, num_workers: int, what: str,
               num_keys: int = 1) -> Tuple[Tensor, Dict[str, int]]:
  """Returns a value on the device of the call, and its group of all workers and first key."""
  keys = _make_keys(num_keys, what, value.shape, value.dtype, num_workers)
  value = tf.identity(value)
  return value, dict(group_size=num_workers, group_key=_VALUES + _code_of(value.device),
                     instance_key=min(keys))
