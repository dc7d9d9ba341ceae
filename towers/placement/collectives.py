"""Collectives: gradients of towers and workers summed by TensorFlow's own all-reduce, fused into
few of them.

  tower 0   logits/biases logits/weights │ hidden/biases hidden/weights   the last layer first:
  tower 1   logits/biases logits/weights │ hidden/biases hidden/weights   known first, it travels
                       one all-reduce    │  another                        while others are computed

Neighbours are fused, large or small, up to a limit; a gradient that reaches the limit alone is not
copied. A ring adds up every part of a sum once, in the order of the towers, and passes it on: all
towers get the same bits, and the same in every run.

TensorFlow tells by keys which collectives of different devices and workers belong together, so the
graphs of all workers must have the same. A worker's server remembers group and shape of every key
for as long as it lives: keys are made of these, so that one program after another can be trained on
it.
"""

import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tensorflow_v1 import all_reduce, broadcast, tf
from towers.base.usage_error import UsageError

COLLECTIVES = ('auto', 'ring', 'nccl')
FUSION_BYTES = 4000000
# The keys of two kinds of groups: one device of every worker, and, with its size added, all devices
# that gradients are exchanged between.
_WORKERS, _TOWERS = 1, 2
# The lowest key of a program; those below are for graphs beside it.
_LOWEST_KEY = 1 << 30
_KEYS = 'collective_instance_keys'
_DTYPES = (tf.float32, tf.float64)  # Of rings on both targets; 1.14 has no other.


class AllReduce(NamedTuple):
  """What towers exchange in a run.

  Attributes:
    kind: 'ring' or 'nccl'.
    num_gradients: that are summed, each of which would be a collective of its own.
    num_collectives: that they are fused into.
    num_bytes: of all of them, for one tower or worker.
    num_gathered: sparse gradients, whose rows are gathered instead.
  """
  kind: str
  num_gradients: int
  num_collectives: int
  num_bytes: int
  num_gathered: int = 0


def choose_collective(kind: str, devices: Sequence[str]) -> str:
  """Returns 'ring' or 'nccl', which `auto` takes on GPUs.

  Raises:
    UsageError: an unknown kind, or nccl without GPUs.
  """
  if kind not in COLLECTIVES:
    raise UsageError(f"collective is {kind!r}: choose one of {', '.join(COLLECTIVES)}.")
  has_gpus = all('GPU' in device for device in devices)
  if kind == 'nccl' and not has_gpus:
    raise UsageError("collective is nccl, which runs on GPUs alone, and the towers stand on "
                     f"{', '.join(devices)}: use collective=ring.")
  return 'nccl' if has_gpus and kind == 'auto' else 'ring' if kind == 'auto' else kind


def plan_fusion(sizes: Sequence[Tuple[Any, int]], fusion_bytes: int) -> List[List[int]]:
  """Returns which gradients travel together, as numbers, the last gradient first.

  Args:
    sizes: (dtype, bytes) of each gradient.
    fusion_bytes: of one group at most, unless it is a single gradient; 0 fuses nothing.
  """
  fused_groups: List[List[int]] = []
  is_open: Dict[Any, Tuple[List[int], int]] = {}
  for number in reversed(range(len(sizes))):
    dtype, size = sizes[number]
    fused_group, filled = is_open.get(dtype, ([], 0))
    if not fused_group or filled + size > fusion_bytes:
      fused_group, filled = [], 0
      fused_groups.append(fused_group)
    fused_group.append(number)
    is_open[dtype] = fused_group, filled + size
  return fused_groups


def _make_key(*facts):
  """Returns a key that no other collective of the graph has, and of other graphs only one with the
  same facts.
  """
  keys = tf.get_collection_ref(_KEYS)
  key = zlib.crc32(repr((len(keys), facts)).encode())
  while _LOWEST_KEY + key % _LOWEST_KEY in keys:
    key += 1
  keys.append(_LOWEST_KEY + key % _LOWEST_KEY)
  return keys[-1]


