"""Devices: where towers stand, and a session that has them.

Without a GPU the same towers stand on virtual CPU devices, so that a program is tried anywhere; but
never silently: `auto` says so, and fewer GPUs than asked for is an error before anything is built.
"""

import os
from typing import Any, List, NamedTuple, Optional

from tensorflow_v1 import SPINNING_HINDERS, compiles_on_cpus, give_sessions_threads, keep_memory, tf
from towers.base.cores import count_cores, count_cores_of_each
from towers.base.usage_error import UsageError
from towers.placement.workers import ALONE, Workers

DEVICE_KINDS = ('auto', 'gpu', 'cpu')
GRAPH_REWRITERS = ('auto', 'on', 'off')
_TOWERS_WITHOUT_GPU = 2
# Of deep nets, whose steps do not notice what TensorFlow's simplifying saves, and whose gradients
# fill the memory.
_DEEP_OPS = 10000
# From which size on malloc takes memory from the system and gives it back.
_LARGE_BYTES = 128 * 1024
# What TensorFlow understands as: no threads, the caller's own. It has that for graphs on one
# device.
_CALLERS_THREAD = -1
# What is fed, which TensorFlow does not allocate, and numbers of axes, whose count gradients do not
# tell.
_NOT_KEPT = ('Placeholder', 'BroadcastGradientArgs')
_INTRA_THREADS = 'TF_NUM_INTRAOP_THREADS'
# Beyond this many ops, two at a time are there to be run in most of a step ...
_MANY_OPS = 1000
# ... and threads that help with one whose tensors are smaller cost more than they do.
_LITTLE_BYTES = 80 * 1024


class Devices(NamedTuple):
  """Where towers stand.

  Attributes:
    kind: 'GPU' or 'CPU'.
    names: for each tower its device.
    notice: what the user must know of the choice, or ''.
  """
  kind: str
  names: List[str]
  notice: str


def count_gpus() -> int:
  """Returns how many GPUs TensorFlow can use, without taking hold of any."""
  return len(tf.config.experimental.list_physical_devices('GPU'))


def build_devices(num_towers: Optional[int] = None, kind: str = 'auto') -> Devices:
  """Chooses the towers' devices; call it before the graph is built.

  Virtual CPU devices are then given the threads that `build_session_config` counts.

  Args:
    num_towers: one device each. None for as many as there are GPUs, or 2 virtual CPU devices.
    kind: 'gpu', 'cpu' for virtual CPU devices, or 'auto': GPUs when there is any.

  Raises:
    UsageError: fewer GPUs than towers, none with 'gpu', or an unknown kind.
  """
  if kind not in DEVICE_KINDS:
    raise UsageError(f"device is {kind!r}: choose one of {', '.join(DEVICE_KINDS)}.")
  num_gpus = 0 if kind == 'cpu' else count_gpus()
  if num_towers is None:
    num_towers = num_gpus or (1 if kind == 'gpu' else _TOWERS_WITHOUT_GPU)
  if num_towers < 1:
    raise UsageError(f'num_gpus is {num_towers}: at least 1 tower is needed.')
  if kind == 'gpu' or num_gpus:
    if num_gpus == 0:
      raise UsageError(f'device is gpu, but TensorFlow {tf.__version__} sees 0: see whether '
                       'nvidia-smi lists any and whether the CUDA libraries of this TensorFlow '
                       'are installed, or use virtual CPU devices with --device=cpu.')
    if num_gpus < num_towers:
      raise UsageError(f'num_gpus is {num_towers}, but TensorFlow {tf.__version__} sees '
                       f'{num_gpus}: use --num_gpus={num_gpus}, make the others visible '
                       '(CUDA_VISIBLE_DEVICES), or try the program on virtual CPU devices with '
                       '--device=cpu.')
    return Devices('GPU', [f'/device:GPU:{tower}' for tower in range(num_towers)], '')
  give_sessions_threads()
  notice = '' if kind == 'cpu' else (f'no GPU is visible to TensorFlow {tf.__version__}: the '
                                     f'{num_towers} towers stand on virtual CPU devices')
  return Devices('CPU', [f'/device:CPU:{tower}' for tower in range(num_towers)], notice)


