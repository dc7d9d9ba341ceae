"""The flag --xla: TensorFlow's compiler is switched on before TensorFlow is loaded.

  on      compiles clusters of ops before the first run
  off     compiles nothing
  auto    follows TF_XLA_FLAGS, if you set it; else compiles mixed precision on GPUs with 2.x alone
          (see `towers.placement.xla`): elsewhere it takes long and may gain nothing

The session's own setting (`global_jit_level`) compiles nothing on CPUs, on either target; flags in
the environment do.
"""

from typing import MutableMapping

_FLAGS = 'TF_XLA_FLAGS'
_ON, _OFF = '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit', '--tf_xla_auto_jit=-1'
# With it 1.14 does not look for clusters either, which takes long.
_NO_SEARCH = '--tf_xla_clustering_fuel=0'


def set_xla(kind: str, environ: MutableMapping[str, str]) -> None:
  """Sets what XLA reads of `environ` when TensorFlow loads, unless the user has; see `kind` above.
  """
  given = environ.get(_FLAGS, '')
  if kind == 'on' and 'tf_xla_auto_jit' not in given:
    environ[_FLAGS] = f'{given} {_ON}'.strip()
  elif kind == 'off' and 'tf_xla_auto_jit' not in given:
    environ[_FLAGS] = f'{given or _NO_SEARCH} {_OFF}'
