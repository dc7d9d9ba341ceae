"""TensorFlow, imported in silence, after a check of what is installed (see `installed`).

The import takes 0.8 s on 1.14, of which 0.15 s is the native library, and 1.5 s on 2.21: 0.35 s
native, the rest some 2,000 Python modules that `tensorflow/__init__.py` imports itself. The garbage
collector would add 0.2 and 0.8 s, so it is off meanwhile; nor are Keras and setuptools loaded.
"""

import contextlib
import importlib.util
import logging
import operator
import os
import subprocess
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, Sequence

from towers.base.default_signals import default_signals
from towers.base.garbage_collector import uncollected
from towers.base.installed import check_environment, find_distributions, find_tensorflow
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.tensorflow_v1.compiled_cache import use_cache

# A machine with a GPU driver has one of these: Linux, WSL, Jetson, ROCm.
_GPU_DRIVER_FILES = ('/dev/nvidiactl', '/dev/dxg', '/dev/nvhost-ctrl-gpu', '/dev/kfd')
# Lines below errors, and three "errors" of 2.15 to 2.18 about a library that was loaded twice.
_LOAD_NOTICES = (r'^[IW]0000 |^WARNING: All log messages before absl::InitializeLog|'
                 r'Unable to register cu[A-Z]+ factory')


def default_log_level(environ: Dict[str, str],
                      driver_files: Sequence[str] = _GPU_DRIVER_FILES) -> str:
  """Returns TF_CPP_MIN_LOG_LEVEL where the user set none: '2' shows errors, '3' fatal ones alone.

  Without a GPU both targets log the error `failed call to cuInit` at the first session, which only
  '3' hides. An op's error is a Python exception at either level.
  """
  gpu_may_be_there = (environ.get('CUDA_VISIBLE_DEVICES') not in ('', '-1')
                      and any(os.path.exists(path) for path in driver_files))
  return '2' if gpu_may_be_there else '3'


@contextlib.contextmanager
def _without_load_notices() -> Iterator[None]:
  """Keeps the notices of TensorFlow 2.x's native library off stderr while it loads.

  Its static initialisers log before they read any setting. A process beside this one drops these
  lines and no others, so that the last words of a crash still arrive.
  """
  with contextlib.ExitStack() as undo:
    try:
      stderr = os.dup(2)
      undo.callback(os.close, stderr)
      grep = subprocess.Popen(['grep', '-v', '-E', _LOAD_NOTICES], stdin=subprocess.PIPE,
                              stdout=stderr)
    except OSError:  # There is no stderr or no grep: a few more lines are better than an error.
      yield
      return
    assert grep.stdin is not None
    undo.callback(grep.wait)
    undo.callback(grep.stdin.close)
    os.dup2(grep.stdin.fileno(), 2)
    undo.callback(os.dup2, stderr, 2)
    yield


@contextlib.contextmanager
def _without_the_unused() -> Iterator[None]:
  """Leaves out what TensorFlow imports and graphs do not use; later imports find it as ever.

  2.x loads Keras for its optimizers' names in SavedModels: 0.2 s. For a comparison of versions 1.14
  imports distutils, which new setuptools replace by all of their own: 0.1 s.
  """
  unused = 'tf_keras.src.optimizers', 'keras.src.optimizers'
  hack = sys.modules.get('_distutils_hack')
  finders = [each for each in sys.meta_path if each is getattr(hack, 'DISTUTILS_FINDER', None)]
  modules: Dict[str, Any] = sys.modules
  before = set(modules)
  modules.update(dict.fromkeys(set(unused) - before))  # An import of such a name fails.
  for finder in finders:
    sys.meta_path.remove(finder)
  try:
    yield
  finally:
    sys.meta_path[:0] = finders
    for name in set(modules) - before:
      if name in unused or name.split('.')[0] == 'distutils':
        del modules[name]


def _import_tensorflow() -> None:
  importlib.import_module('tensorflow.compat.v1')


# Python 3.11 and later keep the frames of calls in pieces of 16 KiB, and give a piece back when the
# call that asked for it ends. Loops at an edge ask at every turn: an import of 2.21 did so 7,000 to
# 18,000 times, by how deep it was called, which took up to 0.2 s. A frame of 72 kB gets 128 KiB,
# in the rest of which the import's calls, some 40 kB, have room.
if sys.version_info >= (3, 11):
  _import_tensorflow.__code__ = _import_tensorflow.__code__.replace(co_stacksize=9000)