def build_session_config(devices: Devices, *, graph_rewriter: str = 'auto',
                         collective: str = 'auto', inter_threads: Optional[int] = None,
                         intra_threads: Optional[int] = None, workers: Workers = ALONE,
                         needs_threads: bool = True) -> Any:
  """Returns the `tf.ConfigProto` of a session, or of a worker's server, that has all towers'
  devices.

  Call it when the graph is built, and before the process has any session: a deep graph is left as
  it is where the rewriter is off, and where tensors on CPUs are large, their memory is kept from
  step to step.

  Args:
    devices: where towers stand.
    graph_rewriter: 'on', 'off', or 'auto': whether TensorFlow rewrites the graph before its first
      run. On GPUs it chooses layouts, and mixed precision rests on it. On CPUs it made no step
      faster where it was measured, and the first step of a deep net several times slower: 'auto'
      leaves it out there, unless XLA compiles. XLA takes constants that are still to be folded for
      the first device's, and fails with towers on others.
    collective: 'ring', 'nccl', or 'auto', as for `average_gradients`.
    inter_threads: ops that run at a time. None for what TF_NUM_INTEROP_THREADS says, or one on each
      core; with GPUs, or a deep graph, one for each tower if these are more: then all get on at the
      same pace, so that gradients meet, and their memory is free, early (0.7 GB of 8 towers of
      NASNet-Large). Small graphs lose more by changing threads, one tower on a CPU whose tensors
      are all small the most: unless its input `needs_threads`, the step's caller runs it.
    intra_threads: threads inside of one op. None for what TF_NUM_INTRAOP_THREADS says, or one on
      each core with GPUs. On virtual CPU devices it is a tower's part of the cores, one at least,
      since towers compute side by side; and half of that part for a graph of many ops with little
      to do each, of which two compute side by side.
    workers: of which this is one.
    needs_threads: whether the input does, see `Inputs`; else it is left to its own thread, which
      makes one batch after the other. Where it does, on 2.x, threads of the session that have
      nothing to do sleep at once.

  Raises:
    UsageError: an unknown value.
  """
  if graph_rewriter not in GRAPH_REWRITERS:
    raise UsageError(f"graph_rewriter is {graph_rewriter!r}: choose one of "
                     f"{', '.join(GRAPH_REWRITERS)}.")
  is_deep = len(tf.get_default_graph().get_operations()) > _DEEP_OPS
  config = tf.ConfigProto()
  config.intra_op_parallelism_threads = intra_threads or _count_intra_threads(devices, is_deep)
  is_small = devices.kind == 'CPU' and not is_deep and not _has_large_tensors()
  # 0 leaves it to TensorFlow, as above. Two at least: an iterator that starts anew blocks one until
  # the other is done.
  config.inter_op_parallelism_threads = inter_threads or (
      0 if 'TF_NUM_INTEROP_THREADS' in os.environ else
      _CALLERS_THREAD if is_small and len(devices.names) * workers.num_workers == 1 and
      not needs_threads else max(count_cores(),
                                 len(devices.names) if devices.kind == 'GPU' or is_deep else 2))
  # On CPUs it ends the process, asked for or not.
  config.experimental.collective_nccl = devices.kind == 'GPU' and collective != 'ring'
  if devices.kind == 'CPU':
    config.device_count['CPU'] = len(devices.names)
    if not is_small:
      keep_memory()
    # An idle thread looks for work for a while before it sleeps, on a core that another worker
    # could use, or the input.
    config.experimental.disable_thread_spinning = (SPINNING_HINDERS and
                                                   needs_threads) or workers.num_workers > 1
  # With GPUs, a model's op without a GPU kernel falls back to the host; the GPUs themselves were
  # counted before.
  config.allow_soft_placement = devices.kind == 'GPU'
  if graph_rewriter == 'off' or (graph_rewriter == 'auto' and devices.kind == 'CPU' and
                                 not compiles_on_cpus()):
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    # Its older part folds constants and joins ops that are equal: a twentieth of a step of a linear
    # model, and 25 microseconds for every op before the first step.
    if is_deep:
      config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
  if workers.num_workers > 1:
    # A server outlives its sessions: without this, so would their variables, and iterators that
    # fetch ahead.
    config.isolate_session_state = True
    # A worker's session sees its own devices alone; with others the first run would wait for their
    # sessions.
    config.device_filters.append(f'/job:worker/task:{workers.rank}')
    # Who gives groups and keys out. On 1.14 collectives between servers that do not know it wait
    # for ever.
    config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
  return config


def _count_intra_threads(devices, is_deep):
  """Returns how many by default; 0 leaves it to TensorFlow: what its environment says, or one on
  each core.
  """
  if devices.kind == 'GPU' or _INTRA_THREADS in os.environ:
    return 0
  count = count_cores_of_each(len(devices.names))
  return count // 2 if count > 1 and (is_deep or _has_little_ops()) else count


def _has_large_tensors():
  """Whether the graph makes tensors whose memory is worth keeping; one of unknown size may be
  large.

  A pool for small ones is slower than malloc: 5 % of a step of a linear model.
  """
  return any(size is None or size >= _LARGE_BYTES for size in _sizes())


def _has_little_ops():
  """Whether the graph is of many ops that have little to do each, as far as its sizes are known."""
  if len(tf.get_default_graph().get_operations()) <= _MANY_OPS:
    return False
  sizes = list(_sizes())
  known = [size for size in sizes if size is not None]
  return 2 * len(known) > len(sizes) and sum(known) < _LITTLE_BYTES * len(known)


def _sizes():
  """Yields bytes of each tensor that the graph makes, None where they are unknown."""
  for op in tf.get_default_graph().get_operations():
    for tensor in op.outputs if op.type not in _NOT_KEPT else ():
      if tensor.dtype not in (tf.resource, tf.variant, tf.string):
        number = tensor.shape.num_elements()
        yield None if number is None else number * tensor.dtype.size
