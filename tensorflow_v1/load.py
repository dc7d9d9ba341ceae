"""TensorFlow, loaded in silence, with what it must find when it is loaded.

Before, what is installed is looked at (`distributions`). It takes 0.8 s on 1.14, of which 0.15 s is
the native library, and 1.7 s on 2.21: 0.35 s native, 0.23 s Keras, the rest some 2,000 Python
modules that `tensorflow/__init__.py` names itself. Nothing that is imported here adds to it, and
what Python's garbage collector would, 0.2 and 0.8 s, is left out.
"""

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
import warnings
from typing import Any, Dict, Iterator, Sequence

from towers.base.collector import uncollected
from towers.base.installed import check_environment, find_distributions, find_tensorflow
from towers.base.usage_error import UsageError

# One of these is there wherever a GPU's driver is: Linux, WSL, Jetson, ROCm.
_GPU_DRIVER_FILES = ('/dev/nvidiactl', '/dev/dxg', '/dev/nvhost-ctrl-gpu', '/dev/kfd')
# Lines of a severity below error, and three "errors" of 2.15 to 2.18 which only say that a library
# was loaded twice.
_LOAD_NOTICES = (r'^[IW]0000 |^WARNING: All log messages before absl::InitializeLog|Unable to '
                 r'register cu[A-Z]+ factory')


def default_log_level(environ: Dict[str, str],
                      driver_files: Sequence[str] = _GPU_DRIVER_FILES) -> str:
  """TF_CPP_MIN_LOG_LEVEL when the user set none: '2' shows C++ errors, '3' nothing but fatal ones.

  Without a GPU both targets log `failed call to cuInit` as an error at the first session, and only
  3 hides that; an error of an op is a Python exception all the same.
  """
  gpu_may_be_there = (environ.get('CUDA_VISIBLE_DEVICES') not in ('', '-1')
                      and any(os.path.exists(path) for path in driver_files))
  return '2' if gpu_may_be_there else '3'


@contextlib.contextmanager
def _without_load_notices() -> Iterator[None]:
  """Keep the notices of TensorFlow 2.x's native library off stderr while it is loaded.

  Its static initialisers log before any setting is read. Another process drops these lines alone,
  so that whatever else is written, the last words of a crash included, still arrives.
  """
  with contextlib.ExitStack() as undo:
    try:
      stderr = os.dup(2)
      undo.callback(os.close, stderr)
      grep = subprocess.Popen(['grep', '-v', '-E', _LOAD_NOTICES], stdin=subprocess.PIPE,
                              stdout=stderr)
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
IS_1 = _tensorflow is not None and _tensorflow.numbers < (2, 0)
check_environment(sys.version_info[:2], _distributions,
                  importlib.util.find_spec('tensorflow') is not None)

# What the user set wins, here and below.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', default_log_level(dict(os.environ)))
# Kernels of one GPU are launched by threads of its own, which input pipelines on the host cannot
# hold up.
os.environ.setdefault('TF_GPU_THREAD_MODE', 'gpu_private')
# 1.14 looks for what XLA could compile even where XLA is off: half of the time to the first step of
# a deep net. With flags of your own, --tf_xla_auto_jit=2 or none at all, it looks again.
if IS_1:
  os.environ.setdefault('TF_XLA_FLAGS', '--tf_xla_clustering_fuel=0')
# tf.keras of TensorFlow 2.16 and later is Keras 3, which builds no graphs; the package tf-keras is
# Keras 2.
if importlib.util.find_spec('tf_keras') is not None:
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

with uncollected(), contextlib.ExitStack() as _quiet:
  _quiet.enter_context(warnings.catch_warnings())
  warnings.simplefilter('ignore')
  # 1.14 reads the level before it logs anything.
  if os.environ['TF_CPP_MIN_LOG_LEVEL'] not in ('0', '1') and not IS_1:
    _quiet.enter_context(_without_load_notices())
  import tensorflow.compat.v1 as tf
  from tensorflow.python.ops.data_flow_ops import StagingArea
  from tensorflow.python.util import deprecation

# The whole 1.x API is deprecated in 2.x; other warnings of TensorFlow stay visible.
deprecation._PRINT_DEPRECATION_WARNINGS = False
logging.getLogger('tensorflow').setLevel(logging.WARNING)
tf.disable_v2_behavior()
# The 1.14 name: every get_variable gives a resource variable, since ref variables race on CPU
# devices.
tf.enable_resource_variables()


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
    raise UsageError(f'tf.keras of TensorFlow {tf.__version__} is Keras 3, which builds no graphs. '
                     'Keras 2 does: pip install tf-keras, and set TF_USE_LEGACY_KERAS=1 before '
                     'anything imports TensorFlow.')
  return tf.keras


__all__ = ['IS_1', 'StagingArea', 'default_log_level', 'load_keras', 'tf']
