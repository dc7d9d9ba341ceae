"""Clones: further towers copied from a built one's graph, instead of calling the model once more.

Python builds an op of a deep model in a tenth of a millisecond; TensorFlow itself copies the op in a tenth of that. A
clone holds what the loss, the metrics and the gradients of its pattern need, under its own name scope:

  tower_0/conv/Conv2D  ──►  tower_3/conv/Conv2D    on tower 3's device, unless the model put the op elsewhere itself
  batch of tower 0     ──►  batch of tower 3
  a key of dropout     ──►  the key that (seed, tower 3, name) gives
  a variable           ──►  tower 3's copy, if it has one
  is_training, run, all other variables: shared, as they stand outside of the tower

What a tower would be if the model were called, a clone is too, to the bit. What only one tower needs (updates of moving
averages, penalties, summaries) is left out. So is what would be there twice: a shared variable is read once where it
stands and the value sent to every tower, constants that are equal are one, and shapes that are known are constants. Of
a clone of NASNet-Large half of the ops goes.
"""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Set

from tensorflow_v1 import import_placed, tf
from towers.batch import Batch
from towers.parcels import group_alike, join, part
from towers.randomness import find_random_nodes, seed_nodes
from usage_error import UsageError

# What one tower adds for all, and what describes a graph instead of being part of it.
_NOT_CLONED = ('UPDATE_OPS', 'REGULARIZATION_LOSSES', 'SUMMARIES', 'SUMMARY_OP', 'COND_CONTEXT', 'WHILE_CONTEXT')


class Recording(NamedTuple):
  """What must be known of a tower before it is built, to clone it afterwards.

  Attributes:
    place: for `tf.device`: gives the tower's device to every op that has none of its own.
    on_device: the names of these ops.
    num_ops: in the graph before.
    sizes: of all collections before.
  """
  place: Callable[[Any], str]
  on_device: Set[str]
  num_ops: int
  sizes: Dict[str, int]

  def count_ops(self) -> int:
    """Returns how many ops the tower's device has been given."""
    return len(self.on_device)


def record_tower(device: str) -> Recording:
  """Begins to record a tower that is to be built on `device`."""
  graph = tf.get_default_graph()
  on_device: Set[str] = set()

  def place(op):
    if op.device:
      return op.device
    on_device.add(op.name)
    return device

  return Recording(place, on_device, len(graph.get_operations()),
                   {key: len(graph.get_collection_ref(key)) for key in graph.get_all_collection_keys()})


