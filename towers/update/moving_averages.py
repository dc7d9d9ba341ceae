"""Averages: an exponential moving average of each weight, which validation and export use.

  step n    average ──► average - (average - weight) * share          weight: after its update
            share = max(1 - decay, 9 / (10 + n))

n counts steps from 1. Early averages forget faster, as in `tf.train.ExponentialMovingAverage` with
`num_updates`, whose decay is min(decay, (1 + n) / (10 + n)): so a short run does not measure its
initial weights. A step that is refused, or skipped, moves no average.

An average lives on the device of its weight; of replicas the first tower's are averaged. For
validation by the towers of training, weights and averages change places before a pass and after it,
so that a step pays nothing. A tower of its own measures a snapshot of the averages.
"""

import contextlib
from typing import Any, Dict, Iterator, List, NamedTuple

from towers.base.usage_error import UsageError
from towers.data.digest import DATA_TENSOR
from towers.input.resume_point import CARRY_TENSOR, ORDER_TENSOR, POINT_TENSOR
from towers.placement.host import HOST
from towers.tensorflow_v1 import Operation, Session, Tensor, Variable, tf

# Of a checkpoint with averages, holds their decay: a model may have averages of its own by the same
# names, which validation does not use.
AVERAGES_TENSOR = 'towers/averages'
# The tensors of a checkpoint that belong to no variable.
NOT_VARIABLES = (ORDER_TENSOR, CARRY_TENSOR, POINT_TENSOR, DATA_TENSOR, AVERAGES_TENSOR)


class Averages(NamedTuple):
  """The averages of all weights, `variables` by the names of their weights.

  `exchange_op` exchanges them with the weights; the local variable `is_exchanged` says if they are.
  """
  decay: float
  variables: Dict[str, Variable]
  weights: Dict[str, Variable]
  exchange_op: Operation
  is_exchanged: Variable

  def build_shares(self, step: Variable) -> Dict[Any, Tensor]:
    """Returns by dtype the share of the weights in the averages of the next step, a scalar."""
    with tf.device(HOST), tf.name_scope('average_share'):
      # The step counts those before it.
      share = tf.maximum(9 / (11 + tf.cast(step.read_value(), tf.float64)), 1 - self.decay)
      dtypes = {average.dtype.base_dtype for average in self.variables.values()}
      return {dtype: tf.cast(share, dtype) for dtype in sorted(dtypes, key=str)}

  def build_update(self, shares: Dict[Any, Tensor], *, after: Operation) -> List[Operation]:
    """Returns the ops that move the averages by one step, once `after` has updated the weights."""
    ends = []
    for name, average in self.variables.items():
      with tf.device(average.device), tf.name_scope('average'):
        with tf.control_dependencies([after]):
          weight = self.weights[name].read_value()
        change = (average.read_value() - weight) * shares[average.dtype.base_dtype]
        ends.append(average.assign_sub(change, read_value=False))
    return ends

  @contextlib.contextmanager
  def in_place(self, session: Session) -> Iterator[None]:
    """Opens a context in which the averages are the weights; nothing may train or save there."""
    try:
      session.run(self.exchange_op)
      yield
    finally:
      # Ctrl-C may come before the first exchange or after it.
      if session.run(self.is_exchanged):
        session.run(self.exchange_op)


def name_average(name: str) -> str:
  """Returns the name of a weight's average, which is TensorFlow's."""
  return f'{name}/ExponentialMovingAverage'


def build_averages(decay: float) -> Averages:
  """Makes an average of each trainable variable, which starts where the variable starts.

  Call it once the towers are built, and give it to `build_train_op`. The method is that of Polyak
  and Juditsky (1992), with exponential weights: averages look back over some 1 / (1 - decay) steps.
  """
  weights = {variable.op.name: variable for variable in tf.trainable_variables()}
  taken = {variable.op.name for variable in tf.global_variables()}
  for name, weight in weights.items():
    dtype = weight.dtype.base_dtype
    if dtype.size < 4:
      raise UsageError(f'average_weights: {name} is of {dtype.name}, in which small changes of an '
                       'average are lost: make it of float32, and compute with precision=mixed.')
    if name_average(name) in taken:
      raise UsageError(f'average_weights: the model has a variable {name_average(name)} of its '
                       'own: let one of both average the weights.')
  averages: Dict[str, Variable] = {}
  for name, weight in weights.items():
    with tf.device(weight.device), tf.name_scope(None), tf.init_scope():
      averages[name] = tf.Variable(
          weight.initializer.inputs[1], name=name_average(name), trainable=False, use_resource=True)
  with tf.name_scope('averages'):
    with tf.device(HOST):
      is_exchanged = tf.Variable(False, name='is_exchanged', trainable=False, use_resource=True,
                                 collections=[tf.GraphKeys.LOCAL_VARIABLES])
    exchange_op = _build_exchange(weights, averages, is_exchanged)
  return Averages(decay, averages, weights, exchange_op, is_exchanged)


def _build_exchange(weights, averages, is_exchanged):
  """Returns the op that exchanges all weights and averages.

  On each device one after the other, which takes the memory of two weights and no more. What writes
  a weight writes its replicas, see `replicas`.
  """
  last: Dict[str, List[Operation]] = {}
  for name, weight in weights.items():
    device, average = weight.device, averages[name]
    with tf.device(device), tf.control_dependencies(last.get(device, [])):
      values = [weight.read_value(), average.read_value()]
      with tf.control_dependencies(values):
        last[device] = [weight.assign(values[1], read_value=False),
                        average.assign(values[0], read_value=False)]
  with tf.control_dependencies([op for ops in last.values() for op in ops]), tf.device(HOST):
    return is_exchanged.assign(tf.logical_not(is_exchanged.read_value()), read_value=False)
