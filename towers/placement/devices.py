"""Devices: where towers stand, and the configuration of a session on them.

Without a GPU the same towers stand on virtual CPU devices, so that a program runs anywhere. But
never silently: `auto` says so, and fewer GPUs than asked for is an error before anything is built.
"""

import os
from typing import List, NamedTuple, Optional, Sequence

from towers.base.cores import count_cores, count_cores_of_each
from towers.base.usage_error import UsageError, check_choice
from towers.placement.gpu_memory import GpuMemory, read_gpu_memory
from towers.placement.workers import ALONE, Workers
from towers.placement.xla import compiles_by_default
from towers.tensorflow_v1 import devices as native
from towers.tensorflow_v1 import tf

DEVICE_KINDS = ('auto', 'gpu', 'cpu')
GRAPH_REWRITERS = ('auto', 'on', 'off')
_TOWERS_WITHOUT_GPU = 2
# A deep net has more ops. Its steps gain nothing from simplifications; its gradients fill memory.
_DEEP_OPS = 10000
# malloc takes blocks from this size on from the system, and returns them.
_LARGE_BYTES = 128 * 1024
# For TensorFlow the caller's thread alone, which it takes by itself for graphs on one device.
_CALLERS_THREAD = -1
# Feeds, which TensorFlow does not allocate, and numbers of axes, which vary in length by gradient.
_NOT_KEPT = ('Placeholder', 'BroadcastGradientArgs')
_INTER_THREADS, _INTRA_THREADS = 'TF_NUM_INTEROP_THREADS', 'TF_NUM_INTRAOP_THREADS'


class Devices(NamedTuple):
  """Where towers stand: 'GPU' or 'CPU', the device of each tower, and the memory taken of GPUs.

  `notice` is a sentence for the user about the choice, or ''.
  """
  kind: str
  names: List[str]
  notice: str
  memory: GpuMemory = GpuMemory()


def count_gpus() -> int:
  """Returns how many GPUs TensorFlow can use, and allocates none of them."""
  return len(tf.config.experimental.list_physical_devices('GPU'))


def build_devices(num_towers: Optional[int] = None, kind: str = 'auto', *,
                  logical_gpus: Optional[int] = None, gpu_memory: Optional[str] = None) -> Devices:
  """Chooses the towers' devices; call it before the graph is built.

  Args:
    num_towers: one device each. None for the number of GPUs, or for 2 virtual CPU devices.
    kind: 'gpu', 'cpu' for virtual CPU devices, or 'auto': GPUs if there are any.
    logical_gpus: that the first GPU is divided into, one for each tower; None to use whole GPUs.
    gpu_memory: 'growth', a fraction or megabytes, see `read_gpu_memory`; None for all memory.
  """
  check_choice('device', kind, DEVICE_KINDS)
  memory = read_gpu_memory(gpu_memory, logical_gpus)
  num_gpus = 0 if kind == 'cpu' else count_gpus()
  if memory.num_logical:
    if num_gpus == 0:
      raise UsageError(f'logical_gpus={logical_gpus} divides a GPU, and TensorFlow '
                       f'{tf.__version__} sees none: use virtual CPU devices with device=cpu '
                       f'and num_towers={logical_gpus}.')
    num_gpus = memory.num_logical
  if num_towers is None:
    num_towers = num_gpus or (1 if kind == 'gpu' else _TOWERS_WITHOUT_GPU)
  if num_towers < 1:
    raise UsageError(f'num_towers={num_towers}: it must be at least 1.')

  if kind == 'gpu' or num_gpus:
    if num_gpus == 0:
      raise UsageError(f'device=gpu, but TensorFlow {tf.__version__} sees 0 GPUs: see whether '
                       'nvidia-smi lists any and whether the CUDA libraries of this TensorFlow '
                       'are installed, or use virtual CPU devices with device=cpu.')
    if num_gpus < num_towers:
      raise UsageError(f'num_towers={num_towers}, but TensorFlow {tf.__version__} sees {num_gpus} '
                       f'GPUs: use num_towers={num_gpus}, make the others visible '
                       '(CUDA_VISIBLE_DEVICES), or try the program on virtual CPU devices with '
                       'device=cpu.')
    try:
      native.set_gpu_memory(growth=memory.growth, fraction=memory.fraction, limits=memory.limits)
    except RuntimeError as error:
      raise UsageError(
          'gpu_memory and logical_gpus come too late, since this process uses its GPUs already: '
          f'{error}. Build this program in a process of its own.') from error
    return Devices('GPU', [f'/device:GPU:{tower}' for tower in range(num_towers)], '', memory)

  native.give_sessions_threads()
  towers = 'tower stands' if num_towers == 1 else f'{num_towers} towers stand'
  notice = '' if kind == 'cpu' else (f'no GPU is visible to TensorFlow {tf.__version__}: the '
                                     f'{towers} on virtual CPU devices')
  return Devices('CPU', [f'/device:CPU:{tower}' for tower in range(num_towers)], notice)


