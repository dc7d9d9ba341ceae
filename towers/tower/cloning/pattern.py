"""Clones: further towers copied from a built tower's graph, without another call of the model.

Python builds an op of a deep model in a tenth of a millisecond; TensorFlow copies it in a tenth of
that. A clone has what loss, metrics and gradients of its pattern need, in its own name scope:

  tower_0/conv/Conv2D  ──►  tower_3/conv/Conv2D    on tower 3's device, unless the model placed it
  batch of tower 0     ──►  batch of tower 3
  a seed of its own    ──►  the seed of (seed, tower 3, name)
  a variable           ──►  tower 3's replica, if it has one
  is_training, the micro-batch, all other variables: shared, since they are outside of the tower

A clone computes the same bits as a tower that the model builds. It leaves out what only one tower
needs: updates of moving averages, penalties, summaries; a shared variable is read once on its
device, and the value sent to all; known shapes are constants, and equal constants are one.
"""

import dataclasses
import re
from typing import Any, Dict, Hashable, Iterable, List, Sequence, Set, Tuple

from towers.graph.walk import find_dependents, find_needed, list_sources
from towers.input.batch import Batch
from towers.placement.randomness import is_random, tower_seeds
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import import_placed, tf
from towers.tower.cloning.check import check_state
from towers.tower.recording import Recording
from towers.tower.tower import Tower

# Collections to which one tower adds for all, and descriptions of the graph.
_NOT_CLONED = ('UPDATE_OPS', 'REGULARIZATION_LOSSES', 'SUMMARIES', 'SUMMARY_OP', 'COND_CONTEXT',
               'WHILE_CONTEXT')
# What a clone has of its own.
_RESULTS = ('loss', 'sums', 'weights', 'wholes', 'gradients')


class Pattern:
  """The nodes of a built tower, which computes on `batch`, to import as others."""

  def __init__(self, tower: Tower, recording: Recording, *, store: VariableStore,
               left_out: Iterable[str] = ()):
    """Takes a tower before anything joins it to others.

    Clones add nothing to the collections `left_out`.

    Raises:
      UsageError: the tower cannot be cloned, see `check`.
    """
    self._tower, self.batch, self._store = tower, tower.batch, store
    made = recording.list_ops()
    place = [] if self.batch.row_offset is None else [self.batch.row_offset.first]
    # Some are outside of the scope, as what a custom getter makes is.
    own = find_dependents([op for op in made if op.name.startswith(tower.scope)] + [
        reader for tensor in _tensors(self.batch) + place for reader in tensor.consumers()],
                          within=set(made))
    self._collected = _find_collected(recording, own, left_out)
    self._results = {name: getattr(tower, name) for name in _RESULTS}
    self._roots = [value for value in tf.nest.flatten(
        [self._results, list(self._collected.values())], expand_composites=True)
                   if tf.is_tensor(value)]
    roots = {tensor.op for tensor in self._roots}

    inside = find_needed(roots, within=own)
    replicated = {name for replicas in store.replicas.values() for name in replicas}
    # Reads of shared variables on their devices are for all towers.
    shared = {op for op in inside
              if op.type == 'ReadVariableOp' and op.name not in recording.on_device
              and not any(source in inside or source.name in replicated
                          for source in list_sources(op))}
    ops = sorted(inside - shared, key=lambda op: op._id)
    nodes = [op.node_def for op in ops]
    check_state(ops, nodes)
    self._outside = {source.name for op in ops for source in list_sources(op)}
    self._placed = _find_placed(nodes, recording.on_device, replicated)
    self._nodes = self._merge_constants(ops, nodes, roots)

  def _merge_constants(self, ops, nodes, roots):
    """Returns the nodes of all ops, in which one constant stands for all that are equal to it.

    In a clone of a NASNet every fourth op is such a constant, or a shape that is known.
    """
    names = {node.name for node in nodes}
    kept: List[Any] = []
    merged: Dict[Hashable, str] = {}
    instead: Dict[str, str] = {}
    for op, node in zip(ops, nodes):
      constants = [] if op in roots else _make_constants(op, node)
      if not constants:
        kept.append(node)
      for name, constant in constants:
        is_placed = node.name in self._placed
        unnamed = tf.NodeDef(device=constant.device, attr=constant.attr)
        unnamed.attr.pop('_class', None)
        partners = names.intersection(_get_partners(constant))
        key = is_placed, frozenset(partners), unnamed.SerializeToString(deterministic=True)
        if key not in merged:
          merged[key] = constant.name
          kept.append(constant)
          if is_placed:
            self._placed.add(constant.name)
        instead[name], instead[f'^{name}'] = merged[key], f'^{merged[key]}'
    for node in kept:
      node.input[:] = [instead.get(name, name) for name in node.input]
    return kept

  def clone(self, batch: Batch, index: int, device: str) -> Tower:
    """Returns tower `index` on `device`, computing on a batch of the same static shapes."""
    graph, store = tf.get_default_graph(), self._store
    # The name is not used up yet: if the clone fails, the model is called and needs the same names.
    scope = graph.unique_name(f'tower_{index}', mark_as_used=False) + '/'
    # TensorFlow replaces each input of a name that is in its map, also that of an op of the clone.
    while any(name.startswith(scope) for name in self._outside):
      scope = f'{scope[:-1]}_/'
    replaced = {tensor.name: value for tensor, value in zip(_tensors(self.batch), _tensors(batch))}
    if batch.row_offset is not None and self.batch.row_offset is not None:
      replaced[self.batch.row_offset.first.name] = batch.row_offset.first
    replaced.update((name + ':0', variable.handle)
                    for name, variable in store.replicas.get(index, {}).items())

    definition, names, outside, awaited = self._copy_nodes(scope, batch, index, device)
    input_map = {name: replaced[name] if name in replaced else graph.get_tensor_by_name(name)
                 for name in outside}
    roots = [tensor for tensor in self._roots if tensor.op.name in names]
    found = import_placed(definition, name='', input_map=input_map, return_elements=[
        *(f'{names[tensor.op.name]}:{tensor.value_index}' for tensor in roots), *awaited])
    for op, sources in zip(found[len(roots):], awaited.values()):
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

  def _copy_nodes(self, scope, batch, index, device):
    """Returns the GraphDef of a clone; its ops' names by those of the pattern, the names of the
    tensors that it takes from outside, and by its names those of the ops that it waits for there.
    """
    # The name of a gradient has the scope twice.
    own = self._tower.scope
    twice = re.compile('^(gradients(?:_[0-9]+)?/)' + re.escape(own))
    names = {node.name: scope + twice.sub(rf'\g<1>{scope}', node.name[len(own):])
             if node.name.startswith(own) else f'{scope}outside/{node.name}'
             for node in self._nodes}
    definition = tf.GraphDef(versions=tf.get_default_graph().graph_def_versions)
    outside: Set[str] = set()
    awaited: Dict[str, List[str]] = {}
    # A TensorArray is unpacked beside the batch that fills it.
    of_batch = {group[len(b'loc:@'):].decode() for tensor in _tensors(self.batch)
                for group in tensor.op.colocation_groups()}
    for original in self._nodes:
      node, partners = definition.node.add(), _get_partners(original)
      node.CopyFrom(original)
      node.name = names[original.name]
      del node.input[:]
      for name in original.input:
        op_name = _get_op_name(name)
        if op_name in names:
          node.input.append(name.replace(op_name, names[op_name], 1))
        elif name.startswith('^'):
          awaited.setdefault(node.name, []).append(op_name)
        else:
          node.input.append(name if ':' in name else name + ':0')
          outside.add(node.input[-1])
      node.attr.pop('_class', None)
      kept = [f'loc:@{names[name]}'.encode() for name in partners if name in names]
      if kept:
        node.attr['_class'].list.s.extend(kept)
      if not of_batch.isdisjoint(partners):
        node.device = _tensors(batch)[0].device
      elif original.name in self._placed:
        node.device = device
      if 'frame_name' in node.attr:
        # No name scope has two slashes in a row, so no frame of another loop has this name.
        node.attr['frame_name'].s = scope.encode() + b'/' + node.attr['frame_name'].s
      if is_random(node):
        node.attr['seed'].i, node.attr['seed2'].i = tower_seeds(
            self._store.seed, self._store.first_tower + index, node.op, node.name[len(scope):])
    return definition, names, outside, awaited


