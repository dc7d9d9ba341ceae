"""Vectors: biases, scales and offsets, which are many and small, travel between two devices as one.

  weights     a, b, c on the host    ──► joined, once ──► tower 3 ──► a, b, c
  gradients   a, b, c on each tower  ──► joined ──► host ──► one sum ──► a, b, c

Every tensor that goes to another device costs two ops and a message, however small it is; half of the variables of a
deep net are vectors. No bit of them changes.
"""

from typing import Any, Dict, List, Sequence, Tuple

from tensorflow_v1 import tf

# A larger one is worth a message of its own, and joining it a copy.
_LARGEST_BYTES = 65536


def group_vectors(tensors: Sequence[Any], devices: Sequence[str]) -> List[List[int]]:
  """Returns the numbers of those that are to travel together: of one dtype and device, and two at least.

  Args:
    tensors: or None, or `tf.IndexedSlices`, which travel alone.
    devices: for each its device.
  """
  groups: Dict[Tuple[str, Any], List[int]] = {}
  for number, (tensor, device) in enumerate(zip(tensors, devices)):
    if isinstance(tensor, tf.Tensor) and tensor.shape.ndims == 1 and tensor.shape.is_fully_defined() and (
        tensor.shape.num_elements() * tensor.dtype.size <= _LARGEST_BYTES):
      groups.setdefault((device, tensor.dtype), []).append(number)
  return [group for group in groups.values() if len(group) > 1]


def part(joined: Any, like: Sequence[Any]) -> List[Any]:
  """Returns the vectors that `tf.concat` has joined, on the device where it is called; `like` have their sizes."""
  return tf.split(joined, [vector.shape.num_elements() for vector in like])
