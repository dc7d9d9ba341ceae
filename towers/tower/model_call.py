"""A call of the model in a tower: on the program's variables, in the towers' precision."""

import contextlib
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from towers.data.components import naming_errors
from towers.data.composite import decode_batch
from towers.graph.postponed import postpone_writes
from towers.placement import variables
from towers.tensorflow_v1 import Tensor, Variable, control_flow_v1, tf
from towers.tower.all_towers import is_own
from towers.tower.apart import own_collections
from towers.tower.batch_norm.sync_other_layers import joining_norms
from towers.tower.drawing.draws import Draws
from towers.tower.foreign.calls import call_as_is
from towers.tower.foreign.python_switch import answering
from towers.tower.global_batch import GlobalBatch
from towers.tower.losses import Weighted, has_metrics
from towers.tower.named_devices import giving_way
from towers.tower.precision import Precision, cast_inputs, float32_getter

Values = Union[Tensor, Weighted]
Losses = Union[Values, List[Values], Dict[str, Values]]
Model = Callable[[Any, Any], Union[Losses, Tuple[Losses, Dict[str, Values]]]]
"""A model: (the batch's tensors, is_training) to the loss, or to the loss and metrics. The loss is
`[batch]`, one value per example, or a scalar that is their mean. Metrics are a dict from names to
one value per example, `[batch]`. Loss and metrics may be `Weighted`; several losses are a list or a
dict of them.
"""


class ModelCall(NamedTuple):
  """How each tower calls the model.

  Attributes:
    model: to call.
    store: makes the variables.
    global_batch: that of all towers.
    draws: what its random ops depend on.
    is_training: for the model: a bool, or a scalar bool tensor where towers also validate.
    precision: for towers that compute in half precision, or None.
    postpones: whether writes that the loss waits for are left to the end of the step.
  """
  model: Model
  store: variables.VariableStore
  global_batch: GlobalBatch
  draws: Draws
  is_training: Union[bool, Tensor] = False
  precision: Optional[Precision] = None
  postpones: bool = True

  def compute(self, tensors: Any, *, index: int, scope: str,
              instead: Optional[Dict[str, Variable]] = None) -> Any:
    """Returns what the model returns for the tensors of a tower's batch, in its open name scope.

    It reads the variables `instead` of the store's, by name; by default its replicas.
    """
    store, outer = self.store, tf.get_variable_scope()
    store.begin_tower()
    others = store.replicas.get(index, {}) if instead is None else instead
    getter, creator = variables.share_by_name(store)
    half: Dict[str, Any] = {}
    if self.precision is not None:
      tensors = cast_inputs(tensors, self.precision.dtype)
      half = dict(custom_getter=float32_getter(scope), dtype=self.precision.dtype)
    with contextlib.ExitStack() as contexts:
      contexts.enter_context(tf.variable_scope(outer, reuse=index > 0 or None, custom_getter=getter,
                                               auxiliary_name_scope=False))
      contexts.enter_context(tf.variable_scope(tf.get_variable_scope(), auxiliary_name_scope=False,
                                               **half))
      contexts.enter_context(tf.variable_creator_scope(creator))
      contexts.enter_context(naming_errors(tensors))
      contexts.enter_context(variables.naming_variables(
          f'Tower {index}' if self.is_training is not False else
          f'Tower {index}, where is_training is False,'))
      contexts.enter_context(control_flow_v1())
      contexts.enter_context(giving_way(store.devices))
      contexts.enter_context(joining_norms(tensors, scope=scope))
      contexts.enter_context(answering(self.is_training))
      contexts.enter_context(own_collections(store.scopes, store.listed))
      graph = tf.get_default_graph()
      num_ops = len(graph.get_operations())
      returned = call_as_is(self.model, decode_batch(tensors), self.is_training)
      if self.postpones:
        self._postpone_writes(graph.get_operations()[num_ops:], returned, tensors)
      variables.redirect_reads(store.made, others, graph.get_operations()[num_ops:])
      return returned

  def _postpone_writes(self, ops, returned, tensors):
    """Leaves to the end of the step what the loss waits for and one tower can write for all."""
    is_alone = self.global_batch.num_towers * self.global_batch.num_micro_batches == 1
    loss, metrics = returned if has_metrics(returned) else (returned, {})
    penalties = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    losses, others = [[value.op for value in tf.nest.flatten(part, expand_composites=True)
                       if tf.is_tensor(value)] for part in ([loss, penalties], metrics)]
    # Averages may be in the collection all the same.
    trained = {variable.op for variable in tf.trainable_variables() if variable.trainable}

    def may_postpone(write, variable):
      # The second to last part, of an average without bias, which has variables of its own.
      is_average = re.search('moving_|MovingAverage', '/'.join(variable.name.split('/')[-2:]))
      return variable not in trained and bool(is_average or is_alone or not is_own(write, tensors))

    postpone_writes(ops, losses, others, may_postpone, lambda write: is_own(write, tensors))
