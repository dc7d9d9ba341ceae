"""Variables: one set for all towers; where each stands, what it is called, and what it starts from.

Every variable that a model makes, by `tf.get_variable`, `tf.Variable` or a layer, passes a creator,
which decides all of this at one place, so that models need not know:

  host       all on the CPU: right where devices reach each other only through it
  first      all on the first tower's device: right for one tower, or fast links
  balanced   each on the tower's device that holds the fewest bytes so far:
             spreads the traffic and the memory
  replicated a copy of all weights on every tower's device: nothing is read over a link
             (see `replicas`)

`tf.train.replica_device_setter` and its kin look for the op types Variable and VariableV2 and so
miss resource variables; a creator misses none. A name never holds a tower's, so that checkpoints
fit any number of towers.
"""

import contextlib
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError, check_same_number
from towers.placement.host import HOST
from towers.placement.randomness import find_random_ops, seed_initial_value
from towers.placement.replicas import make_replica

PLACEMENTS = ('host', 'first', 'balanced', 'replicated')


class VariableStore(NamedTuple):
  """Makes a program's variables.

  Attributes:
    creator: for `tf.variable_creator_scope`: makes a variable, or gives a later tower the one that
      tower 0 made.
    begin_tower: to be called before each tower is built.
    made: every variable that was made, by name, in order.
    initial_ops: the random ops that initial values are computed from.
    seed: that everything random in the towers depends on.
    replicas: for each later tower that has replicas of its own, these by the name of the first
      tower's variable.
    scopes: the name scopes of the towers that were built with it, to be added to.
    num_towers: of this worker.
    first_tower: the number of the first tower among those of all workers: no two towers draw the
      same.
  """
  creator: Callable[..., Any]
  begin_tower: Callable[[], None]
  made: Dict[str, Any]
  initial_ops: Set[Any]
  seed: int
  replicas: Dict[int, Dict[str, Any]]
  scopes: List[str]
  num_towers: int
  first_tower: int = 0


def build_variable_store(*, devices: Sequence[str], placement: str = 'host', seed: int = 0,
                         rank: int = 0) -> VariableStore:
  """Returns a store that places variables by `placement` and starts each from (seed, its name).

  Args:
    devices: of this worker's towers.
    placement: one of `PLACEMENTS`.
    seed: of everything random in the towers.
    rank: of this worker.

  Raises:
    UsageError: an unknown placement, or no device.
  """
  if not devices:
    raise UsageError('devices is empty: give a device for each tower.')
  if placement not in PLACEMENTS:
    raise UsageError(f"variables is {placement!r}: choose one of {', '.join(PLACEMENTS)}.")
  candidates = {'host': [HOST], 'balanced': list(devices)}.get(placement, [devices[0]])
  bytes_on = dict.fromkeys(candidates, 0)
  made: Dict[str, Any] = {}
  initial_ops: Set[Any] = set()
  asked: Dict[str, int] = {}
  # What is not trained, as a moving average, is changed by one tower for all: it stands once.
  replicas: Dict[int, Dict[str, Any]] = {
      tower: {} for tower in range(1, len(devices)) if placement == 'replicated'}

  def creator(next_creator, **kwargs):
    scope = tf.get_default_graph().get_name_scope()
    name = re.sub(r'^tower_\d+/', '',
                  '/'.join(filter(None, [scope, kwargs.get('name') or 'Variable'])))
    if scope:
      # tf.Variable counts up where it meets a name again; tf.get_variable, which stands in no
      # scope, never does.
      asked[name] = asked.get(name, -1) + 1
      name += f'_{asked[name]}' if asked[name] else ''
      if name in made:
        leave_out(kwargs.get('initial_value'))
        return made[name]
    device = min(candidates, key=lambda candidate: bytes_on[candidate])
    with tf.device(device), tf.name_scope(None):
      variable = next_creator(**dict(kwargs, name=name))
    if not scope:
      # Keras takes a name again, as for the layers of a SavedModel: TensorFlow counts up.
      name = variable.op.name
    made[name] = variable
    bytes_on[device] += variable_bytes(variable)
    seed_initial_value(variable.initial_value, seed, name, initial_ops)
    leave_out(variable.initial_value)
    if variable.trainable:
      for tower, of_tower in replicas.items():
        of_tower[name] = make_replica(next_creator, kwargs, variable, tower=tower,
                                      device=devices[tower])
    return variable

  def leave_out(initial_value):
    if isinstance(initial_value, tf.Tensor):
      initial_ops.update(find_random_ops(initial_value))

  return VariableStore(creator, asked.clear, made, initial_ops, seed, replicas, [], len(devices),
                       rank * len(devices))