def check_devices(names: Sequence[str]) -> None:
  """Refuses names of devices without a type and an index, which collectives and a clone need."""
  for name in names:
    try:
      spec = tf.DeviceSpec.from_string(name)
    except ValueError:
      spec = tf.DeviceSpec()
    if spec.device_type is None or spec.device_index is None:
      raise UsageError(f'devices has {name!r}: name the type and the index of each device, such as '
                       '/device:GPU:0.')


def build_session_config(devices: Devices, *, graph_rewriter: str = 'auto',
                         collective: str = 'auto', inter_threads: Optional[int] = None,
                         intra_threads: Optional[int] = None, workers: Workers = ALONE,
                         needs_threads: bool = True, precision: str = 'float32') -> tf.ConfigProto:
  """Returns the config of a session, or of a worker's server, with all towers' devices.

  Call it when the graph is built, and before the process opens any session.

  Args:
    devices, collective, workers, precision: as of the program.
    graph_rewriter: 'on', 'off' or 'auto': whether TensorFlow rewrites the graph before its first
      run. On GPUs it chooses layouts, which mixed precision needs. On CPUs it makes no step faster,
      and the first one of a deep net several times slower: 'auto' is off there, unless XLA
      compiles, which takes constants that are not folded yet for the first device's.
    inter_threads: ops that run at a time. None for TF_NUM_INTEROP_THREADS, or else one for each
      core. With GPUs or a deep graph it is at least one for each tower: then gradients meet and
      free their memory early (0.7 GB for 8 towers of NASNet-Large). One tower on a CPU whose
      tensors are all small is run by the step's caller.
    intra_threads: threads inside of one op. None for TF_NUM_INTRAOP_THREADS, or else one for each
      core with GPUs, and for virtual CPU devices a tower's share of the cores.
    needs_threads: whether the input needs the session's threads, see `Inputs`.
  """
  check_choice('graph_rewriter', graph_rewriter, GRAPH_REWRITERS)
  on_gpus, num_towers = devices.kind == 'GPU', len(devices.names)
  is_deep = len(tf.get_default_graph().get_operations()) > _DEEP_OPS
  is_small = not on_gpus and not is_deep and not _has_large_tensors()

  if not intra_threads and not on_gpus and _INTRA_THREADS not in os.environ:
    intra_threads = count_cores_of_each(num_towers)
  if not inter_threads and _INTER_THREADS not in os.environ:
    runs_in_caller = is_small and num_towers * workers.num_workers == 1 and not needs_threads
    # At least two, since an iterator that starts anew blocks one until the other is done.
    fewest = num_towers if on_gpus or is_deep else 2
    inter_threads = _CALLERS_THREAD if runs_in_caller else max(count_cores(), fewest)

  config = tf.ConfigProto()  # TensorFlow chooses a number of threads that is 0.
  config.intra_op_parallelism_threads = intra_threads or 0
  config.inter_op_parallelism_threads = inter_threads or 0
  if on_gpus:
    config.experimental.collective_nccl = collective != 'ring' and not devices.memory.num_logical
    # An op without a GPU kernel falls back to the host. Missing GPUs were an error before.
    config.allow_soft_placement = True
    devices.memory.write(config.gpu_options)
    # Batches are copied to GPUs from memory that need not be pinned first.
    config.gpu_options.force_gpu_compatible = True
    if compiles_by_default(devices.kind, precision):
      config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_2
  else:
    # With it on CPUs the process ends, even if no op asks for it.
    config.experimental.collective_nccl = False
    config.device_count['CPU'] = num_towers
    # Before it sleeps, an idle thread spins on a core that another worker or the input could use.
    config.experimental.disable_thread_spinning = (
        (native.SPINNING_HINDERS and needs_threads) or workers.num_workers > 1)
    if not is_small:
      native.keep_memory()
  if graph_rewriter == 'off' or (
      graph_rewriter == 'auto' and not on_gpus and not native.compiles_on_cpus()):
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    # Its older part folds constants and merges equal ops. It saves a twentieth of a step of a
    # linear model, and takes 25 microseconds for each op before the first step.
    if is_deep:
      config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
  if workers.num_workers > 1:
    # A server outlives its sessions: else their variables and iterators would live as long.
    config.isolate_session_state = True
    # A worker's session sees its own devices alone, and waits for no session of others.
    config.device_filters.append(f'/job:worker/task:{workers.rank}')
    # The leader gives out groups and keys. On 1.14 collectives hang between servers without one.
    config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
  return config


def _has_large_tensors():
  """Returns whether any tensor of the graph may be large: its size is, or is unknown.

  Ops on large tensors gain from threads, and on 1.14 from a pool, which slows down small ones.
  """
  for op in tf.get_default_graph().get_operations():
    for tensor in op.outputs if op.type not in _NOT_KEPT else ():
      if tensor.dtype not in (tf.resource, tf.variant, tf.string):
        num_elements = tensor.shape.num_elements()
        if num_elements is None or num_elements * tensor.dtype.size >= _LARGE_BYTES:
          return True
  return False
