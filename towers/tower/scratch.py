"""Scratch: a tower's model called once more, in a graph of its own, to be looked at by itself."""

import contextlib
import dataclasses
from typing import Any, Dict, Iterator, NamedTuple, Tuple

from towers.graph.walk import find_needed, list_ops
from towers.input.batch import Batch
from towers.input.row_offsets import build_row_offsets
from towers.placement import variables
from towers.placement.host import HOST
from towers.tensorflow_v1 import tf
from towers.tower.all_towers import joining
from towers.tower.drawing.draws import Draws, tie_draws
from towers.tower.losses import sum_returned
from towers.tower.model_call import ModelCall
from towers.tower.tower import Tower


class ScratchCall(NamedTuple):
  """A model in a graph of its own, with variables of its own.

  Attributes:
    graph: that holds nothing else.
    batch: that it is called on, placeholders.
    returned: by it.
    draws: what its random ops are to depend on, as those of the tower do; the step is 0.
  """
  graph: Any
  batch: Batch
  returned: Any
  draws: Draws


class ScratchCalls:
  """Calls of a tower's model on batches like its own, but of other sizes, each kept.

  Attributes:
    made: those that are kept, by sizes.
  """

  def __init__(self, call: ModelCall, batch: Batch, scope: str):
    """Makes none yet; the tensors of the tower's batch have known ranks."""
    self._call, self._batch, self._scope = call, batch, scope
    self.made: Dict[Tuple[Any, Any], ScratchCall] = {}

  def get(self, rows: Any = None, other: Any = None) -> ScratchCall:
    """Returns the call whose first axes have the size `rows`, and open ones `other`; None for any.

    Raises what the model raises on such a batch.
    """
    sizes = rows, other
    if sizes not in self.made:
      self.made[sizes] = self._make(rows, other)
    return self.made[sizes]

  def _make(self, rows, other):
    """Calls the model, which keeps in itself what it has; values of all towers are those of two."""
    owner = getattr(self._call.model, '__self__', self._call.model)
    kept = dict(getattr(owner, '__dict__', {}))
    with tf.Graph().as_default() as graph:
      call = self._call._replace(
          store=variables.build_variable_store(devices=[HOST]),
          is_training=tf.placeholder_with_default(True, []) if tf.is_tensor(
              self._call.is_training) else True)
      batch = Batch(tf.nest.map_structure(lambda tensor: tf.placeholder(
          tensor.dtype, [rows, *(other if size is None else size
                                 for size in tensor.shape.as_list()[1:])],
          'scratch/batch'), self._batch.tensors), tf.placeholder(tf.int32, [],
                                                                 'scratch/num_examples'))
      batch = batch._replace(row_offset=build_row_offsets([batch])[0])
      with tf.device(HOST):
        step = tf.constant(0, tf.int64)
      try:
        with joining(batch, num_towers=2, joins_norms=call.joins_norms), tf.name_scope(self._scope):
          return ScratchCall(graph, batch, call.compute(batch.tensors, index=0, scope=self._scope),
                             call.draws._replace(read_step=lambda: step))
      finally:
        getattr(owner, '__dict__', {}).update(kept)


@contextlib.contextmanager
def opened_scratch(tower: Tower) -> Iterator[Tuple[Tower, Any]]:
  """Yields a tower like another in a graph of its own, without gradients, and its session.

  It draws what the tower draws in the first step. Raises what the model raises on other rows.
  """
  tower.scratch_calls.made.clear()  # What is added to the graph below is added once.
  graph, batch, returned, draws = tower.scratch_calls.get()
  config = tf.ConfigProto(device_count={'GPU': 0})
  config.graph_options.rewrite_options.disable_meta_optimizer = True  # For a few small runs.
  with graph.as_default(), tf.Session(graph=graph, config=config) as session:
    with tf.name_scope(tower.scope), joining(batch, num_towers=2):
      sums = sum_returned(returned, batch)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    needed = find_needed(list_ops([*sums.values.values(), *updates]))
    tie_draws(sorted(needed, key=lambda op: op._id), draws, tower=0, scope=tower.scope, batch=batch)
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer(),
                 tf.tables_initializer()])
    global_batch = tower.global_batch._replace(num_examples=batch.num_examples, divisor=1.0)
    yield dataclasses.replace(
        tower, batch=batch, global_batch=global_batch, loss=sums.values['loss'], sums=sums.values,
        weights=sums.weights, wholes={}, update_ops=updates, penalties=[], variables=[],
        gradients=[], penalty_gradients=[]), session
