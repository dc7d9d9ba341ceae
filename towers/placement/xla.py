"""XLA: whether TensorFlow's compiler compiles a step, asked for by `--xla` or by default.

  on      compiles clusters of ops before the first run
  off     compiles nothing
  auto    follows TF_XLA_FLAGS, if you set it; else compiles mixed precision on GPUs with 2.x alone:
          elsewhere it takes long and may gain nothing

The session's own setting (`global_jit_level`) compiles nothing on CPUs, on either target; flags in
the environment do.
"""

import os
import re
from typing import MutableMapping

_FLAGS, _AUTO_JIT = 'TF_XLA_FLAGS', 'tf_xla_auto_jit'
_ON, _OFF = f'--{_AUTO_JIT}=2 --tf_xla_cpu_global_jit', f'--{_AUTO_JIT}=-1'
# With it 1.14 does not look for clusters either, which takes long.
_NO_SEARCH = '--tf_xla_clustering_fuel=0'


def set_xla(kind: str, environ: MutableMapping[str, str]) -> None:
  """Sets what XLA reads of `environ` when TensorFlow loads, unless the user has; see `kind` above.
  """
  given = environ.get(_FLAGS, '')
  if kind == 'on' and _AUTO_JIT not in given:
    environ[_FLAGS] = f'{given} {_ON}'.strip()
  elif kind == 'off' and _AUTO_JIT not in given:
    environ[_FLAGS] = f'{given or _NO_SEARCH} {_OFF}'


def compiles(kind: str, precision: str) -> bool:
  """Returns whether XLA compiles on devices of this kind, asked for or by default."""
  if kind == 'CPU':
    from towers.tensorflow_v1 import devices
    return devices.compiles_on_cpus()
  asked = re.search(rf'{_AUTO_JIT}=(?!-|0)', os.environ.get(_FLAGS, ''))
  return bool(asked) or compiles_by_default(kind, precision)


def compiles_by_default(kind: str, precision: str) -> bool:
  """Returns whether XLA compiles though nobody has asked for it: mixed precision on GPUs.

  On an H200 a step of ResNet-50 took 0.63 of the time. `set_xla` is done by now.
  """
  flags = os.environ.get(_FLAGS, '')
  return (kind == 'GPU' and precision == 'mixed' and _AUTO_JIT not in flags
          and _NO_SEARCH not in flags)
