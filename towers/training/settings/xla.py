"""XLA: TensorFlow's compiler, which is switched on before TensorFlow is loaded.

  on      ops that can be compiled together are found in the graph and compiled before the first run
  off     nothing is
  auto    what TF_XLA_FLAGS says, if you set it; else off,
          since compiling a net takes long and may gain nothing

The session's own setting (`global_jit_level`) compiles nothing on CPUs, on neither target; flags in
the environment do.
"""

from typing import Any, MutableMapping

from towers.base.usage_error import UsageError

XLA = ('auto', 'on', 'off')
_FLAGS = 'TF_XLA_FLAGS'
_ON, _OFF = '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit', '--tf_xla_auto_jit=-1'


def set_xla(kind: str, environ: MutableMapping[str, str]) -> None:
  """Sets what TensorFlow reads when it is loaded; flags of XLA that say so themselves stay as they
  are.

  Args:
    kind: one of `XLA`.
    environ: of the process.
  """
  given = environ.get(_FLAGS, '')
  if kind == 'on' and 'tf_xla_auto_jit' not in given:
    environ[_FLAGS] = f'{given} {_ON}'.strip()
  elif kind == 'off' and given and 'tf_xla_auto_jit' not in given:
    environ[_FLAGS] = f'{given} {_OFF}'


def check_xla(config: Any, devices: Any) -> None:
  """Raises a UsageError where TensorFlow cannot compile a config's towers on these towers.Devices.
  """
  if config.xla == 'on' and config.graph_rewriter == 'off' and devices.kind == 'CPU' and len(
      devices.names) > 1:
    raise UsageError(f'xla=on and graph_rewriter=off do not go together with {len(devices.names)} '
                     'towers on virtual CPU devices: what XLA folds into constants itself it '
                     'puts on the first of them. Use graph_rewriter=auto or xla=off.')
