"""Values that a graph tells without a run."""

from typing import Any

from tensorflow.python.framework import tensor_util

from tensorflow_v1.types import Tensor


def get_constant(tensor: Tensor) -> Any:
  """Returns the value of a scalar tensor that is known without a run, or None."""
  value = tensor_util.constant_value(tensor)
  return None if value is None else value.item()
