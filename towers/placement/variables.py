"""Variables: one set for all towers, with the device, the name and the initial value of each.

Every variable of a model, made by `tf.get_variable`, `tf.Variable` or a layer, passes a variable
creator, which decides all of this in one place:

  host        all on the CPU: right where devices reach each other only through it
  first       all on the first tower's device: right for one tower, or fast links
  balanced    each on the tower's device that holds the fewest bytes so far:
              spreads the traffic and the memory
  replicated  a replica of all weights on every tower's device: no read crosses a link
              (see `replicas`)

A variable from before the program, as of a Keras layer, stays where it is, one for all towers. A
name has no tower in it, so that checkpoints fit any number of towers.
"""

import contextlib
import re
import traceback
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Set, Tuple

from towers.base.usage_error import UsageError, check_choice, check_same_number, format_lines
from towers.graph.source_lines import find_line
from towers.graph.walk import find_needed
from towers.graph.writes import VARIABLES
from towers.placement.devices import check_devices
from towers.placement.host import HOST, is_gpu
from towers.placement.packing import size_of
from towers.placement.patterns import choose_all, list_patterns, shorten
from towers.placement.randomness import find_random_ops, seed_initial_value
from towers.placement.replicas import make_replica
from towers.tensorflow_v1 import Operation, Variable, replace_tensor, tf

PLACEMENTS = ('auto', 'host', 'first', 'balanced', 'replicated')
# The name scope of a tower. TensorFlow numbers the second one of a name, as in a scratch graph.
TOWER_SCOPE = r'tower_\d+(?:_\d+)?/'


class Placement(NamedTuple):
  """Where a program's variables live, as in `PLACEMENTS` but never 'auto', and why, in words."""
  kind: str
  reason: str


def choose_placement(variables: str, devices: Sequence[str]) -> Placement:
  """Returns where variables live; `variables` is one of `PLACEMENTS`."""
  if variables != 'auto':
    return Placement(variables, 'as asked for')
  if not all(map(is_gpu, devices)):
    return Placement('host', 'whose memory CPU devices share')
  if len(devices) == 1:
    return Placement('first', 'the only GPU')
  return Placement('replicated', 'so that each GPU has its own')


class VariableStore:
  """Makes a program's variables: decides the name and device of each, and seeds its initial value.

  Attributes:
    made: every variable that was made, by name, in order.
    initial_ops: the random ops that initial values are computed from.
    seed: of everything random in the towers.
    replicas: by tower, and then by the name of the first tower's variable.
    devices: of this worker's towers.
    scopes: the name scopes of the towers built so far; each new tower adds its own.
    listed: the trainable variables that the first tower's model has listed, call by call.
    num_towers: of this worker.
    first_tower: the index of this worker's first tower among those of all workers.
    makes_all: whether a scope with reuse=True makes variables too, since those of a net from before
      the program are in its graph alone.
  """

  def __init__(self, *, devices: Sequence[str], placement: str = 'host', seed: int = 0,
               rank: int = 0, makes_all: bool = False):
    """Makes no variable yet; the devices are of the towers of the worker of this rank."""
    if not devices:
      raise UsageError('devices is empty: give a device for each tower.')
    check_devices(devices)
    check_choice('variables', placement, PLACEMENTS)
    kind = choose_placement(placement, devices).kind
    self.made: Dict[str, Variable] = {}
    self.initial_ops: Set[Operation] = set()
    self.seed = seed
    self.replicas: Dict[int, Dict[str, Variable]] = {
        tower: {} for tower in range(1, len(devices)) if kind == 'replicated'}
    self.scopes: List[str] = []
    self.listed: Dict[Any, List[Variable]] = {}
    self.num_towers, self.first_tower = len(devices), rank * len(devices)
    self.devices, self.makes_all = devices, makes_all
    candidates = {'host': [HOST], 'balanced': devices}.get(kind, devices[:1])
    self._bytes_on = dict.fromkeys(candidates, 0)
    self._asked: Dict[str, int] = {}

  def list_trainable(self, index: int) -> List[Variable]:
    """Returns the trainable variables that a tower reads: all towers', or its own replicas."""
    replicas = self.replicas.get(index, {})
    return [replicas.get(variable.op.name, variable) for variable in tf.trainable_variables()]

  def begin_tower(self) -> None:
    """Starts to count names anew, so that each tower asks for the same ones."""
    self._asked.clear()

  def creator(self, next_creator: Callable[..., Variable], **settings: Any) -> Variable:
    """Makes a variable and its replicas, unless an earlier tower has; a variable creator."""
    scope = tf.get_default_graph().get_name_scope()
    name = settings.get('name') or 'Variable'
    # With a slash behind it is that of a name scope as a whole.
    name = name[:-1] if name.endswith('/') else '/'.join(filter(None, [scope, name]))
    if scope:
      name = self._make_unique(re.sub(f'^{TOWER_SCOPE}', '', name))
      if name in self.made:
        if isinstance(settings.get('initial_value'), tf.Tensor):
          self.initial_ops.update(find_random_ops(settings['initial_value']))
        return self.made[name]

    if settings.get('trainable') is not None:
      # A string by tf.Variable(value, 'name'), which TensorFlow notices where a variable is copied.
      settings['trainable'] = bool(settings['trainable'])
    device = min(self._bytes_on, key=lambda candidate: self._bytes_on[candidate])
    with tf.device(device), tf.name_scope(None):
      # Ref variables race on CPU devices, and do not go together with resources as slots.
      variable = next_creator(**dict(settings, name=name, use_resource=True))
    if not scope:
      # Keras uses names again, as for the layers of a SavedModel, and TensorFlow makes them unique.
      name = variable.op.name
    self.made[name] = variable
    self._bytes_on[device] += size_of(variable)
    seed_initial_value(variable.initial_value, self.seed, name, self.initial_ops)

    # Of an untrained variable, such as a moving average: one tower changes it for all.
    if variable.trainable:
      for tower, of_tower in self.replicas.items():
        of_tower[name] = make_replica(next_creator, settings, variable, tower=tower,
                                      device=self.devices[tower])
    return variable

  def _make_unique(self, name):
    """Returns the name that TensorFlow makes of one that tf.Variable asks for again.

    tf.get_variable, which has no name scope, never asks again.
    """
    self._asked[name] = self._asked.get(name, -1) + 1
    return f'{name}_{self._asked[name]}' if self._asked[name] else name


