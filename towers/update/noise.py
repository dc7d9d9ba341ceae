"""Noise: what an update draws, for gradients or a rate, follows from the seed, the step and its
number among the draws of the update alone.

So it is the same for any number of towers, workers and micro-batches, and a run repeats and
resumes. Of replicas each counts its own, so that all draw alike.
"""

import collections
from typing import Any, Dict, Iterable, Sequence, Set

from towers.graph.walk import find_dependents, find_needed, list_ops
from towers.graph.writes import find_writes
from towers.input.batch import Batch
from towers.placement import randomness
from towers.placement.replicas import IS_REPLICA
from towers.tensorflow_v1 import Operation, tf
from towers.tower.drawing.draws import begin_draws, tie_draws, warn_of_left


def tie_noise(done: Any, made: Iterable[Operation], scopes: Sequence[str], seed: int) -> None:
  """Ties the random ops that a step needs, but for those of the towers, to the seed and the step.

  `done` ends the step, whose update has `made` ops; a rate may have been made before.
  """
  graph, scopes = tf.get_default_graph(), tuple(scopes)
  random = {op for op in graph.get_operations()
            if (randomness.is_random(op) or randomness.is_stateless(op))
            and not op.name.startswith(scopes)}
  after = find_dependents(random.union(filter(randomness.find_unseedable, made)))
  needed = find_needed(list_ops([done]), within=after)
  copies: Dict[str, Set[Operation]] = collections.defaultdict(set)
  for write in find_writes(graph) if needed else ():
    for variable in write.variables if write.op in needed else ():
      copy = IS_REPLICA.match(variable.name)
      copies[copy.group() if copy else ''] |= find_needed([write.op], within=needed) & random
  names = {op: f'update {number}' for copy in copies.values()
           for number, op in enumerate(sorted(copy, key=lambda op: op._id))}
  names.update((op, op.name) for op in needed - random if randomness.find_unseedable(op))
  draws = begin_draws(seed)._replace(
      names={'': list(names.values())}, layouts=dict.fromkeys(names.values()))
  warn_of_left(tie_draws(names, draws, tower=0, scope='', batch=Batch((), 0)))
