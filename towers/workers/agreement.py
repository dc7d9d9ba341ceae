"""Agreement: what all workers must share before they take a step together.

Workers whose graphs differ would hang, or train apart, and so would those that go on from different
steps: facts are compared, and where there is something to decide the chief does.
"""

import collections
import hashlib
import json
from typing import Any, Callable, Dict, Mapping, Sequence

from towers.base.usage_error import UsageError, first_few
from towers.placement.cluster import Cluster
from towers.tensorflow_v1 import Graph, tf


def check_alike(cluster: Cluster, what: str, facts: Sequence[Mapping[str, Any]], fix: str) -> None:
  """Refuses workers whose facts of `what`, as 'flags', by rank, differ; names who, and in what."""
  differences = []
  for name in sorted({name for other in facts for name in other}):
    values = [json.dumps(other.get(name)) for other in facts]
    counts = collections.Counter(values)
    # In a tie, the chief's.
    usual = max(values, key=lambda value: (counts[value], value == values[0]))
    differences += [f'{cluster.describe(rank)} has {name}={value}, the others {usual}'
                    for rank, value in enumerate(values) if value != usual]
  if differences:
    shown = '; '.join(first_few(differences)[0])
    raise UsageError(f'The workers have different {what}: {shown}. {fix}')


def follow_chief(worker: Any, decide: Callable[[], Any]) -> Any:
  """Returns what the chief's `decide()` gives, as JSON has it, on all workers, which all call it.

  It may raise, and then all of them raise. `worker` is this process among several workers.
  """
  own, refusal, fault = None, None, None
  try:
    if worker.cluster.is_chief:
      own = decide()
  except Exception as error:
    fault, refusal = error, str(error)

  def follow(values):
    decision, refusal = values[0]
    if refusal is not None:
      raise fault or UsageError(f'The chief restores nothing: {refusal}')
    return decision

  return worker.peers.share([own, refusal], follow)


def find_facts(graph: Graph) -> Dict[str, str]:
  """Returns what all workers' graphs must share: variables, collectives and the first tower."""
  with graph.as_default():
    variables = [f'{variable.op.name} {variable.shape} {variable.dtype.base_dtype.name}'
                 for variable in tf.global_variables()]
  ops = graph.get_operations()
  # Of sums whose shape each step chooses, 2.x takes the key as an input.
  collectives = [f"{op.type} {op.node_def.attr['instance_key'].i} "
                 f"{[str(value.shape) for value in op.inputs]}"
                 for op in ops if op.type.startswith('CollectiveReduce')]
  tower = [f'{op.name} {op.type}' for op in ops if op.name.startswith('tower_0/')]
  return dict(variables=_digest(variables), collectives=_digest(collectives),
              ops_of_tower_0=_digest(tower))


def _digest(lines):
  digest = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
  return f'{len(lines)}, {digest[:8]}'
