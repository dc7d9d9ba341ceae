"""TensorFlow as every file here sees it: the 1.x graph API, the same on 1.14 and on 2.x, and silent.

  from tensorflow_v1 import StagingArea, tf

The only file that imports TensorFlow, so all differences between the two targets stand here. Before it imports, what
is installed is looked at (`distributions`).

The import takes 0.8 s on 1.14, of which 0.15 s is the native library, and 1.7 s on 2.21: 0.35 s native, 0.23 s Keras,
the rest some 2,000 Python modules that `tensorflow/__init__.py` names itself. Nothing that is imported here adds to it,
and what Python's garbage collector would, 0.2 and 0.8 s, is left out.
"""

import contextlib
import ctypes
import importlib.util
import logging
import os
import re
import subprocess
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from distributions import check_environment, find_distributions, find_tensorflow
from garbage import uncollected
from usage_error import UsageError

# One of these is there wherever a GPU's driver is: Linux, WSL, Jetson, ROCm.
_GPU_DRIVER_FILES = ('/dev/nvidiactl', '/dev/dxg', '/dev/nvhost-ctrl-gpu', '/dev/kfd')
# Lines of a severity below error, and three "errors" of 2.15 to 2.18 which only say that a library was loaded twice.
_LOAD_NOTICES = r'^[IW]0000 |^WARNING: All log messages before absl::InitializeLog|Unable to register cu[A-Z]+ factory'

# glibc's settings by their names in the environment and in mallopt: never shrink, and map no block below 1 GiB apart.
_MALLOC_SETTINGS = (('MALLOC_TRIM_THRESHOLD_', -1, 2 ** 31 - 1), ('MALLOC_MMAP_THRESHOLD_', -3, 2 ** 30))


def default_log_level(environ: Dict[str, str], driver_files: Sequence[str] = _GPU_DRIVER_FILES) -> str:
  """TF_CPP_MIN_LOG_LEVEL when the user set none: '2' shows C++ errors, '3' nothing but fatal ones.

  Without a GPU both targets log `failed call to cuInit` as an error at the first session, and only 3 hides that; an
  error of an op is a Python exception all the same.
  """
  gpu_may_be_there = (environ.get('CUDA_VISIBLE_DEVICES') not in ('', '-1')
                      and any(os.path.exists(path) for path in driver_files))
  return '2' if gpu_may_be_there else '3'


@contextlib.contextmanager
def _without_load_notices() -> Iterator[None]:
  """Keep the notices of TensorFlow 2.x's native library off stderr while it is loaded.

  Its static initialisers log before any setting is read. Another process drops these lines alone, so that whatever
  else is written, the last words of a crash included, still arrives.
  """
  with contextlib.ExitStack() as undo:
    try:
      stderr = os.dup(2)
      undo.callback(os.close, stderr)
      grep = subprocess.Popen(['grep', '-v', '-E', _LOAD_NOTICES], stdin=subprocess.PIPE, stdout=stderr)
    except OSError:  # No stderr or no grep: a few lines more are better than no TensorFlow.
      yield
      return
    assert grep.stdin is not None
    undo.callback(grep.wait)
    undo.callback(grep.stdin.close)
    os.dup2(grep.stdin.fileno(), 2)
    undo.callback(os.dup2, stderr, 2)
    yield


_distributions = find_distributions(sys.path)
_tensorflow = find_tensorflow(_distributions)
_is_1 = _tensorflow is not None and _tensorflow.numbers < (2, 0)
check_environment(sys.version_info[:2], _distributions, importlib.util.find_spec('tensorflow') is not None)

# What the user set wins, here and below.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', default_log_level(dict(os.environ)))
# Kernels of one GPU are launched by threads of its own, which input pipelines on the host cannot hold up.
os.environ.setdefault('TF_GPU_THREAD_MODE', 'gpu_private')
# 1.14 looks for what XLA could compile even where XLA is off: half of the time to the first step of a deep net. With
# flags of your own, --tf_xla_auto_jit=2 or none at all, it looks again.
if _is_1:
  os.environ.setdefault('TF_XLA_FLAGS', '--tf_xla_clustering_fuel=0')
# tf.keras of TensorFlow 2.16 and later is Keras 3, which builds no graphs; the package tf-keras is Keras 2.
if importlib.util.find_spec('tf_keras') is not None:
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

