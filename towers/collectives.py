"""Collectives: the towers' gradients summed by TensorFlow's own all-reduce, packed into few of them.

  tower 0   logits/biases logits/weights │ hidden/biases hidden/weights     the last layer first: it is known first,
  tower 1   logits/biases logits/weights │ hidden/biases hidden/weights     and travels while others are computed
                       one all-reduce    │  another

What stands side by side is packed, large or small, until a pack is full; a gradient that fills one alone is not copied.
In a ring every part of a sum is added up once, in the order of the towers, and then handed on: all towers get the same
bits, and the same in every run.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from tensorflow_v1 import all_reduce, tf
from usage_error import UsageError

COLLECTIVES = ('auto', 'ring', 'nccl')
PACK_BYTES = 4000000
_KEYS = 'collective_instance_keys'
_TOWERS = 1  # The key of the group of all towers.
_DTYPES = (tf.float32, tf.float64)  # Of rings on both targets; 1.14 has no other.


class Exchange(NamedTuple):
  """What towers exchange in a run.

  Attributes:
    kind: 'ring' or 'nccl'.
    num_gradients: that are summed, each of which would be a collective of its own.
    num_collectives: that they are packed into.
    num_bytes: of all of them, for one tower.
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
    raise UsageError('collective is %r: choose one of %s.' % (kind, ', '.join(COLLECTIVES)))
  has_gpus = all('GPU' in device for device in devices)
  if kind == 'nccl' and not has_gpus:
    raise UsageError('collective is nccl, which runs on GPUs alone, and the towers stand on %s: use collective=ring.'
                     % ', '.join(devices))
  return 'nccl' if has_gpus and kind == 'auto' else 'ring' if kind == 'auto' else kind


def plan_packs(sizes: Sequence[Tuple[Any, int]], pack_bytes: int) -> List[List[int]]:
  """Returns which gradients travel together, as numbers, the last gradient first.

  Args:
    sizes: (dtype, bytes) of each gradient.
    pack_bytes: that a pack holds at most, unless it is one gradient; 0 for none that are packed.
  """
  packs: List[List[int]] = []
  is_open: Dict[Any, Tuple[List[int], int]] = {}
  for number in reversed(range(len(sizes))):
    dtype, size = sizes[number]
    pack, filled = is_open.get(dtype, ([], 0))
    if not pack or filled + size > pack_bytes:
      pack, filled = [], 0
      packs.append(pack)
    pack.append(number)
    is_open[dtype] = pack, filled + size
  return packs


def sum_packed(shares: Sequence[Sequence[Any]], *, devices: Sequence[str], kind: str,
               pack_bytes: int = PACK_BYTES) -> Tuple[List[List[Any]], Exchange]:
  """Sums the towers' tensors; returns the sums as they are found on each tower's device, and what was exchanged.

  Whoever asks for a sum on the first tower's device runs the collectives of all towers: one alone would wait for ever.

  Args:
    shares: for each tower its tensors, of the same static shapes and dtypes in every tower.
    devices: for each tower its device.
    kind: 'ring' or 'nccl'.
    pack_bytes: see `plan_packs`.

  Raises:
    UsageError: a dtype that no all-reduce can sum.
  """
  for share in shares[0]:
    if share.dtype not in _DTYPES:
      raise UsageError('%s is of %s, which no all-reduce can sum: use variables=host, first or balanced.'
                       % (share.op.name, share.dtype.name))
  sizes = [(share.dtype, share.shape.num_elements() * share.dtype.size) for share in shares[0]]
  packs = plan_packs(sizes, pack_bytes)
  sums: List[List[Any]] = [[None] * len(sizes) for _ in devices]
  keys = tf.get_collection_ref(_KEYS)
  for pack in packs:
    keys.append(len(keys) + 1)
    packed = []
    for of_tower, device in zip(shares, devices):
      with tf.device(device), tf.name_scope('all_reduce_%d' % keys[-1]):
        values = [of_tower[number] for number in pack]
        value = (tf.identity(values[0]) if len(pack) == 1
                 else tf.concat([tf.reshape(value, [-1]) for value in values], 0))
        packed.append(all_reduce(value, group_size=len(devices), group_key=_TOWERS, instance_key=keys[-1],
                                 kind=kind))
    for tower, (total, device) in enumerate(zip(packed, devices)):
      with tf.device(device), tf.name_scope('unpack_%d' % keys[-1]):
        if tower == 0:
          with tf.control_dependencies([other.op for other in packed]):
            total = tf.identity(total)
        shapes = [shares[0][number].shape for number in pack]
        parts = [total] if len(pack) == 1 else [
            tf.reshape(part, shape)
            for part, shape in zip(tf.split(total, [shape.num_elements() for shape in shapes]), shapes)]
      for number, part in zip(pack, parts):
        sums[tower][number] = part
  return sums, Exchange(kind, len(sizes), len(packs), sum(size for _, size in sizes))
