"""What layers of batch normalisation end in, to be other functions in one graph for a while.

tf.layers, Keras 2, slim, contrib and layers made of tf.nn all come to a fused kernel or to
`tf.nn.moments`. Programs hold these under many names, so that not they are replaced, but two
modules in which they look up what they call. The functions there ask whose call it is, so that
other graphs and threads go on with TensorFlow's own.
"""

import contextlib
import functools
import threading
import types
from typing import Any, Callable, Dict, Iterator, Tuple

from tensorflow.python.ops import gen_nn_ops, math_ops, nn_impl

from towers.tensorflow_v1.load import tf

# 1.14 has all three, and chooses by dtype and date.
_KERNELS = ('_fused_batch_norm', 'fused_batch_norm_v2', 'fused_batch_norm_v3')
_lock = threading.Lock()
_others: Dict[Any, Tuple[Callable[..., Any], Callable[..., Any]]] = {}


@contextlib.contextmanager
def other_norms(kernel: Callable[..., Any], mean: Callable[..., Any]) -> Iterator[None]:
  """Makes batch normalisation within the context, in this graph and thread, call others.

  They are for each fused kernel, and for the means that `tf.nn.moments` takes; the first argument
  is TensorFlow's own.
  """
  caller = _find_caller()
  with _lock:
    nn_impl.gen_nn_ops = _copy(gen_nn_ops, _KERNELS, 0)
    nn_impl.math_ops = _copy(math_ops, ['reduce_mean'], 1)
    _others[caller] = kernel, mean
  try:
    yield
  finally:
    with _lock:
      del _others[caller]
      if not _others:
        nn_impl.gen_nn_ops, nn_impl.math_ops = gen_nn_ops, math_ops


def _find_caller():
  return tf.get_default_graph(), threading.get_ident()


def _copy(module, names, index):
  """Returns a copy of a module whose functions of these names ask whether another stands in."""
  copy = types.ModuleType(module.__name__)
  vars(copy).update(vars(module))
  for name in vars(module).keys() & names:
    setattr(copy, name, functools.partial(_call, vars(module)[name], index))
  return copy


def _call(own, index, *args, **settings):
  others = _others.get(_find_caller())
  return own(*args, **settings) if others is None else others[index](own, *args, **settings)