with uncollected(), contextlib.ExitStack() as _quiet:
  _quiet.enter_context(warnings.catch_warnings())
  warnings.simplefilter('ignore')
  # 1.14 reads the level before it logs anything.
  if os.environ['TF_CPP_MIN_LOG_LEVEL'] not in ('0', '1') and not _is_1:
    _quiet.enter_context(_without_load_notices())
  import tensorflow.compat.v1 as tf
  from tensorflow.core.protobuf import config_pb2
  if _is_1:
    from tensorflow.python import pywrap_tensorflow
    from tensorflow.python.framework import c_api_util
    from tensorflow.python.pywrap_tensorflow_internal import _pywrap_tensorflow_internal as native
  from tensorflow.python.data.ops import dataset_ops
  if not _is_1:
    from tensorflow.python.data.ops import map_op
  from tensorflow.python.framework import importer
  from tensorflow.python.ops import collective_ops
  from tensorflow.python.ops.data_flow_ops import StagingArea
  from tensorflow.python.util import deprecation, tf_stack

# The whole 1.x API is deprecated in 2.x; other warnings of TensorFlow stay visible.
deprecation._PRINT_DEPRECATION_WARNINGS = False
logging.getLogger('tensorflow').setLevel(logging.WARNING)
tf.disable_v2_behavior()
# The 1.14 name: every get_variable gives a resource variable, since ref variables race on CPU devices.
tf.enable_resource_variables()

# Whether idle threads that look for work before they sleep hinder the input's; on 1.14 they take it up sooner.
SPINNING_HINDERS = not _is_1


def load_keras() -> Any:
  """Returns `tf.keras` of the kind that builds graphs, Keras 2.

  Raises:
    UsageError: `tf.keras` is Keras 3, or not there.
  """
  try:
    is_keras_3 = '_tf_keras' in tf.keras.layers.__name__.split('.')
  except ImportError:
    is_keras_3 = True
  if is_keras_3:
    raise UsageError('tf.keras of TensorFlow %s is Keras 3, which builds no graphs. Keras 2 does: pip install '
                     'tf-keras, and set TF_USE_LEGACY_KERAS=1 before anything imports TensorFlow.' % tf.__version__)
  return tf.keras


def compiles_on_cpus() -> bool:
  """Whether XLA compiles what stands on CPUs, as TF_XLA_FLAGS say."""
  flags = os.environ.get('TF_XLA_FLAGS', '')
  return all(re.search(flag, flags) for flag in (r'tf_xla_auto_jit=(?!-|0)', r'tf_xla_cpu_global_jit(?!=(false|0))'))


def get_compute_capabilities() -> List[Tuple[int, int]]:
  """Returns that of each GPU, as (8, 0) for Ampere; nothing where this TensorFlow does not tell, as 1.14."""
  if not hasattr(tf.config.experimental, 'get_device_details'):
    return []
  found = [tf.config.experimental.get_device_details(device).get('compute_capability')
           for device in tf.config.experimental.list_physical_devices('GPU')]
  return [capability for capability in found if capability is not None]


def use_deterministic_kernels() -> None:
  """Choose kernels that repeat to the bit, before the first session: cuDNN's on 1.14, all that have one on 2.x."""
  os.environ['TF_CUDNN_DETERMINISTIC'] = '1'
  if hasattr(tf.config.experimental, 'enable_op_determinism'):
    tf.config.experimental.enable_op_determinism()


def keep_memory() -> None:
  """Has the memory of tensors on CPUs kept when they are done with; call it before the first session.

  malloc hands large blocks back to the system, and gets them again page by page, cleared: an eighth of a step of a conv
  net on 1.14. So 1.14 is told to keep them in a pool. 2.x has one for large tensors, and malloc is told to keep the
  others, which fill gigabytes in a deep net.
  """
  if _is_1:
    os.environ.setdefault('TF_CPU_ALLOCATOR_USE_BFC', '1')
    # By default 64 GB are all that it takes.
    os.environ.setdefault('TF_CPU_BFC_MEM_LIMIT_IN_MB', str(2 ** 24))
  elif sys.platform == 'linux':
    libc = ctypes.CDLL(None)
    for name, parameter, value in _MALLOC_SETTINGS:
      if name not in os.environ and hasattr(libc, 'mallopt'):
        libc.mallopt(parameter, value)


def give_sessions_threads() -> None:
  """Has a session's ops take as many threads inside as its config says; call it before the graph is built.

  A process has such threads once, as many as the first device says that is made. On 1.14 that is a session's. On 2.x it
  is eager mode's, by the first function of a data set: so there each device is told to have its own.
  """
  if not _is_1:
    os.environ.setdefault('TF_OVERRIDE_GLOBAL_THREADPOOL', '1')


