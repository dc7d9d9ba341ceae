"""Clones: further towers copied from a built tower's graph, without another call of the model.

Python builds an op of a deep model in a tenth of a millisecond; TensorFlow copies it in a tenth of
that. A clone has what loss, metrics and gradients of its pattern need, in its own name scope:

  tower_0/conv/Conv2D  ──►  tower_3/conv/Conv2D    on tower 3's device, unless the model placed it
  batch of tower 0     ──►  batch of tower 3
  a seed of its own    ──►  the seed of (seed, tower 3, name)
  a variable           ──►  tower 3's replica, if it has one
  is_training, the micro-batch, all other variables: shared, since they are outside of the tower

A clone computes the same bits as a tower that the model builds. It leaves out what only one tower
needs: updates of moving averages, penalties, summaries; and a shared variable is read once on its
device, and the value sent to all.
"""

import dataclasses
from typing import Any, Dict, Hashable, Iterable, List

from towers.input.batch import Batch
from towers.placement.randomness import is_random, tower_seeds
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import import_placed, tf
from towers.tower.cloning.check import check_scope, check_state
from towers.tower.cloning.names import get_op_name, reach_back
from towers.tower.cloning.pattern_graph import PatternGraph
from towers.tower.recording import Recording
from towers.tower.tower import Tower

# Collections to which one tower adds for all, and descriptions of the graph.
_NOT_CLONED = ('UPDATE_OPS', 'REGULARIZATION_LOSSES', 'SUMMARIES', 'SUMMARY_OP', 'COND_CONTEXT',
               'WHILE_CONTEXT')
# What a clone has of its own.
_RESULTS = ('loss', 'sums', 'weights', 'wholes', 'gradients')


class Pattern:
  """The GraphDef of a built tower, which computes on `batch`, in a form to import as others."""

  def __init__(self, tower: Tower, recording: Recording, *, store: VariableStore,
               left_out: Iterable[str] = ()):
    """Takes a tower before anything joins it to others.

    Clones add nothing to the collections `left_out`.

    Raises:
      UsageError: the tower cannot be cloned, see `check`.
    """
    self._tower, self.batch, self._store = tower, tower.batch, store
    graph = tf.get_default_graph()
    made = {op.name for op in recording.list_ops()}
    own = {name for name in made if name.startswith(tower.scope)}
    self._collected = _find_collected(recording, own, left_out)
    self._results = {name: getattr(tower, name) for name in _RESULTS}
    self._roots = [value for value in tf.nest.flatten(
        [self._results, list(self._collected.values())], expand_composites=True)
                   if tf.is_tensor(value)]
    roots = [tensor.op.name for tensor in self._roots]

    graph_def = graph.as_graph_def()
    nodes = {node.name: node for node in graph_def.node}
    self._inside = reach_back(roots, nodes, own)
    check_scope(roots, self._inside, nodes=nodes, made=made,
                batch={tensor.op.name for tensor in _tensors(self.batch)})
    check_state(self._inside, nodes)
    replicated = {name for replicas in store.replicas.values() for name in replicas}
    # Reads of shared variables on their devices are for all towers.
    own_handles = replicated | self._inside
    self._inside -= {
        name for name in self._inside - recording.on_device if nodes[name].op == 'ReadVariableOp'
        and own_handles.isdisjoint(map(get_op_name, nodes[name].input))}
    self._graph = PatternGraph([node for node in graph_def.node if node.name in self._inside],
                               tower.scope, self.batch, graph_def,
                               on_device=recording.on_device, replicated=replicated)
    self._random = list(filter(is_random, self._graph.definition.node))

  def clone(self, batch: Batch, index: int, device: str) -> Tower:
    """Returns tower `index` on `device`, computing on a batch of the same static shapes."""
    graph, pattern, store = tf.get_default_graph(), self._graph, self._store
    # The name is not used up yet: if the clone fails, the model is called and needs the same names.
    scope = graph.unique_name(f'tower_{index}', mark_as_used=False) + '/'
    replaced = {tensor.name: value for tensor, value in zip(_tensors(self.batch), _tensors(batch))}
    if batch.row_offset is not None and self.batch.row_offset is not None:
      replaced[self.batch.row_offset.first.name] = batch.row_offset.first
    replaced.update((name + ':0', variable.handle)
                    for name, variable in store.replicas.get(index, {}).items())

    for node in self._random:
      node.attr['seed'].i, node.attr['seed2'].i = tower_seeds(
          store.seed, store.first_tower + index, node.op, node.name)
    for node, frame in pattern.frames:
      # No name scope has two slashes in a row, so no frame of another loop has this name.
      node.attr['frame_name'].s = f'{scope}/{frame}'.encode()
    for node in pattern.placed:
      node.device = device
    for node in pattern.beside_batch:
      node.device = _tensors(batch)[0].device

    roots = [tensor for tensor in self._roots if tensor.op.name in self._inside]
    found = import_placed(pattern.definition, name=scope, input_map={
        inside: replaced[name] if name in replaced else graph.get_tensor_by_name(name)
        for inside, name in pattern.names.outside.items()}, return_elements=[
            *map(pattern.names.get_tensor, roots), *pattern.control_inputs])
    for op, sources in zip(found[len(roots):], pattern.control_inputs.values()):
      op._add_control_inputs([graph.get_operation_by_name(source) for source in sources])
    for tensor, clone in zip(roots, found):
      # Python knows more about shapes than TensorFlow's importer, such as those of loop results.
      clone.set_shape(tensor.shape)
    graph.unique_name(f'tower_{index}')
    cloned = {**dict(zip([tensor.name for tensor in roots], found)), **replaced}

    def copy(structure):
      return tf.nest.map_structure(
          lambda value: cloned.get(value.name, value) if tf.is_tensor(value) else value,
          structure, expand_composites=True)

    for key, items in self._collected.items():
      for item in items:
        graph.add_to_collection(key, copy(item))
    return dataclasses.replace(
        self._tower, device=device, scope=scope, batch=batch, update_ops=[], penalties=[],
        variables=store.list_trainable(index), penalty_gradients=[], **copy(self._results))


def find_static(batch: Batch) -> Hashable:
  """Returns all that is static in a batch: a pattern holds what Python has computed from it."""
  return (batch.may_be_empty, batch.num_examples if batch.is_static else None,
          *((tensor.dtype, str(tensor.shape)) for tensor in _tensors(batch)))


def _tensors(batch):
  return [tensor for tensor in batch.flatten() if isinstance(tensor, tf.Tensor)]


def _find_collected(recording, own, left_out) -> Dict[str, List[Any]]:
  """Returns the tensors of the tower's `own` ops that are in collections, by collection."""
  graph = tf.get_default_graph()
  left_out = {getattr(tf.GraphKeys, name) for name in _NOT_CLONED}.union(left_out)
  collected: Dict[str, List[Any]] = {}
  for key in graph.get_all_collection_keys():
    items = [item for item in graph.get_collection_ref(key)[recording.sizes.get(key, 0):]
             if isinstance(item, (tf.Tensor, tf.IndexedSlices)) and item.op.name in own]
    if items and key not in left_out:
      collected[key] = items
  return collected