def _make_constants(op, node) -> List[Tuple[str, Any]]:
  """Returns (output, constant in its place) of each output of an op, if it is a constant, or has
  inputs of known shapes and returns these; else nothing."""
  if op.control_inputs or op._get_control_flow_context() is not None:
    return []  # What stands inside of a loop would need an Enter op.
  if op.type == 'Const':
    return [(node.name, node)]
  if op.type not in ('Shape', 'ShapeN') or not all(
      tensor.shape.is_fully_defined() for tensor in op.inputs):
    return []
  constants = []
  for port, (tensor, output) in enumerate(zip(op.inputs, op.outputs)):
    name = op.graph.unique_name(f'{node.name}/{port}') if port else node.name
    constant = tf.NodeDef(name=name, op='Const', device=node.device)
    constant.attr['dtype'].type = output.dtype.as_datatype_enum
    constant.attr['value'].tensor.CopyFrom(
        tf.make_tensor_proto(tensor.shape.as_list(), output.dtype))
    constants.append((f'{node.name}:{port}' if port else node.name, constant))
  return constants


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
             if isinstance(item, (tf.Tensor, tf.IndexedSlices)) and item.op in own]
    if items and key not in left_out:
      collected[key] = items
  return collected


def _find_placed(nodes: Sequence[Any], on_device: Set[str], replicated: Set[str]) -> Set[str]:
  """Returns the names of the nodes, given in the graph's order, that go on a clone's device.

  These are the ops that the model has not placed, ops on a variable of which the clone has a
  replica, also through the Enter op of a loop or the Switch of a branch, and ops colocated with
  either.
  """
  # A loop's Enter op comes after the ops inside that read it.
  entrances = {node.name: _get_op_name(node.input[0]) for node in nodes if node.input and
               'T' in node.attr and node.attr['T'].type == tf.resource.as_datatype_enum}

  def is_replicated(name):
    while name in entrances:
      name = entrances[name]
    return name in replicated

  placed = set(on_device)
  for node in nodes:
    partners = _get_partners(node)
    touches_replica = any(map(is_replicated, [*map(_get_op_name, node.input), *partners]))
    if touches_replica or not placed.isdisjoint(partners):
      placed.add(node.name)
  return placed


def _get_op_name(name) -> str:
  """Returns the op's name from a node's input: 'op', 'op:1' or '^op'."""
  return name.lstrip('^').split(':')[0]


def _get_partners(node) -> List[str]:
  """Returns the names of the ops that a node is colocated with."""
  if '_class' not in node.attr:
    return []
  return [name[len(b'loc:@'):].decode() for name in node.attr['_class'].list.s]
