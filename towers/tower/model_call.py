"""A call of the model in a tower: on the program's variables, in the towers' precision."""

import contextlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from tensorflow_v1 import Tensor, Variable, tf
from towers.data.components import naming_dtypes
from towers.data.composite import decode_batch
from towers.placement import variables
from towers.tower.drawing.draws import Draws
from towers.tower.global_batch import GlobalBatch
from towers.tower.losses import Weighted
from towers.tower.precision import Precision, cast_inputs, float32_getter

Values = Union[Tensor, Weighted]
Losses = Union[Values, Tuple[Tensor, Tensor], List[Values], Dict[str, Values]]
Model = Callable[[Any, Any], Union[Losses, Tuple[Losses, Dict[str, Values]]]]
"""A model: (the batch's tensors, is_training) to the loss, or to the loss and metrics. The loss is
`[batch]`, one value per example, or a scalar that is their mean. Metrics are a dict from names to
one value per example, `[batch]`. Loss and metrics may be `Weighted`; a pair of tensors is a loss
with weights; several losses are a list or a dict of them.
"""


class ModelCall(NamedTuple):
  """How each tower calls the model.

  Attributes:
    model: to call.
    store: makes the variables.
    whole: the batch that all towers compute on.
    draws: what its random ops depend on.
    is_training: for the model: a bool, or a scalar bool tensor where towers also validate.
    precision: for towers that compute in half precision, or None.
    joins_norms: whether its layers of batch normalisation take sums of all towers.
  """
  model: Model
  store: variables.VariableStore
  whole: GlobalBatch
  draws: Draws
  is_training: Union[bool, Tensor] = False
  precision: Optional[Precision] = None
  joins_norms: bool = False

  def compute(self, tensors: Any, *, index: int, scope: str,
              instead: Optional[Dict[str, Variable]] = None) -> Any:
    """Returns what the model returns for the tensors of a tower's batch, in its open name scope.

    It reads the variables `instead` of the store's, by name; by default its replicas.
    """
    store, outer = self.store, tf.get_variable_scope()
    store.begin_tower()
    getter, creator = variables.stand_in(
        store, store.replicas.get(index, {}) if instead is None else instead)
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
      contexts.enter_context(variables.naming_missing(tower=index))
      contexts.enter_context(naming_dtypes(tensors))
      return self.model(decode_batch(tensors), self.is_training)