_distributions = find_distributions(sys.path)
_tensorflow = find_tensorflow(_distributions)
IS_1 = _tensorflow is not None and _tensorflow.numbers < (2, 0)
# 1.14 that a program has imported before has no spec, and to look for one would be an error.
_is_there = bool(sys.modules.get('tensorflow') or importlib.util.find_spec('tensorflow'))
_notice = check_environment(sys.version_info[:2], _distributions, _is_there)
if _notice:
  write_line(_notice, sys.stderr)

# The user's settings win, here and below.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', default_log_level(dict(os.environ)))
# Each GPU gets threads of its own to launch kernels, which the host's input pipelines cannot delay.
os.environ.setdefault('TF_GPU_THREAD_MODE', 'gpu_private')
# Without it cuDNN's batch normalisation took 444 of the 721 ms of three steps of ResNet-50 on an
# H200, in mixed precision. It is read at the first of these kernels.
PERSISTENT_BATCH_NORM = 'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT'
CHOOSES_BATCH_NORM = PERSISTENT_BATCH_NORM not in os.environ
os.environ.setdefault(PERSISTENT_BATCH_NORM, '1')
# 1.14 looks for clusters for XLA to compile even where XLA is off: half of the time to the first
# step of a deep net. Any TF_XLA_FLAGS of the user's, even empty ones, turn the search on again.
if IS_1:
  os.environ.setdefault('TF_XLA_FLAGS', '--tf_xla_clustering_fuel=0')
elif _tensorflow is not None:
  use_cache(os.environ, _tensorflow.version)
# From TensorFlow 2.16 on tf.keras is Keras 3, which builds no graphs; tf-keras is Keras 2.
if importlib.util.find_spec('tf_keras') is not None:
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

with uncollected(), default_signals(), contextlib.ExitStack() as _quiet:
  _quiet.enter_context(_without_the_unused())
  _quiet.enter_context(warnings.catch_warnings())
  warnings.simplefilter('ignore')
  # 1.14 reads the level before it logs anything.
  if os.environ['TF_CPP_MIN_LOG_LEVEL'] not in ('0', '1') and not IS_1:
    _quiet.enter_context(_without_load_notices())
  _import_tensorflow()
  import tensorflow.compat.v1 as tf
  from tensorflow.python.compat import v2_compat
  from tensorflow.python.ops import resource_variable_ops
  from tensorflow.python.ops.data_flow_ops import StagingArea
  from tensorflow.python.util import deprecation

# The whole 1.x API is deprecated in 2.x. TensorFlow's other warnings stay visible.
deprecation._PRINT_DEPRECATION_WARNINGS = False
logging.getLogger('tensorflow').setLevel(logging.WARNING)
tf.disable_v2_behavior()
# Makes each get_variable a resource variable, since ref variables race on CPU devices; also where
# a program calls `tf.disable_v2_behavior()` after this, which would turn them off again.
tf.enable_resource_variables()
_toggles = v2_compat.variable_scope if IS_1 else v2_compat.resource_variables_toggle
_toggles.disable_resource_variables = tf.enable_resource_variables


def _as_ref(method: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a method of resource variables that in a graph does what one of ref variables does."""
  def act(variable, *args):
    if tf.executing_eagerly():
      return method(variable, *args)
    if args:
      tf.logging.log_first_n(
          tf.logging.WARN, f'{method.__name__} of a variable makes a tensor, and leaves the '
          'variable as it is; variable.assign_add changes it.', 1)
    return instead(variable, *args)

  return act


# In programs of 1.x a variable is true, and `bias += x` makes a tensor.
_kind = getattr(resource_variable_ops, 'BaseResourceVariable',
                resource_variable_ops.ResourceVariable)
_kind.__bool__ = _as_ref(_kind.__bool__, lambda variable: True)
for _name in ('add', 'sub', 'mul', 'truediv', 'pow'):
  setattr(_kind, f'__i{_name}__',
          _as_ref(getattr(_kind, f'__i{_name}__'), getattr(operator, _name)))


def load_keras() -> Any:
  """Returns `tf.keras` if it is Keras 2, which builds graphs."""
  try:
    is_keras_3 = '_tf_keras' in tf.keras.layers.__name__.split('.')
  except ImportError:
    is_keras_3 = True
  if is_keras_3:
    raise UsageError(f'tf.keras of TensorFlow {tf.__version__} is Keras 3, which builds no graphs. '
                     'Keras 2 does: pip install tf-keras, and set TF_USE_LEGACY_KERAS=1 before '
                     'anything imports TensorFlow.')
  return tf.keras


__all__ = ['CHOOSES_BATCH_NORM', 'IS_1', 'PERSISTENT_BATCH_NORM', 'StagingArea',
           'default_log_level', 'load_keras', 'tf']
