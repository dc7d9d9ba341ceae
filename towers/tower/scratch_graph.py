"""Scratch: a tower's model called once more, in a graph of its own, to be looked at by itself."""

import contextlib
import dataclasses
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from towers.graph.walk import find_needed, list_ops
from towers.input.batch import Batch
from towers.input.row_offsets import build_row_offsets
from towers.placement import variables
from towers.placement.host import HOST
from towers.placement.set_values import keep_set_values
from towers.tensorflow_v1 import loops_keeping, tf
from towers.tower.all_towers import joining
from towers.tower.drawing.draws import Draws, tie_draws
from towers.tower.foreign.placeholders import shaped_as_fed
from towers.tower.losses import sum_returned
from towers.tower.model_call import ModelCall
from towers.tower.tower import Tower


class Scratch(NamedTuple):
  """A graph that holds nothing but a model, with variables of its own.

  Attributes:
    graph: of it.
    calls: of the model, one for each size.
    draws: what its random ops are to depend on, as those of the tower do; the step is 0.
  """
  graph: Any
  calls: List['ScratchCall']
  draws: Draws


class ScratchCall(NamedTuple):
  """A call of the model: its name scope, the placeholders that it took, and what came of it."""
  scope: str
  batch: Batch
  returned: Any
  update_ops: List[Any]


def call_in_scratch(call: ModelCall, tower_batch: Batch, scope: str, sizes: Sequence[int],
                    other: Optional[int] = None,
                    shapes: Optional[Dict[str, Any]] = None) -> Scratch:
  """Calls a tower's model on batches like its own, but of other sizes.

  The model keeps in itself what it has, and values of all towers are those of two. Raises what the
  model raises on such a batch.

  Args:
    call, tower_batch, scope: of the tower; the tensors of the batch have known ranks.
    sizes: of the first axes, of each call.
    other: of open axes; None for any.
    shapes: of what placeholders got in an earlier call, as of `shaped_as_fed`, or a dict for them.
  """
  owner = getattr(call.model, '__self__', call.model)
  kept = dict(getattr(owner, '__dict__', {}))
  with tf.Graph().as_default() as graph:
    call = call._replace(
        store=variables.VariableStore(devices=[HOST], makes_all=True),
        is_training=tf.placeholder_with_default(True, []) if tf.is_tensor(
            call.is_training) else True)
    with tf.device(HOST):
      step = tf.constant(0, tf.int64)
    calls: List[ScratchCall] = []
    try:
      for index, rows in enumerate(sizes):
        batch = Batch(tf.nest.map_structure(lambda tensor, rows=rows: tf.placeholder(
            tensor.dtype, [rows, *(other if size is None else size
                                   for size in tensor.shape.as_list()[1:])],
            'scratch/batch'), tower_batch.tensors),
            rows if tower_batch.is_static and len(sizes) == 1 else
            tf.placeholder(tf.int32, [], 'scratch/num_examples'))
        place = build_row_offsets([batch])[0]
        # All rows are no multiple of these, by which a draw would be taken for theirs.
        batch = batch._replace(row_offset=place._replace(
            num_slots=2 * rows + 1) if batch.is_static else place)
        before = len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
        with tf.name_scope(scope[:-1]) as own, joining(
            batch, num_towers=2, joins_norms=call.global_batch.joins_norms,
            scope=own), shaped_as_fed({} if shapes is None else shapes), loops_keeping(rows), \
            keep_set_values():
          returned = call.compute(batch.tensors, index=index, scope=own)
        call.store.scopes.append(own)
        calls.append(ScratchCall(own, batch, returned,
                                 tf.get_collection(tf.GraphKeys.UPDATE_OPS)[before:]))
    finally:
      getattr(owner, '__dict__', {}).update(kept)
    return Scratch(graph, calls, call.draws._replace(read_step=lambda: step))


@contextlib.contextmanager
def opened_scratch(tower: Tower, sizes: Sequence[int]) -> Iterator[Tuple[List[Tower], Any]]:
  """Yields towers like another in a graph of their own, one of each size, without gradients, and
  their session.

  They draw what the tower draws in the first step. Raises what the model raises on other rows.
  """
  scratch = tower.call_in_scratch(sizes)
  config = tf.ConfigProto(device_count={'GPU': 0})
  config.graph_options.rewrite_options.disable_meta_optimizer = True  # For a few small runs.
  with scratch.graph.as_default(), tf.Session(graph=scratch.graph, config=config) as session:
    towers = []
    for scope, batch, returned, update_ops in scratch.calls:
      with tf.name_scope(scope), joining(batch, num_towers=2):
        sums = sum_returned(returned, batch)
      needed = find_needed(list_ops([*sums.values.values(), *update_ops]))
      tie_draws(sorted(needed, key=lambda op: op._id), scratch.draws, tower=0, scope=scope,
                batch=batch)
      towers.append(dataclasses.replace(
          tower, scope=scope, batch=batch, loss=sums.values['loss'], sums=sums.values,
          global_batch=tower.global_batch._replace(num_examples=batch.num_examples, divisor=1.0),
          weights=sums.weights, wholes={}, update_ops=update_ops, penalties=[], variables=[],
          gradients=[], penalty_gradients=[]))
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer(),
                 tf.tables_initializer()])
    yield towers, session
