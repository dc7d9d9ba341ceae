"""XLA: whether TensorFlow's compiler compiles a step, asked for by `--xla` or by default."""

import os
import re

from towers.tensorflow_v1 import compiles_on_cpus


def compiles(kind: str, precision: str) -> bool:
  """Returns whether XLA compiles on devices of this kind, asked for or by default."""
  if kind == 'CPU':
    return compiles_on_cpus()
  asked = re.search(r'tf_xla_auto_jit=(?!-|0)', os.environ.get('TF_XLA_FLAGS', ''))
  return bool(asked) or compiles_by_default(kind, precision)


def compiles_by_default(kind: str, precision: str) -> bool:
  """Returns whether XLA compiles though nobody has asked for it: mixed precision on GPUs.

  On an H200 a step of ResNet-50 took 0.63 of the time. `--xla` is in TF_XLA_FLAGS by now.
  """
  flags = os.environ.get('TF_XLA_FLAGS', '')
  return (kind == 'GPU' and precision == 'mixed' and 'tf_xla_auto_jit' not in flags
          and 'tf_xla_clustering_fuel=0' not in flags)