def check_made_before(variables: Sequence[Variable]) -> None:
  """Refuses variables that were made before the program unless they are resource variables."""
  refs = [variable.op.name for variable in variables if variable.dtype._is_ref_dtype]
  if refs:
    raise UsageError(f'{shorten(refs)}: made before the program as ref variables, which one tower '
                     'reads while another writes. Write tf.enable_resource_variables() before the '
                     'first variable, and after tf.disable_v2_behavior().')


def adopt_made_before(store: VariableStore, variables: Sequence[Variable]) -> None:
  """Makes variables from before the towers like those of the store: seeded, trained or not."""
  for variable in variables:
    if variable.op.name in store.made:
      continue
    variable._trainable = bool(variable._trainable)
    # A variable of an imported graph has no known initial value.
    if isinstance(variable.initial_value, tf.Tensor):
      seed_initial_value(variable.initial_value, store.seed, variable.op.name, store.initial_ops)


def freeze_variables(patterns: Sequence[str]) -> None:
  """Makes all variables that a pattern matches untrainable, once the first tower has made them: no
  gradient, no slot and no update, but they are read, saved and restored.
  """
  trainable = tf.get_collection_ref(tf.GraphKeys.TRAINABLE_VARIABLES)
  names = [variable.op.name for variable in trainable]
  frozen = set(choose_all('frozen', patterns, names, what='trainable variable'))
  if patterns and len(frozen) == len(names):
    raise UsageError(f"frozen={','.join(list_patterns(patterns))} matches all {len(names)} "
                     'trainable variables, and leaves nothing to train: name those that shall '
                     'stay as they are.')
  trainable[:] = [variable for variable in trainable if variable.op.name not in frozen]


def share_by_name(
    store: VariableStore) -> Tuple[Callable[..., Variable], Callable[..., Variable]]:
  """Returns a custom getter and a creator by which all towers share a store's variables."""
  def getter(getter, name, *args, **kwargs):
    if store.makes_all:
      kwargs.update(reuse=tf.AUTO_REUSE)
    name, value = _without_tower(name), kwargs.get('initializer')
    if name in store.made and value is not None and not callable(value):
      kwargs.update(dtype=store.made[name].dtype.base_dtype)  # The value has decided it.
    return getter(name, *args, **kwargs)

  return getter, store.creator


def _without_tower(name: str) -> str:
  """Returns the name of a variable; tf.train.ExponentialMovingAverage names averages after tensors.

  Within a scope it puts the tensor's name behind that. A model may have a scope `tower_0` too.
  """
  named = re.fullmatch(rf'(.+?/)?({TOWER_SCOPE}.+)/[^/]+/?', name)
  with contextlib.suppress(KeyError):
    if named and tf.get_default_graph().get_operation_by_name(named.group(2)):
      return (named.group(1) or '') + re.sub(f'^{TOWER_SCOPE}', '', name[named.start(2):])
  return name


