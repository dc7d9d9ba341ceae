"""Kernels: the memory that those of CPUs take beside their outputs, while they run."""

import functools
import operator
from typing import Callable, Iterable, Sequence

from tensorflow_v1.load import IS_1, tf
from tensorflow_v1.types import Operation, Tensor

TAKING_KERNELS = ('Conv2DBackpropFilter', 'Conv2DBackpropInput', 'MaxPoolGrad')
# Of the matrices that are multiplied at a time, and of those that one thread should not exceed.
_MATRICES_BYTES, _THREAD_BYTES = 30 << 20, 256 << 10


def kernel_bytes(op: Operation, find_shape: Callable[[Tensor], Sequence[int]], *,
                 threads: int) -> int:
  """Returns what the kernel of an op takes on a CPU, besides its outputs.

  TensorFlow's own gradients of convolutions unfold several images into one matrix, as many as fill
  30 MB with the others, however many there are (conv_grad_{filter,input}_ops.cc); those of max
  pooling note where each maximum was (maxpooling_op.cc). On 2.x oneDNN takes next to nothing, where
  it is on, but does not compute in half precision.

  Args:
    op: any.
    find_shape: of a tensor, without unknown axes.
    threads: inside of an op.
  """
  if op.type not in TAKING_KERNELS or _uses_onednn() and op.outputs[0].dtype != tf.half:
    return 0
  if op.type == 'MaxPoolGrad':
    return 8 * multiply(find_shape(op.inputs[1]))
  is_filter = op.type == 'Conv2DBackpropFilter'
  weights = find_shape(op.outputs[0] if is_filter else op.inputs[1])
  pixels = multiply(find_shape(op.inputs[2])[1:3])
  unfolded, channels = multiply(weights[:3]), weights[3]
  item = op.outputs[0].dtype.size
  work = item * (pixels * unfolded + pixels * channels + unfolded * channels)
  images = -(-_MATRICES_BYTES // max(work, 1))
  if not is_filter and work // threads >= _THREAD_BYTES:
    images = 1
  return item * images * pixels * unfolded


def multiply(sizes: Iterable[int]) -> int:
  """Returns the product of sizes, 1 of none."""
  return functools.reduce(operator.mul, sizes, 1)


@functools.lru_cache(maxsize=None)
def _uses_onednn() -> bool:
  """Returns whether oneDNN computes; TF_ENABLE_ONEDNN_OPTS and the processor decide."""
  if IS_1:
    return False
  from tensorflow.python.util import _pywrap_util_port
  return bool(_pywrap_util_port.IsMklEnabled())
