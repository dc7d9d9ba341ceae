"""The model beside: called in another graph, on batches of any number of rows."""

from typing import Any, NamedTuple

from tensorflow_v1 import tf
from towers.input.batch import Batch
from towers.placement import variables
from towers.placement.host import HOST
from towers.tower.all_towers import joining
from towers.tower.model_call import ModelCall


class Beside(NamedTuple):
  """A model in a graph of its own, with variables of its own.

  Attributes:
    graph: that holds nothing else.
    batch: that it is called on, placeholders.
    returned: by it.
  """
  graph: Any
  batch: Batch
  returned: Any


def call_beside(call: ModelCall, batch: Batch, *, scope: str, rows: Any = None, other: Any = None
                ) -> Beside:
  """Calls a tower's model on batches like another; raises what the model raises on them.

  What the model keeps in itself stays as it is. Values of all towers are those of two.

  Args:
    call, scope: of the tower.
    batch: like which they are, of tensors of known ranks.
    rows, other: the sizes of first axes, and of other open ones; None for any.
  """
  owner = getattr(call.model, '__self__', call.model)
  kept = dict(getattr(owner, '__dict__', {}))
  with tf.Graph().as_default() as graph:
    beside = call._replace(
        store=variables.build_variable_store(devices=[HOST]),
        is_training=tf.placeholder_with_default(True, []) if tf.is_tensor(call.is_training) else
        True)
    ours = Batch(tf.nest.map_structure(lambda tensor: tf.placeholder(
        tensor.dtype, [rows, *(other if size is None else size
                               for size in tensor.shape.as_list()[1:])],
        'beside/batch'), batch.tensors), tf.placeholder(tf.int32, [], 'beside/num_examples'))
    try:
      with joining(ours, num_towers=2, joins_norms=call.joins_norms), tf.name_scope(scope):
        return Beside(graph, ours, beside.compute(ours.tensors, index=0, scope=scope))
    finally:
      getattr(owner, '__dict__', {}).update(kept)
