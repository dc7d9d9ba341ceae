"""Variables: one set for all towers; where each stands, and what it starts from.

A getter around `tf.get_variable` decides both at the one place where variables are made, so that models need not know:

  host       all on the CPU: right where devices reach each other only through it
  first      all on the first tower's device: right for one tower, or fast links
  balanced   each on the tower's device that holds the fewest bytes so far: spreads the traffic and the memory

`tf.train.replica_device_setter` and its kin look for the op types Variable and VariableV2 and so miss resource
variables; a getter misses none.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from tensorflow_v1 import tf
from towers.inputs import HOST
from towers.randomness import seed_initial_value
from usage_error import UsageError

PLACEMENTS = ('host', 'first', 'balanced')


class VariableStore(NamedTuple):
  """Makes a program's variables.

  Attributes:
    getter: a custom getter for `tf.variable_scope`.
    made: every variable that the getter made, by name, in order.
    seed: that everything random in the towers depends on.
  """
  getter: Callable[..., Any]
  made: Dict[str, Any]
  seed: int


def build_variable_store(*, devices: Sequence[str], placement: str = 'host', seed: int = 0) -> VariableStore:
  """Returns a store that places variables by `placement` and starts each from (seed, its name).

  Raises:
    UsageError: an unknown placement.
  """
  if placement not in PLACEMENTS:
    raise UsageError('variables is %r: choose one of %s.' % (placement, ', '.join(PLACEMENTS)))
  candidates = {'host': [HOST], 'first': [devices[0]], 'balanced': list(devices)}[placement]
  bytes_on = dict.fromkeys(candidates, 0)
  made: Dict[str, Any] = {}

  def getter(getter, name, *args, **kwargs):
    if name in made:
      return getter(name, *args, **kwargs)
    device = min(candidates, key=lambda candidate: bytes_on[candidate])
    with tf.device(device):
      variable = getter(name, *args, **kwargs)
    made[name] = variable
    bytes_on[device] += variable_bytes(variable)
    seed_initial_value(variable.initial_value, seed, name)
    return variable

  return VariableStore(getter, made, seed)


def variable_bytes(variable: Any) -> int:
  """Returns the size of a variable's value."""
  return variable.shape.num_elements() * variable.dtype.base_dtype.size


def check_shared(before: Sequence[Any], after: Sequence[Any], *, tower: int) -> None:
  """Raises if building `tower` made variables of its own instead of sharing tower 0's.

  Keras layers and tf.Variable make new variables whenever they are called; the towers would then train apart while
  every number on the screen looks right.

  Raises:
    UsageError: names the variables and the fix.
  """
  known = {id(variable) for variable in before}
  own = [variable for variable in after if id(variable) not in known]
  if own:
    shown = ''.join('\n  %s %s, made by the op %s' % (variable.name, variable.shape, variable.op.name)
                    for variable in own[:5])
    raise UsageError('Tower %d made %d variables of its own instead of sharing those of tower 0:%s%s\n'
                     'Make them with tf.get_variable, which shares under the same name; a Keras layer must be built '
                     'once, outside of the model function, and called in it.'
                     % (tower, len(own), shown, '\n  …' if len(own) > 5 else ''))


def format_device_table(devices: Sequence[str], variables: Sequence[Any], roles: Sequence[str]) -> str:
  """Returns a table of devices: each one's role, how many of `variables` stand there, and their bytes."""
  rows: Dict[str, List[Any]] = {HOST: ['input', 0, 0]}
  for device, role in zip(devices, roles):
    if device in rows:
      rows[device][0] += ', ' + role
    else:
      rows[device] = [role, 0, 0]
  for variable in variables:
    row = rows[variable.device]
    row[1] += 1
    row[2] += variable_bytes(variable)
  width = max(len(role) for role, _, _ in rows.values())
  lines = ['  %-14s  %-*s  %9s  %12s' % ('device', width, 'role', 'variables', 'bytes')]
  lines += ['  %-14s  %-*s  %9d  %12s' % (device, width, role, count, '{:,}'.format(size))
            for device, (role, count, size) in rows.items()]
  return '\n'.join(lines)
