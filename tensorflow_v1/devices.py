"""What TensorFlow's devices are told, most of it by the environment, and what they can do."""

import ctypes
import os
import re
import sys
from typing import List, Tuple

from tensorflow_v1.load import IS_1, tf

# glibc's settings by their names in the environment and in mallopt: never shrink, and map no block
# below 1 GiB apart.
_MALLOC_SETTINGS = (('MALLOC_TRIM_THRESHOLD_', -1, 2**31 - 1), ('MALLOC_MMAP_THRESHOLD_', -3,
                                                                2**30))

# Whether idle threads that look for work before they sleep hinder the input's; on 1.14 they take it
# up sooner.
SPINNING_HINDERS = not IS_1


def compiles_on_cpus() -> bool:
  """Whether XLA compiles what stands on CPUs, as TF_XLA_FLAGS say."""
  flags = os.environ.get('TF_XLA_FLAGS', '')
  return all(re.search(flag, flags) for flag in (r'tf_xla_auto_jit=(?!-|0)',
      r'tf_xla_cpu_global_jit(?!=(false|0))'))


def get_compute_capabilities() -> List[Tuple[int, int]]:
  """Returns that of each GPU, as (8, 0) for Ampere; nothing where this TensorFlow does not tell, as
  1.14.
  """
  if not hasattr(tf.config.experimental, 'get_device_details'):
    return []
  found = [tf.config.experimental.get_device_details(device).get('compute_capability')
           for device in tf.config.experimental.list_physical_devices('GPU')]
  return [capability for capability in found if capability is not None]


def use_deterministic_kernels() -> None:
  """Choose kernels that repeat to the bit, before the first session: cuDNN's on 1.14, all that have
  one on 2.x.
  """
  os.environ['TF_CUDNN_DETERMINISTIC'] = '1'
  if hasattr(tf.config.experimental, 'enable_op_determinism'):
    tf.config.experimental.enable_op_determinism()


def keep_memory() -> None:
  """Has the memory of tensors on CPUs kept when they are done with; call it before the first
  session.

  malloc hands large blocks back to the system, and gets them again page by page, cleared: an eighth
  of a step of a conv net on 1.14. So 1.14 is told to keep them in a pool. 2.x has one for large
  tensors, and malloc is told to keep the others, which fill gigabytes in a deep net.
  """
  if IS_1:
    os.environ.setdefault('TF_CPU_ALLOCATOR_USE_BFC', '1')
    # By default 64 GB are all that it takes.
    os.environ.setdefault('TF_CPU_BFC_MEM_LIMIT_IN_MB', str(2 ** 24))
  elif sys.platform == 'linux':
    libc = ctypes.CDLL(None)
    for name, parameter, value in _MALLOC_SETTINGS:
      if name not in os.environ and hasattr(libc, 'mallopt'):
        libc.mallopt(parameter, value)


def give_sessions_threads() -> None:
  """Has a session's ops take as many threads inside as its config says; call it before the graph is
  built.

  A process has such threads once, as many as the first device says that is made. On 1.14 that is a
  session's. On 2.x it is eager mode's, by the first function of a data set: so there each device is
  told to have its own.
  """
  if not IS_1:
    os.environ.setdefault('TF_OVERRIDE_GLOBAL_THREADPOOL', '1')
