"""Sizes: the bytes of a tensor, by its static shape; in words; and whose memory it shares."""

from tensorflow_v1 import Tensor, tf

# Ops that read no values: what they take need not be there.
READS_SHAPES = ('Shape', 'ShapeN', 'Size', 'Rank')
# Ops whose outputs share the memory of their inputs.
_ALIASES = ('Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StopGradient', 'Switch', 'Merge')


def find_source(tensor: Tensor) -> Tensor:
  """Returns the tensor whose memory a tensor shares, often itself."""
  while tensor.op.type in _ALIASES and len(tensor.op.inputs):
    tensor = tensor.op.inputs[0]
  return tensor


def tensor_bytes(tensor: Tensor, *, rows: int, unknown: int = 0) -> int:
  """Returns a tensor's bytes, 0 for one without a dtype of numbers or a number of axes.

  Args:
    tensor: any.
    rows: the size of its first axis, if that is unknown.
    unknown: the size of every other axis whose size is unknown.
  """
  if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.ndims is None:
    return 0
  num_bytes = tensor.dtype.base_dtype.size
  for axis, size in enumerate(tensor.shape.as_list()):
    num_bytes *= (unknown if axis else rows) if size is None else size
  return num_bytes


def format_bytes(num_bytes: float) -> str:
  """Returns bytes in words: '512 bytes', '3.6 MB' or '1.25 GB'."""
  if num_bytes < 1e4:
    return f'{int(num_bytes):,} bytes'
  if num_bytes < 1e6:
    return f'{num_bytes / 1e3:.0f} kB'
  return f'{num_bytes / 1e6:.1f} MB' if num_bytes < 1e9 else f'{num_bytes / 1e9:.2f} GB'