def all_reduce(share: Any, *, group_size: int, group_key: int, instance_key: int, kind: str) -> Any:
  """Returns the sum of the shares of a group, on every device that one stands on.

  Args:
    share: on this device; of one shape and dtype in the whole group.
    group_size: how many shares, each on a device of its own.
    group_key: the same for all sums over these devices.
    instance_key: the same for all shares of one sum.
    kind: 'ring' or 'nccl'. TensorFlow 1.14 knows no choice for a single sum: there the session's config makes it.
  """
  hint = {} if _is_1 else {'communication_hint': kind}
  return collective_ops.all_reduce(share, group_size, group_key, instance_key, 'Add', 'Id', **hint)


def broadcast(value: Any, like: Any, *, group_size: int, group_key: int, instance_key: int) -> Any:
  """Returns the value of the one of a group that has it.

  Args:
    value: to hand out, or None to receive it.
    like: a tensor of its static shape and dtype.
    others: as for `all_reduce`.
  """
  group = (like.shape, like.dtype, group_size, group_key, instance_key)
  return collective_ops.broadcast_recv(*group) if value is None else collective_ops.broadcast_send(value, *group)


def import_placed(graph_def: Any, *, name: str, input_map: Dict[str, Any], return_elements: Sequence[str]) -> List[Any]:
  """`tf.import_graph_def` of nodes which stand where they shall: no device and no colocation around them counts.

  They come from a graph, and so have all of their attributes. It takes less than half of the time: Python looks neither
  for missing attributes nor for the device of every op nor, unless the graph is inside of some control flow, for what
  is to come before it; and on 1.14 it does not go through all ops for those that are new, nor through the stack for
  each of them.
  """
  graph = tf.get_default_graph()
  add_new_operations = graph._add_new_tf_operations

  def add_as_they_are(compute_devices):
    if graph._get_control_flow_context() is not None or graph._control_dependencies_stack:
      add_new_operations(compute_devices)
    else:
      for operation in graph.new_operations() if hasattr(graph, 'new_operations') else _find_new_operations(graph):
        graph._create_op_from_tf_operation(operation, compute_device=False)
    return []  # Of these, none is left to be placed.

  replaced: List[Tuple[Any, str, Any]] = [(importer, '_ProcessGraphDefParam', lambda graph_def, *_: graph_def)]
  if _is_1:
    stack = tf_stack.extract_stack()
    replaced += [(tf_stack, 'extract_stack', lambda: stack), (c_api_util, 'tf_output', _make_output)]
  graph._add_new_tf_operations = add_as_they_are
  try:
    with _replaced(replaced):
      return tf.import_graph_def(graph_def, name=name, input_map=input_map, return_elements=return_elements)
  finally:
    del graph._add_new_tf_operations


@contextlib.contextmanager
def _replaced(names):
  """Within, names of modules stand for others: of (module, name, value)."""
  with contextlib.ExitStack() as undo:
    for module, name, value in names:
      undo.callback(setattr, module, name, getattr(module, name))
      setattr(module, name, value)
    yield


def _make_output(operation, index):
  """Returns what 1.14's C++ takes for a tensor, to ask it something: its Python class takes ten times as long."""
  output = native.new_TF_Output()
  native.TF_Output_oper_set(output, operation)
  native.TF_Output_index_set(output, index)
  return output


def _find_new_operations(graph):
  """Yields what the graph has behind its last op in Python; 1.14's own goes through all."""
  # Nodes count from 2, behind the graph's source and sink; an earlier one would only be known already.
  operation, position = pywrap_tensorflow.TF_GraphNextOperation(graph._c_graph, len(graph.get_operations()) + 1)
  while operation is not None:
    try:
      graph._get_operation_by_tf_operation(operation)
    except KeyError:
      yield operation
    operation, position = pywrap_tensorflow.TF_GraphNextOperation(graph._c_graph, position)


if _is_1:
  c_api_util.new_tf_operations = _find_new_operations


