"""First batch: variables start from what a function of the first global batch assigns to them.

  def first(batch):                                # As the model, with its data-dependent start.
    with arg_scope([actnorm], init=True):
      return net(batch[0])

  towers.Program(model, init_from=first, …)

It is called once, in a graph of its own on one device, with the whole batch of all towers and
workers: what it assigns depends on neither. A run that resumes does not call it. A variable whose
initializer needs a batch, as `tf.get_variable('scale', initializer=scale_of_batch)`, starts there
from that of the call; in the program, and where weights are given, it is zero before.
"""

from typing import Any, Callable, Dict, List

import numpy as np

from towers.base.usage_error import UsageError, check_parameters
from towers.data.examples import Examples
from towers.graph.postponed import PASSES, WRITES, find_variable
from towers.graph.walk import find_loops, find_needed, list_ops
from towers.input.pipeline import build_inputs
from towers.input.plan import Plan
from towers.placement.devices import Devices, build_session_config
from towers.placement.patterns import shorten
from towers.placement.replicas import REPLICAS
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import Operation, Session, Variable, tf
from towers.tower.drawing.draws import begin_draws
from towers.tower.forward_pass import build_outputs
from towers.tower.global_batch import join_batches
from towers.tower.model_call import ModelCall
from towers.tower.precision import build_precision
from towers.warm_start.warm_start import load_values


def find_late(tensors: Any) -> List[Variable]:
  """Returns the variables whose initial value needs the tensors of a batch."""
  batch = {tensor.op for tensor in tf.nest.flatten(tensors)}
  found = tf.global_variables() + tf.get_collection(REPLICAS)
  if batch.isdisjoint(find_needed([variable.initializer for variable in found])):
    return []
  return [variable for variable in found
          if not batch.isdisjoint(find_needed([variable.initializer]))]


def start_from_zeros(late: List[Variable]) -> None:
  """Lets variables be zero before they have another value."""
  for variable in late:
    with tf.device(variable.device), tf.name_scope(None):
      variable._initial_value = tf.zeros(variable.shape, variable.dtype.base_dtype)
    variable.initializer._update_input(1, variable._initial_value)


class FirstBatch:
  """What starts a program's variables, beside their initializers.

  Attributes:
    source: it, in words.
  """

  def __init__(self, function: Callable[[Any], Any], examples: Examples, plan: Plan, given: Any,
               devices: Devices, late: List[Variable]):
    """Calls nothing yet; takes the split that the program trains on, its plan and settings, and
    the variables that need a batch, which it lets start from zeros."""
    self.source = getattr(function, '__name__', type(function).__name__)
    if plan.is_by_hand:
      raise UsageError(f'init_from={self.source} is a function of the first batch, and batches '
                       'come by hand: give examples as train=.')
    check_parameters(function, f'init_from={self.source}', 'batch', fix='write def first(batch)')
    self._function, self._examples, self._given, self._devices = function, examples, given, devices
    start_from_zeros(late)
    self._late = [variable.op.name for variable in late if variable in tf.global_variables()]
    self._plan = plan._replace(num_towers=1, num_workers=1, rank=0, accumulate=1)

  def start(self, session: Session) -> str:
    """Gives the variables what the function assigns; returns a line that says so."""
    with session.graph.as_default():
      variables = {variable.op.name: variable for variable in tf.global_variables()}
    with tf.Graph().as_default() as graph:
      done, inputs, late = self._build()
      own = {variable.op.name: variable for variable in tf.global_variables()}
      others = [name for name in own if name not in variables]
      if others:
        raise UsageError(f'init_from={self.source} makes {shorten(others)}, which the model does '
                         'not have: make the variables by the names that the model gives them.')
      with tf.Session(graph=graph, config=build_session_config(self._devices)) as beside:
        beside.run([tf.local_variables_initializer(), tf.tables_initializer()])
        before = session.run({name: variables[name] for name in own})
        load_values(beside, {own[name]: value for name, value in before.items()})
        beside.run(inputs.initializer, inputs.feed_dict(0))
        beside.run(done)
        after = beside.run(own)
    changed = {variables[name]: value for name, value in after.items()
               if not np.array_equal(value, before[name])}
    left = [name for name in self._late if name not in late and variables[name] not in changed]
    if left:
      raise UsageError(f'init_from={self.source} gives no value to {shorten(left)}, which start '
                       'from a batch: call the model there, as lambda batch: model(batch, True).')
    if not changed:
      raise UsageError(f'init_from={self.source} changes no variable: return what its assignments '
                       'lead to, as the result of the net, or tf.group of them.')
    load_values(session, changed)
    return f'initial weights: {self.source} of the first batch, {self._plan.size_at(0)} examples'

  def _build(self):
    """Builds the call; returns the op that ends it, the inputs of its batch, and by the names of
    their variables the initializers that need it."""
    given, [device, *_] = self._given, self._devices.names
    inputs = build_inputs(self._examples, plan=self._plan, mode='split', shuffle=given.shuffle,
                          seed=given.seed, parallel_calls=given.input_threads)
    store = VariableStore(devices=[device], placement='first', seed=given.seed)
    whole = join_batches(inputs.next_batches())
    call = ModelCall(lambda batch, _: self._function(batch), store, whole, begin_draws(store.seed),
                     precision=build_precision(given.precision, devices=[device], loss_scale=1.0),
                     postpones=False)
    returned = build_outputs(call, whole.batches[0], device, index=0)
    late = {variable.op.name: variable.initializer
            for variable in find_late(whole.batches[0].tensors)}
    done = tf.group(*list_ops(tf.nest.flatten(returned)), *late.values())
    _order_reads(find_needed([done]), set(late.values()))
    return done, inputs, late


def _order_reads(needed, late) -> None:
  """Lets what reads a variable wait for the assignments that the function has made before.

  Functions are written for variables whose reads see them, although only what they compute beside
  waits: `with tf.control_dependencies([w.assign(first)]): x = tf.identity(x)`, then `x * w`.
  """
  last: Dict[Operation, Any] = {}
  started = {variable.initializer for variable in tf.global_variables() + tf.local_variables()
             if variable.initializer not in late}
  for op in tf.get_default_graph().get_operations():
    if op in started or not op.inputs or op.inputs[0].dtype != tf.resource or op.type in PASSES:
      continue
    variable, place = find_variable(op), op._get_control_flow_context()
    write, within = last.get(variable, (None, None))
    if write is not None and within in (None, place) and find_loops(op) == find_loops(write):
      op._add_control_input(write)
    if WRITES.match(op.type) and op in needed:
      last[variable] = op, place