def seed_made_before(store: VariableStore, variables: Sequence[Any]) -> None:
  """Seeds variables that were made before the towers as the store seeds its own.

  Args:
    store: of the towers.
    variables: all that are trained.

  Raises:
    UsageError: an initial value that cannot be seeded.
  """
  for variable in variables:
    value = variable.initial_value
    # Where a graph was imported, nothing is known of initial values.
    if variable.op.name not in store.made and isinstance(value, tf.Tensor):
      seed_initial_value(value, store.seed, variable.op.name, store.initial_ops)
      store.initial_ops.update(find_random_ops(value))


def stand_in(store: VariableStore,
             instead: Dict[str, Any]) -> Tuple[Callable[..., Any], Callable[..., Any]]:
  """Returns a custom getter and a creator that give variables of `instead` for those of the store
  with their names.
  """
  def replace(variable):
    return instead.get(variable.op.name, variable) if instead else variable

  def getter(getter, name, *args, **kwargs):
    return replace(getter(name, *args, **kwargs))

  def creator(next_creator, **kwargs):
    return replace(store.creator(next_creator, **kwargs))

  return getter, creator


def check_reads(store: VariableStore, instead: Dict[str, Any], *, scope: str, fix: str) -> None:
  """Raises if a tower reads variables themselves for which others stand in, as a layer does that
  holds its variables.

  Args:
    store: made the variables.
    instead: what stands in for them, by name.
    scope: the tower's name scope.
    fix: what to do about it.

  Raises:
    UsageError: names the op and the variable.
  """
  for name in instead:
    for op in store.made[name].handle.consumers():
      if op.name.startswith(scope):
        raise UsageError(f'The op {op.name} reads the variable {name} itself instead of asking for '
                         'it by name, as tf.get_variable does, so that it cannot be given the '
                         f'one that stands in for it: {fix}.')


def variable_bytes(variable: Any) -> int:
  """Returns the size of a variable's value."""
  return variable.shape.num_elements() * variable.dtype.base_dtype.size


@contextlib.contextmanager
def naming_missing(*, tower: int) -> Iterator[None]:
  """A context in which a variable that tower 0 did not make is refused by name, with the fix.

  Raises:
    UsageError: names the variable.
  """
  try:
    yield
  except ValueError as error:
    missing = re.match(r'Variable (\S+) does not exist, or was not created with', str(error))
    if missing is None:
      raise
    raise UsageError(
        f'Tower {tower} asks for the variable {missing.group(1)}, which tower 0 did not make: give '
        'it a name that is the same in every tower. tf.train.ExponentialMovingAverage names its '
        'averages after tensors, and zero_debias=True after what stands in for a variable: keep '
        'the '
        'average in a variable of tf.get_variable, moved by assign_moving_average with '
        'zero_debias=False; beside a validation tower, use validation=switch.') from error


def check_shared(before: Sequence[Any], after: Sequence[Any], *, tower: int) -> None:
  """Raises if building `tower` made variables of its own instead of sharing tower 0's.

  A Keras layer that is made anew makes new variables under a new name; the towers would then train
  apart while every number on the screen looks right.

  Raises:
    UsageError: names the variables and the fix.
  """
  # The step is made when a random op first asks for it, on whichever tower.
  known = {id(variable) for variable in [*before, tf.train.get_global_step()]}
  own = [variable for variable in after if id(variable) not in known]
  if own:
    shown = ''.join(f'\n  {variable.name} {variable.shape}, made by the op {variable.op.name}'
                    for variable in own[:5])
    raise UsageError('Tower %d made %d variables of its own instead of sharing those of tower '
                     '0:%s%s\n'
                     'Make the layer once, outside of the model function, and call it inside; or '
                     'make variables with '
                     'tf.get_variable or tf.Variable, under names that are the same in every tower.'
                     % (tower, len(own), shown, '\n  …' if len(own) > 5 else ''))


def format_device_table(devices: Sequence[str], variables: Sequence[Any],
                        roles: Sequence[str]) -> str:
  """Returns a table of devices: each one's role, how many of `variables` stand there, and their
  bytes.

  Raises:
    UsageError: there are more or fewer roles than devices.
  """
  check_same_number(len(devices), 'devices', len(roles), 'roles',
                    fix='give a role for each device.')
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
  lines += ['  %-14s  %-*s  %9d  %12s' % (device, width, role, count, f'{size:,}')
            for device, (role, count, size) in rows.items()]
  return '\n'.join(lines)
