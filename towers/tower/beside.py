"""A tower beside: the model called once more, on any number of rows, to be measured by itself."""

import contextlib
from typing import Any, Iterator, Tuple

from towers.graph.walk import find_needed, list_ops
from towers.tensorflow_v1 import tf
from towers.tower.all_towers import joining
from towers.tower.drawing.draws import tie_draws
from towers.tower.losses import sum_returned
from towers.tower.tower import Tower


@contextlib.contextmanager
def opened_beside(tower: Tower) -> Iterator[Tuple[Tower, Any]]:
  """Yields a tower like another in a graph of its own, without gradients, and its session.

  It draws what the other draws in the first step. Raises what the model raises on other rows.
  """
  tower.call_beside.cache_clear()  # What is added to the graph below is added once.
  graph, batch, returned, draws = tower.call_beside()
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
    whole = tower.whole._replace(num_examples=batch.num_examples, divisor=1.0)
    yield tower._replace(batch=batch, loss=sums.values['loss'], sums=sums.values, whole=whole,
                         weights=sums.weights, wholes={}, gradients=[], variables=[], penalties=[],
                         update_ops=updates), session