class Pattern:
  """A built tower in a form that copies are made from."""

  def __init__(self, tower: Any, batch: Batch, recording: Recording, *, seed: int, copied: Set[str],
               left_out: Iterable[str] = (), first_tower: int = 0):
    """Takes a tower with its gradients, before anything joins it to others.

    Args:
      tower: to copy.
      batch: that it computes on.
      recording: of it.
      seed: of the run.
      copied: the names of the variables of which later towers have copies of their own.
      left_out: collections whose tensors nobody will ask the clones for.
      first_tower: as of the variable store.

    Raises:
      UsageError: the model made ops outside of its name scope that cannot be told from shared ones.
    """
    self._tower, self._batch, self._seed, self._copied = tower, batch, seed, copied
    self._first_tower = first_tower
    self._collected = _find_collected(recording, tower.scope, left_out)
    self._roots: List[Any] = []
    for value in [tower.loss, list(tower.sums.values()), tower.gradients,
                  [item for items in self._collected.values() for item in items]]:
      self._roots += _flatten(value)
    graph = tf.get_default_graph()
    graph_def = graph.as_graph_def()
    nodes = {node.name: node for node in graph_def.node}
    made = {op.name for op in graph.get_operations()[recording.num_ops:]}
    self._inside = _reach_back(self._roots, nodes, tower.scope)
    _check_outside(self._inside, nodes, made, batch, tower.scope)
    self._inside -= {name for name in self._inside if self._is_shared_read(nodes[name], recording)}

    self._graph_def = tf.GraphDef(versions=graph_def.versions)
    self._outside_inputs: Set[str] = set()
    self._control_inputs: Dict[str, List[str]] = {}
    self._frames: List[Any] = []
    self._constants: Dict[bytes, str] = {}
    self._equal: Dict[str, str] = {}
    # In the graph's order: what is read from back edges of loops aside, inputs stand before what takes them.
    for node in graph_def.node:
      if node.name in self._inside and not self._add_known_shapes(node, recording):
        self._add_node(node, recording)
    self._placed = [node for node in self._graph_def.node if not node.device]
    self._random = find_random_nodes(self._graph_def.node)
    self._parcels = self._join_reads(nodes)

  def _join_reads(self, nodes):
    """Returns what shared reads give that is small, joined where it stands, and apart."""
    graph = tf.get_default_graph()
    reads = [graph.get_tensor_by_name(name) for name in sorted(self._outside_inputs)
             if _op_name(name) in nodes and nodes[_op_name(name)].op == 'ReadVariableOp']
    groups = [[reads[number] for number in group] for group in group_alike(reads, [read.device for read in reads])]
    joined = []
    for alike in groups:
      with tf.device(alike[0].device), tf.name_scope('join_reads'):
        joined.append((join(alike), alike))
    return joined

  def fits(self, batch: Batch) -> bool:
    """Whether the pattern's batch and another are alike in all that is static."""
    return has_same_shapes(self._batch, batch)

  def _is_shared_read(self, node, recording):
    """Whether a node reads a shared variable where that stands: it gives all towers the same value."""
    return (node.op == 'ReadVariableOp' and node.name not in recording.on_device and
            not any(name in self._inside or name in self._copied for name in map(_op_name, node.input)))

  def _add_known_shapes(self, node, recording):
    """Adds constants instead of a node that tells nothing but static shapes; returns whether it is one."""
    if node.op != 'ShapeN':
      return False
    op = tf.get_default_graph().get_operation_by_name(node.name)
    # In a loop a constant would have to enter it.
    if op._get_control_flow_context() is not None or not all(tensor.shape.is_fully_defined() for tensor in op.inputs):
      return False
    for number, (tensor, shape) in enumerate(zip(op.inputs, op.outputs)):
      constant = tf.NodeDef(name='%s/%d' % (node.name, number), op='Const', device=node.device)
      constant.attr['dtype'].type = shape.dtype.as_datatype_enum
      constant.attr['value'].tensor.CopyFrom(tf.make_tensor_proto(tensor.shape.as_list(), shape.dtype))
      if node.name in recording.on_device:
        recording.on_device.add(constant.name)
      self._add_node(constant, recording)
      self._equal['%s:%d' % (node.name, number) if number else node.name] = self._equal[constant.name]
    return True

  def _is_known_constant(self, node, recording):
    """Whether a node is a constant that equals one before it, which then stands in for it."""
    if node.op != 'Const' or node.input:
      return False
    unnamed = tf.NodeDef(device=node.device, attr=node.attr)
    key = unnamed.SerializeToString(deterministic=True) + bytes([node.name in recording.on_device])
    self._equal[node.name] = self._constants.setdefault(key, node.name)
    return self._equal[node.name] != node.name

  def _name(self, name):
    """Returns the name of a node or tensor in the pattern, without the tower's scope, which gradients hold twice."""
    op_name = _op_name(name)
    name = self._equal.get(name) or name.replace(op_name, self._equal.get(op_name, op_name))
    return name.replace(self._tower.scope, '')

  def _add_node(self, original, recording):
    """Adds a node, unless it is one that is there already."""
    if self._is_known_constant(original, recording):
      return
    node = self._graph_def.node.add()
    node.CopyFrom(original)
    node.name = self._name(original.name)
    del node.input[:]
    for name in original.input:
      op_name = _op_name(name)
      if op_name in self._inside:
        node.input.append(self._name(name))
      elif name.startswith('^'):
        self._control_inputs.setdefault(node.name, []).append(op_name)
      else:
        node.input.append(name)
        self._outside_inputs.add(name if ':' in name else name + ':0')
    # A variable is read where it stands: a copy on the clone's device.
    on_device = original.name in recording.on_device or any(_op_name(name) in self._copied for name in original.input)
    if '_class' in node.attr:
      partners = [name[len(b'loc:@'):].decode() for name in node.attr['_class'].list.s]
      on_device = on_device or any(name in recording.on_device or name in self._copied for name in partners)
      partners = [self._name(name) for name in partners if name in self._inside]
      del node.attr['_class']
      if partners:
        node.attr['_class'].list.s.extend([('loc:@' + name).encode() for name in partners])
    if on_device:
      recording.on_device.add(original.name)  # What is colocated with it follows.
      node.device = ''
    if 'frame_name' in node.attr:
      self._frames.append((node, node.attr['frame_name'].s.decode()))

  def clone(self, batch: Batch, *, number: int, device: str, copies: Dict[str, Any]) -> Any:
    """Returns tower `number` on `device`, computing on `batch`.

    Args:
      batch: of the same structure, dtypes and static shapes as the pattern's.
      number: of the tower.
      device: where it stands.
      copies: the variables that it reads instead of the pattern's, by the names of these.
    """
    graph = tf.get_default_graph()
    seed_nodes(self._random, seed=self._seed, tower=self._first_tower + number)
    for node, frame in self._frames:
      node.attr['frame_name'].s = ('tower_%d/%s' % (number, frame)).encode()
    replaced = {tensor.name: value for tensor, value in zip(_tensors(self._batch), _tensors(batch))}
    replaced.update((name + ':0', variable.handle) for name, variable in copies.items())
    for joined, alike in self._parcels:
      with tf.device(device), tf.name_scope('reads_%d' % number):
        replaced.update(zip([read.name for read in alike], part(joined, alike)))
    input_map = {name: replaced[name] if name in replaced else graph.get_tensor_by_name(name)
                 for name in self._outside_inputs}
    inside = [tensor for tensor in self._roots if tensor.op.name in self._inside]
    for node in self._placed:
      node.device = device
    with tf.name_scope('tower_%d' % number) as scope:
      found = import_placed(self._graph_def, input_map=input_map, name=scope,
                            return_elements=[self._name(tensor.name) for tensor in inside])
    for name, sources in self._control_inputs.items():
      graph.get_operation_by_name(scope + name)._add_control_inputs(
          [graph.get_operation_by_name(source) for source in sources])
    copies = {tensor.name: copy for tensor, copy in zip(inside, found)}
    copies.update(replaced)

    def copy(value):
      return _rebuild(value, lambda tensor: copies.get(tensor.name, tensor))

    for key, items in self._collected.items():
      for item in items:
        graph.add_to_collection(key, copy(item))
    tower = self._tower
    return tower._replace(
        device=device, scope=scope, loss=copy(tower.loss), num_examples=batch.num_examples, update_ops=[],
        penalties=[], put_op=batch.put_op, sums={name: copy(value) for name, value in tower.sums.items()},
        gradients=[copy(gradient) for gradient in tower.gradients])


