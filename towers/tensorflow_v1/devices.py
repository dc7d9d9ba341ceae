"""Settings of TensorFlow's devices, most of them by the environment, and what devices can do."""

import contextlib
import os
import re
from typing import Iterator, List, Optional, Sequence, Tuple

from tensorflow.python.client.session import tf_session

from towers.tensorflow_v1.load import CHOOSES_BATCH_NORM, IS_1, PERSISTENT_BATCH_NORM, tf

_XLA_ON_CPUS = (r'tf_xla_auto_jit=(?!-|0)', r'tf_xla_cpu_global_jit(?!=(false|0))')

# Whether idle threads, which look for work before they sleep, slow the input's threads down. On
# 1.14 they take up the input's work sooner.
SPINNING_HINDERS = not IS_1


def compiles_on_cpus() -> bool:
  """Returns whether TF_XLA_FLAGS let XLA compile ops on CPUs."""
  flags = os.environ.get('TF_XLA_FLAGS', '')
  return all(re.search(pattern, flags) for pattern in _XLA_ON_CPUS)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
  """Keeps XLA from compiling what a session prepares meanwhile, for that runs a few times alone."""
  given = re.search(r'tf_xla_min_cluster_size=(\d+)', os.environ.get('TF_XLA_FLAGS', ''))
  tf_session.TF_SetXlaMinClusterSize(2 ** 31 - 1)
  try:
    yield
  finally:
    tf_session.TF_SetXlaMinClusterSize(int(given.group(1)) if given else 4)


def get_compute_capabilities() -> List[Tuple[int, int]]:
  """Returns each GPU's compute capability, (8, 0) for Ampere; on 1.14 an empty list."""
  if not hasattr(tf.config.experimental, 'get_device_details'):
    return []
  found = [tf.config.experimental.get_device_details(device).get('compute_capability')
           for device in tf.config.experimental.list_physical_devices('GPU')]
  return [capability for capability in found if capability is not None]


def use_deterministic_kernels() -> None:
  """Chooses cuDNN's deterministic kernels, before the first session."""
  os.environ['TF_CUDNN_DETERMINISTIC'] = '1'
  if CHOOSES_BATCH_NORM:
    os.environ[PERSISTENT_BATCH_NORM] = '0'


def uses_persistent_batch_norm() -> bool:
  """Returns whether cuDNN normalises batches of GPUs by kernels that may overflow.

  Its documentation warns of them for some ranges of input (CUDNN_BATCHNORM_SPATIAL_PERSISTENT).
  """
  return os.environ.get(PERSISTENT_BATCH_NORM, '0').lower() in ('1', 'true')


def use_tf32(is_allowed: bool) -> None:
  """Lets GPUs from Ampere on round the factors of float32 products to 10 bits, or not.

  TensorFlow 2.x does by default. The CUDA of 1.14 knows no such products.
  """
  if hasattr(tf.config.experimental, 'enable_tensor_float_32_execution'):
    tf.config.experimental.enable_tensor_float_32_execution(is_allowed)


def set_gpu_memory(*, growth: bool, fraction: Optional[float], limits: Sequence[int]) -> None:
  """Gives eager mode's GPUs on 2.x the memory that a session asks for; call it before the graph.

  There the first function of a data set makes eager mode's devices, and a process shares the
  memory of a GPU as its first device has taken it: a session's own config would come too late, and
  here raises a RuntimeError.

  It takes what is needed (`growth`), or a `fraction` of each GPU, or divides the first one into
  logical devices with `limits` in megabytes.
  """
  if IS_1:
    return
  gpus = tf.config.experimental.list_physical_devices('GPU')
  if limits:
    tf.config.experimental.set_visible_devices(gpus[:1], 'GPU')
    tf.config.experimental.set_virtual_device_configuration(
        gpus[0], [tf.config.experimental.VirtualDeviceConfiguration(memory_limit=limit)
                  for limit in limits])
  elif growth:
    for gpu in gpus:
      tf.config.experimental.set_memory_growth(gpu, True)
  elif fraction is not None:  # Which no public function sets.
    from tensorflow.python.eager import context
    config = tf.ConfigProto()
    config.gpu_options.per_process_gpu_memory_fraction = fraction
    eager = context.context()
    if eager._initialized and eager._config != config:
      raise RuntimeError('eager mode has made its devices')
    eager._config = config


def keep_memory() -> None:
  """Keeps the memory of freed tensors on CPUs for later ones; call it before the first session.

  On 1.14 malloc returns large blocks to the system, which clears them and gives them back page by
  page: a seventh of a step of ResNet-20. So 1.14 gets the pool that 2.x has.
  """
  if IS_1:
    os.environ.setdefault('TF_CPU_ALLOCATOR_USE_BFC', '1')
    # The default is 64 GB.
    os.environ.setdefault('TF_CPU_BFC_MEM_LIMIT_IN_MB', str(2 ** 24))


def give_sessions_threads() -> None:
  """Makes a session's ops use its config's intra-op threads; call it before the graph is built.

  A process has one pool of these threads, as large as its first device asks for. On 1.14 that is a
  session's device. On 2.x it is eager mode's, made by the first function of a data set, so there
  each device gets a pool of its own.
  """
  if not IS_1:
    os.environ.setdefault('TF_OVERRIDE_GLOBAL_THREADPOOL', '1')