def redirect_reads(variables: Mapping[str, Variable], instead: Mapping[str, Variable],
                   ops: Sequence[Operation]) -> None:
  """Lets a tower's ops use, in place of variables, those that stand in for them, by their names.

  So the model has the variables of all towers, whatever it does with them.
  """
  graph, known = tf.get_default_graph(), set(ops) if instead else set()
  for name, other in instead.items():
    [handle] = reached = graph.get_operation_by_name(name).outputs[:]
    while reached:
      tensor = reached.pop()
      for op in known.intersection(tensor.consumers()):
        op._set_device(other.device)
        # Into a branch or a loop.
        reached += [output for output in op.outputs if output.dtype == tf.resource]
    replace_tensor(handle, other.handle, known)
    # A scope with a caching_device, as that of tf.nn.dynamic_rnn, reads a variable once.
    cached = getattr(variables.get(name), '_cached_value', None)
    if cached is not None and not known.isdisjoint(cached.consumers()):
      replace_tensor(cached, other.value(), known)
  groups = {b'loc:@' + name.encode(): other for name, other in instead.items()}
  for op in known:
    for other in filter(None, map(groups.get, op.colocation_groups())):
      op._set_device(other.device)
      op._set_attr('_class', tf.AttrValue(list=tf.AttrValue.ListValue(
          s=[b'loc:@' + other.op.name.encode()])))


@contextlib.contextmanager
def naming_variables(tower: str) -> Iterator[None]:
  """Makes errors of a model in `tower` UsageErrors with the fix: TensorFlow's about a variable that
  tower 0 lacks, and Python's about an assignment to a variable's value."""
  try:
    yield
  except ValueError as error:
    missing = re.match(r'Variable (\S+) does not exist, or was not created with', str(error))
    if missing is None:
      raise
    raise UsageError(
        f'{tower} asks for the variable {missing.group(1)}, which tower 0 did not make: give '
        'it a name that is the same in every tower, and make a tf.make_template in the function, '
        'as its second call makes no variables.') from error
  except AttributeError as error:
    first: BaseException = error
    while first.__context__ is not None:  # AutoGraph raises an error anew.
      first = first.__context__
    *_, (frame, _) = traceback.walk_tb(first.__traceback__)
    # Before Python 3.10 the argument of `assign_sub`.
    value: Any = getattr(first, 'obj', frame.f_locals.get('ref'))
    sources = find_needed([value.op]) if isinstance(value, tf.Tensor) else ()
    names = [op.name for op in sources if op.type in VARIABLES]
    if not names or 'assign' not in str(error):
      raise
    raise UsageError(
        f'The model assigns to the variable {names[0]}, of which it has the value alone'
        f'{find_line(value.op)}: a custom_getter that makes constants of variables must let those '
        "through that are not trained, such as moving averages: `return variable if "
        "kwargs.get('trainable') is False else tf.stop_gradient(variable)`.") from error


def check_shared(before: Sequence[Variable], after: Sequence[Variable], *, tower: str) -> None:
  """Refuses a tower that made variables of its own, as by names that count its calls."""
  # Any tower may make the step, by the first random op that reads it.
  known = set(map(id, [*before, *tf.get_collection(tf.GraphKeys.GLOBAL_STEP)]))
  own = [variable for variable in after if id(variable) not in known]
  if own:
    shown = format_lines([f'{variable.name} {variable.shape}, made by the op {variable.op.name}'
                          for variable in own])
    raise UsageError(f'{tower} made {len(own)} variables of its own instead of sharing those '
                     f'of tower 0:\n{shown}\nMake the layer once, outside of the model function, '
                     'and call it inside; or make variables with tf.get_variable or tf.Variable, '
                     'under names that are the same in every tower.')


def format_variables(variables: Sequence[Variable], rates: Mapping[str, str]) -> str:
  """Returns a line for each variable: its name, shape, dtype and learning rate, by name."""
  rows: List[Sequence[str]] = [('variable', 'shape', 'dtype', 'learning rate')]
  for variable in variables:
    # Averages of batch normalization and the like were never to be trained.
    untrained = 'frozen' if getattr(variable, 'trainable', False) else 'not trained'
    rows.append((variable.op.name, str(variable.shape.as_list()), variable.dtype.base_dtype.name,
                 rates.get(variable.op.name, untrained)))
  widths = [max(len(row[column]) for row in rows) for column in range(3)]
  return '\n'.join('  '.join([*map(str.ljust, row, widths), row[3]]) for row in rows)


def format_device_table(devices: Sequence[str], variables: Sequence[Variable],
                        roles: Sequence[str]) -> str:
  """Returns a table of devices: the role, the number of variables, and the bytes of each."""
  check_same_number(len(devices), 'devices', len(roles), 'roles',
                    fix='give a role for each device.')
  rows: Dict[str, List[Any]] = {HOST: ['input', 0, 0]}
  for device, role in zip(devices, roles):
    rows[device] = [f'{rows[device][0]}, {role}' if device in rows else role, 0, 0]
  for variable in variables:
    # One that was made before the program stands where its maker or TensorFlow puts it.
    row = rows.setdefault(variable.device or 'by TensorFlow', ['', 0, 0])
    row[1:] = row[1] + 1, row[2] + size_of(variable)
  width = max(len(role) for role, _, _ in rows.values())
  lines = [f"  {'device':14}  {'role':{width}}  {'variables':>9}  {'bytes':>12}"]
  lines += [f'  {device:14}  {role:{width}}  {count:9}  {size:12,}'
            for device, (role, count, size) in rows.items()]
  return '\n'.join(lines)