def fuse(values: Sequence[Any]) -> Any:
  """Returns tensors of one dtype as one vector; one alone as it is."""
  return values[0] if len(values) == 1 else tf.concat([tf.reshape(value, [-1]) for value in values],
                                                      0)


def split_fused(fused: Any, shapes: Sequence[Any]) -> List[Any]:
  """Returns the tensors of the static `shapes` that `fuse` has joined."""
  if len(shapes) == 1:
    return [fused]
  return [
      tf.reshape(part, shape)
      for part, shape in zip(tf.split(fused, [shape.num_elements() for shape in shapes]), shapes)
  ]


def sizes_of(values: Sequence[Any]) -> List[Tuple[Any, int]]:
  """Returns (dtype, bytes) of tensors of static shapes."""
  return [(value.dtype, value.shape.num_elements() * value.dtype.size) for value in values]


def sum_fused(shares: Sequence[Sequence[Any]], *, devices: Sequence[str], kind: str,
              fusion_bytes: int = FUSION_BYTES,
              num_workers: int = 1) -> Tuple[List[List[Any]], AllReduce]:
  """Sums tensors of several devices; returns the sums as they are found on each device, and what
  was exchanged.

  Whoever asks for a sum on the first device runs the collectives of all of them: one alone would
  wait for ever.

  Args:
    shares: for each device its tensors, of the same static shapes and dtypes on every device.
    devices: of this worker.
    kind: 'ring' or 'nccl'.
    fusion_bytes: see `plan_fusion`.
    num_workers: that have as many devices each, and sum the same.

  Raises:
    UsageError: a dtype that no all-reduce can sum.
  """
  for share in shares[0]:
    if share.dtype not in _DTYPES:
      raise UsageError(f'{share.op.name} is of {share.dtype.name}, which no all-reduce can sum: '
                       'use variables=host, first or balanced, and one worker.')
  sizes = sizes_of(shares[0])
  fused_groups = plan_fusion(sizes, fusion_bytes)
  sums: List[List[Any]] = [[None] * len(sizes) for _ in devices]
  group_size = len(devices) * num_workers
  for count, numbers in enumerate(fused_groups, 1):
    key = _make_key('sum',
                    [(shares[0][number].dtype, shares[0][number].shape) for number in numbers],
                    group_size)
    fused = []
    for of_device, device in zip(shares, devices):
      with tf.device(device), tf.name_scope(f'all_reduce_{count}'):
        value = tf.identity(fuse([of_device[number] for number in numbers]))
        fused.append(
            all_reduce(value, group_size=group_size, group_key=_TOWERS + group_size,
                       instance_key=key, kind=kind))
    for place, (total, device) in enumerate(zip(fused, devices)):
      with tf.device(device), tf.name_scope(f'split_{count}'):
        if place == 0:
          with tf.control_dependencies([other.op for other in fused]):
            total = tf.identity(total)
        for number, part in zip(numbers,
                                split_fused(total,
                                            [shares[0][number].shape for number in numbers])):
          sums[place][number] = part
  return sums, AllReduce(kind, len(sizes), len(fused_groups), sum(size for _, size in sizes))


def sum_of_workers(value: Any, *, num_workers: int, key: Optional[int] = None) -> Any:
  """Returns the sum of the workers' tensors, on the device where it is called.

  Args:
    value: this worker's.
    num_workers: that call it.
    key: in a graph beside that of the program, one below 2 ** 30 that no other graph has.
  """
  key = key or _make_key('sum of workers', value.shape, value.dtype, num_workers)
  return all_reduce(tf.identity(value), group_size=num_workers, group_key=_WORKERS,
                    instance_key=key, kind='ring')


def broadcast_value(value: Any, *, num_workers: int, is_source: bool) -> Any:
  """Returns the value of the one worker that is the source; the others' tells static shape and
  dtype.
  """
  key = _make_key('hand out', value.shape, value.dtype, num_workers)
  return broadcast(value if is_source else None, value, group_size=num_workers, group_key=_WORKERS,
                   instance_key=key)
