"""The switch in Python: models that decide by `if is_training:` where their towers also validate.

There `is_training` is a tensor. The training towers are what the model builds with True, so that is
the answer, and the graph remembers that a model has asked: then `towers.validation` calls it again
with False. What the model gives the tensor to follows the switch as ever.
"""

import contextlib
from typing import Any, ContextManager

from towers.tensorflow_v1 import replaced, tf

# The collection of the switch by which a model of the graph has decided in Python.
ASKED_IN_PYTHON = 'towers/asked_in_python'


def answering(is_training: Any) -> ContextManager[None]:
  """Makes a tensor `is_training` True to Python, and no other tensor; a bool stays as it is."""
  if not tf.is_tensor(is_training):
    return contextlib.nullcontext()
  refuse = tf.Tensor.__bool__

  def decide(tensor):
    if tensor is not is_training:
      return refuse(tensor)
    tf.get_collection_ref(ASKED_IN_PYTHON)[:] = [tensor]
    return True

  return replaced((tf.Tensor, '__bool__', decide))