def has_same_shapes(left: Batch, right: Batch) -> bool:
  """Whether two batches are alike in all that is static: what Python made of a shape is part of a pattern."""
  if left.may_be_empty != right.may_be_empty or left.is_static != right.is_static:
    return False
  if left.is_static and left.num_examples != right.num_examples:
    return False
  return all(a.dtype == b.dtype and a.shape.as_list() == b.shape.as_list()
             for a, b in zip(_tensors(left), _tensors(right)))


def _tensors(batch):
  return [tensor for tensor in batch.flatten() if isinstance(tensor, tf.Tensor)]


def _flatten(value) -> List[Any]:
  """Returns all tensors of a tensor, IndexedSlices, None or list of such."""
  if value is None:
    return []
  if isinstance(value, tf.IndexedSlices):
    return [part for part in (value.values, value.indices, value.dense_shape) if part is not None]
  if isinstance(value, list):
    return [tensor for part in value for tensor in _flatten(part)]
  return [value]


def _rebuild(value, copy):
  if value is None:
    return None
  if isinstance(value, tf.IndexedSlices):
    return tf.IndexedSlices(*[None if part is None else copy(part)
                              for part in (value.values, value.indices, value.dense_shape)])
  return copy(value)


def _find_collected(recording, scope, left_out) -> Dict[str, List[Any]]:
  """Returns, by collection, the tensors of the tower that were added since recording began."""
  graph = tf.get_default_graph()
  left_out = {getattr(tf.GraphKeys, name) for name in _NOT_CLONED}.union(left_out)
  collected: Dict[str, List[Any]] = {}
  for key in graph.get_all_collection_keys():
    items = [item for item in graph.get_collection_ref(key)[recording.sizes.get(key, 0):]
             if isinstance(item, (tf.Tensor, tf.IndexedSlices)) and item.op.name.startswith(scope)]
    if items and key not in left_out:
      collected[key] = items
  return collected


def _op_name(name: str) -> str:
  """Returns the op's name from a node's input: 'op', 'op:1' or '^op'."""
  return name.lstrip('^').split(':')[0]


def _reach_back(roots: Sequence[Any], nodes: Dict[str, Any], scope: str) -> Set[str]:
  """Returns the names of the scope's ops that roots are computed from."""
  reached: Set[str] = set()
  pending = [tensor.op.name for tensor in roots if tensor.op.name.startswith(scope)]
  while pending:
    name = pending.pop()
    if name not in reached:
      reached.add(name)
      pending.extend(source for source in map(_op_name, nodes[name].input) if source.startswith(scope))
  return reached


def _check_outside(inside: Set[str], nodes: Dict[str, Any], made: Set[str], batch: Batch, scope: str) -> None:
  """Raises if what the tower reads from outside of its scope is itself made from the tower or its batch."""
  of_batch = {tensor.op.name for tensor in _tensors(batch)}
  pending = [source for name in inside for source in map(_op_name, nodes[name].input)
             if source not in inside and source in made]
  seen: Set[str] = set()
  while pending:
    name = pending.pop()
    if name in seen:
      continue
    seen.add(name)
    for source in map(_op_name, nodes[name].input):
      if source in of_batch or source.startswith(scope):
        raise UsageError('The model makes the op %s outside of the name scope that it is called in, from its batch: '
                         'clones of the tower would share it. Leave out tf.name_scope(None) or a name scope that ends '
                         'with a slash, or build with tower_build=reuse.' % name)
      if source in made:
        pending.append(source)