class Call:
  """Runs `fetches` as `session.run` does, None for an op; what can be prepared for them is, once.

  `Session.make_callable` resolves the fetches once, but TensorFlow still looks up by their names, in every run, what it
  prepared for them. Here it is handed that itself: a step of a linear model takes about a tenth less.
  """

  def __init__(self, session: Any, fetches: Sequence[Any], *, by_caller: bool = False):
    """Prepares nothing yet.

    Args:
      session: that stays open as long as this is called.
      fetches: tensors and ops, and dicts of tensors. On a server, which other workers' steps wait for anyhow, they go
        through `make_callable`.
      by_caller: whether the thread that calls runs all ops, one after the other, instead of the session's threads.
        TensorFlow does so where all stand on one device.
    """
    self._session = session
    self._fetches = list(fetches)
    self._run_options = config_pb2.RunOptions(inter_op_thread_pool=-1 if by_caller else 0)
    self._run: Optional[Callable[[], List[Any]]] = None

  def prepare(self) -> Callable[[], List[Any]]:
    """Does what the first call does before it runs: the graph as it is now is divided among its devices.

    That takes seconds for a deep model, in which another thread may call other fetches, but not close the session.

    Returns:
      the function that every call comes down to.
    """
    if self._run is None:
      self._run = self._session.make_callable(self._fetches) if self._session.sess_str else self._prepare()
    return self._run

  def __call__(self) -> List[Any]:
    """Runs; raises what `session.run` raises."""
    return self.prepare()()

  def _prepare(self):
    session, flat = self._session, tf.nest.flatten(self._fetches)
    is_op = [isinstance(fetch, tf.Operation) for fetch in flat]
    # The tensors' values come first, and then None for each op: mostly the order that was asked for.
    order = sorted(range(len(flat)), key=is_op.__getitem__)
    session._extend_graph()  # With what was built since it last ran.
    handle = _PreparedCall(session, config_pb2.CallableOptions(
        fetch=[fetch.name for fetch in flat if not isinstance(fetch, tf.Operation)],
        target=[fetch.name for fetch in flat if isinstance(fetch, tf.Operation)],
        run_options=self._run_options))._handle
    of_ops = [None] * sum(is_op)

    def run():
      # All threads wait for what Python does between two runs, and after a few microseconds they go to sleep.
      return _run_callable(session._session, handle, (), None) + of_ops

    if order == list(range(len(flat))) and not any(isinstance(fetch, dict) for fetch in self._fetches):
      return run
    place = sorted(range(len(flat)), key=order.__getitem__)

    def run_and_sort():
      results = run()
      return tf.nest.pack_sequence_as(self._fetches, [results[number] for number in place])

    return run_and_sort


_run_callable = sys.modules[tf.Session.__module__].tf_session.TF_SessionRunCallable


class _PreparedCall(tf.Session._Callable):
  """Released with its session, never after it: 1.14 would complain."""

  def __del__(self):
    pass


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function of a tf.data pipeline that runs, with all that it calls, as its Python says.

  By default 2.x rewrites the Python first, so that its `if` may ask a tensor, which 1.14 does not know: a third of a
  second before the first step.
  """
  return function if _is_1 else tf.autograph.experimental.do_not_convert(function)


def map_by_reader(dataset: Any, function: Callable[..., Any]) -> Any:
  """`dataset.map(function)`, run by the thread that asks for an element; by default it hands the work to another."""
  kind = getattr(dataset_ops, 'MapDataset', None) or map_op._MapDataset
  return dataset_ops.DatasetV1Adapter(kind(dataset, function, use_inter_op_parallelism=False))


def get_next_by_reader(iterator: Any) -> Any:
  """`iterator.get_next()` of dense tensors, run by the thread that asks; by default it hands the work to another.

  While the iterator has none, that thread waits and runs no other op. So its pipeline must not need the session's
  threads, all of which may wait (`with_own_thread`).
  """
  types = tf.data.get_output_types(iterator)
  return tf.nest.pack_sequence_as(types, tf.raw_ops.IteratorGetNextSync(
      iterator=iterator._iterator_resource, output_types=tf.nest.flatten(types),
      output_shapes=tf.nest.flatten(tf.data.get_output_shapes(iterator))))


def with_own_thread(dataset: Any) -> Any:
  """Returns the dataset with a thread that does what its functions would ask the session's threads for."""
  if _is_1:
    return dataset_ops.DatasetV1Adapter(dataset_ops._PrivateThreadPoolDataset(dataset, 1))
  options = tf.data.Options()
  options.threading.private_threadpool_size = 1
  return dataset.with_options(options)


def plain_data_options() -> Any:
  """Returns options with which tf.data runs a pipeline as it was written.

  By default it rewrites the pipeline when it starts, and for that copies all arrays into a graph of its own. On 2.x it
  also tunes each iterator with a thread that can sleep through its own end: closing a session of 16 iterators took up
  to 20 s, instead of 0.03 s without it.
  """
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  if hasattr(options, 'autotune'):
    options.autotune.enabled = False
  else:
    options.experimental_optimization.autotune = False
  return options


__all__ = [
    'Call', 'SPINNING_HINDERS', 'StagingArea', 'all_reduce', 'as_written', 'broadcast', 'compiles_on_cpus',
    'get_compute_capabilities', 'get_next_by_reader', 'give_sessions_threads', 'import_placed', 'keep_memory',
    'load_keras', 'map_by_reader', 'plain_data_options', 'tf', 'use_deterministic_kernels', 'with_own_thread',
]
