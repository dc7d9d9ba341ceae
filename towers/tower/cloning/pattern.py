"""Clones: further towers copied from a built tower's graph, without another call of the model.

Python builds an op of a deep model in a tenth of a millisecond; TensorFlow copies it in a tenth of
that. A clone has the ops that the loss, the metrics and the gradients of its pattern need, in its
own name scope:

  tower_0/conv/Conv2D  ──►  tower_3/conv/Conv2D    on tower 3's device, unless the model placed it
  batch of tower 0     ──►  batch of tower 3
  a key of dropout     ──►  the key of (seed, tower 3, name)
  a variable           ──►  tower 3's replica, if it has one
  is_training, the micro-batch, all other variables: shared, since they are outside of the tower

A clone computes the same bits as a tower that the model builds. It leaves out what only one tower
needs: updates of moving averages, penalties, summaries. It also leaves out repetition: a shared
variable is read once on its device, and the value is sent to every tower; equal constants are
merged, known shapes become constants, and of the others each is computed once, from the batch.
"""

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Set

from tensorflow_v1 import Operation, Variable, import_placed, tf
from towers.base.usage_error import UsageError
from towers.input.batch import Batch
from towers.placement.host import HOST, is_gpu
from towers.placement.packing import pack, plan_alike, unpack
from towers.placement.randomness import find_random_nodes, seed_nodes
from towers.tower.cloning.check import (
  check_free,
  check_scope,
  check_state,
  count_names,
  find_scopes,
)
from towers.tower.cloning.names import Names, get_op_name
from towers.tower.cloning.row_shapes import RowShapes
from towers.whole import flatten_rows

# Collections to which one tower adds for all, and descriptions of the graph.
_NOT_CLONED = ('UPDATE_OPS', 'REGULARIZATION_LOSSES', 'SUMMARIES', 'SUMMARY_OP', 'COND_CONTEXT',
               'WHILE_CONTEXT')


class Recording(NamedTuple):
  """The state of the graph before a tower is built, which its pattern needs.

  Attributes:
    place: for `tf.device`: gives the tower's device to every op without a device of its own.
    on_device: the names of these ops.
    num_ops: the number of ops before.
    num_names: the number of names of ops and name scopes before.
    sizes: the sizes of all collections before.
  """
  place: Callable[[Operation], str]
  on_device: Set[str]
  num_ops: int
  num_names: int
  sizes: Dict[str, int]

  def count_ops(self) -> int:
    """Returns how many ops `place` has given the tower's device."""
    return len(self.on_device)


def record_tower(device: str) -> Recording:
  """Begins to record a tower on `device`."""
  graph = tf.get_default_graph()
  on_device: Set[str] = set()

  def place(op):
    if op.device:
      return op.device
    if is_gpu(device) and op.name.endswith('/pred_id'):
      # Switches take a branch's predicate from the host, each with a copy of its own.
      return HOST
    on_device.add(op.name)
    return device

  return Recording(
      place, on_device, len(graph.get_operations()), count_names(),
      {key: len(graph.get_collection_ref(key)) for key in graph.get_all_collection_keys()})


class Pattern:
  """The GraphDef of a built tower, in a form to import as others."""

  def __init__(self, tower: Any, batch: Batch, recording: Recording, *, index: int, seed: int,
               replicated: Set[str], left_out: Iterable[str] = (), first_tower: int = 0):
    """Takes a tower with its gradients, before anything joins it to others.

    Args:
      tower: to clone.
      batch: of the tower.
      recording: of the tower.
      index: of the tower.
      seed: of the run.
      replicated: the names of the variables of which later towers have replicas.
      left_out: collections that clones add nothing to.
      first_tower: as of the variable store.

    Raises:
      UsageError: the tower cannot be cloned, see `check`.
    """
    self._tower, self._batch, self._seed, self._first_tower = tower, batch, seed, first_tower
    self._scopes = find_scopes(tower.scope, recording.num_names)
    graph = tf.get_default_graph()
    made = {op.name for op in graph.get_operations()[recording.num_ops:]}
    own = {name for name in made if name.startswith(tower.scope)}
    self._collected = _find_collected(recording, own, left_out)
    self._roots: List[Any] = []
    for value in [tower.loss, list(tower.sums.values()), list(tower.weights.values()),
                  flatten_rows([tower.wholes]), tower.gradients,
                  [item for items in self._collected.values() for item in items]]:
      self._roots += _flatten(value)
    roots = [tensor.op.name for tensor in self._roots]

    graph_def = graph.as_graph_def()
    nodes = {node.name: node for node in graph_def.node}
    self._inside = _reach_back(roots, nodes, own)
    check_scope(roots, self._inside, nodes=nodes, made=made,
                batch={tensor.op.name for tensor in _tensors(batch)})
    check_state(self._inside, nodes, graph_def.library)
    self._inside -= {name for name in self._inside
                     if self._is_shared_read(nodes[name], recording, replicated)}

    self._graph_def = tf.GraphDef(versions=graph_def.versions)
    self._placed: List[Any] = []
    self._beside_batch: List[Any] = []
    self._control_inputs: Dict[str, List[str]] = {}
    self._frames: List[Any] = []
    self._merged: Dict[bytes, str] = {}
    self._shapes: Dict[Any, str] = {}
    inside = [node for node in graph_def.node if node.name in self._inside]
    self._row_shapes = RowShapes(self._batch, inside, graph_def)
    self._add_nodes(inside, recording, replicated)
    self._random = self._find_seeded(index)
    self._joined_reads = self._join_reads(nodes)

  def _add_nodes(self, nodes, recording, replicated):
    """Adds nodes, given in the graph's order, or constants in their place."""
    random = {node.name for node in find_random_nodes(nodes)}
    placed = _find_placed(nodes, recording.on_device, replicated)
    of_batch = {group[len(b'loc:@'):].decode() for tensor in _tensors(self._batch)
                for group in tensor.op.colocation_groups()}
    self._names = Names([node.name for node in nodes], self._tower.scope, whole=random)
    others = []
    for node in nodes:
      is_placed = node.name in placed
      if self._add_known_shapes(node, is_placed):
        continue
      if node.name in random or not self._add_constant(node, is_placed):
        others.append(node)
    # After all constants, whose names they take as inputs.
    for node in others:
      added = self._add_node(node, node.name in placed)
      # A TensorArray is unpacked beside the batch that fills it.
      if not of_batch.isdisjoint(_get_partners(node)):
        self._beside_batch.append(added)

  def _join_reads(self, nodes):
    """Joins the small values of shared reads on their devices; returns (joined, values) pairs."""
    graph = tf.get_default_graph()
    reads = [graph.get_tensor_by_name(name) for name in sorted(set(self._names.outside.values()))
             if nodes[get_op_name(name)].op == 'ReadVariableOp']
    joined = []
    # On 2.x a read has no device, but always that of its variable.
    devices = [read.op.inputs[0].device for read in reads]
    for indices in plan_alike(reads, devices):
      alike = [reads[index] for index in indices]
      with tf.device(devices[indices[0]]), tf.name_scope('join_reads'):
        joined.append((pack(alike), alike))
    return joined

  def fits(self, batch: Batch) -> bool:
    """Returns whether all that is static is the same in the pattern's batch and another one."""
    return has_same_shapes(self._batch, batch)

  def _is_shared_read(self, node, recording, replicated):
    """Returns whether a node reads a shared variable on its device, for all towers."""
    if node.op != 'ReadVariableOp' or node.name in recording.on_device:
      return False
    return not any(name in self._inside or name in replicated
                   for name in map(get_op_name, node.input))

  def _add_known_shapes(self, node, is_placed):
    """Adds what stands for a node of known shapes, or of the batch's rows; returns whether it does.
    """
    if node.op not in ('Shape', 'ShapeN') or any(name.startswith('^') for name in node.input):
      return False
    op = tf.get_default_graph().get_operation_by_name(node.name)
    shapes: List[Any] = [self._row_shapes.find(tensor) for tensor in op.inputs]
    # What stands inside of a loop would need an Enter op.
    if None in shapes or op._get_control_flow_context() is not None:
      return False
    like = self._names.get_op(node.name)
    for port, (shape, output) in enumerate(zip(shapes, op.outputs)):
      key = (tuple(shape), output.dtype, node.device, is_placed)
      if key not in self._shapes:
        self._shapes[key] = self._add_shape(shape, output.dtype, name=f'{like}/{port}',
                                            device=node.device, is_placed=is_placed)
      self._names.stand_in(node.name, port, self._shapes[key])
    return True

  def _add_shape(self, shape, dtype, *, name, device, is_placed):
    """Adds the nodes of a shape, whose sizes are None for the batch's rows; returns its name."""
    def add(kind, suffix='', inputs=(), **attributes):
      node = tf.NodeDef(name=self._names.make(name + suffix), op=kind, device=device, input=inputs)
      for key, value in attributes.items():
        node.attr[key].CopyFrom(value)
      return self._merge(node, is_placed)

    def constant(value, suffix=''):
      return add('Const', suffix, dtype=of_type, value=tf.AttrValue(
          tensor=tf.make_tensor_proto(value, dtype)))

    of_type = tf.AttrValue(type=dtype.as_datatype_enum)
    if None not in shape:
      return constant(shape)
    batch = self._row_shapes.batch
    of_batch = add('Shape', '/batch', [self._names.get_input(batch.name)], out_type=of_type,
                   T=tf.AttrValue(type=batch.dtype.as_datatype_enum))
    begin, end = constant([0], '/begin'), constant([1], '/end')
    masks = {f'{mask}_mask': tf.AttrValue(i=int(mask == 'shrink_axis'))
             for mask in ('begin', 'end', 'ellipsis', 'new_axis', 'shrink_axis')}
    rows = add('StridedSlice', '/n', [of_batch, begin, end, end], T=of_type, Index=of_type,
               **masks)
    sizes = [rows if size is None else constant(size, '/size') for size in shape]
    return add('Pack', '', sizes, T=of_type, N=tf.AttrValue(i=len(sizes)), axis=tf.AttrValue(i=0))

  def _add_constant(self, node, is_placed):
    """Adds a constant, unless an equal one is there; returns whether the node is a constant."""
    if node.op != 'Const' or node.input:
      return False
    constant = tf.NodeDef()
    self._copy_node(node, constant)
    self._names.stand_in(node.name, 0, self._merge(constant, is_placed))
    return True

  def _merge(self, node, is_placed):
    """Adds a node, unless an equal one is there; returns the name of either."""
    unnamed = tf.NodeDef(op=node.op, input=node.input, device=node.device, attr=node.attr)
    key = unnamed.SerializeToString(deterministic=True) + bytes([is_placed])
    name = self._merged.setdefault(key, node.name)
    if name == node.name:
      added = self._graph_def.node.add()
      added.CopyFrom(node)
      if is_placed:
        self._placed.append(added)
    return name

  def _copy_node(self, original, node):
    """Copies the original into an empty node, with the pattern's names and without inputs."""
    node.CopyFrom(original)
    node.name = self._names.get_op(original.name)
    del node.input[:]
    if '_class' in node.attr:
      partners = [self._names.get_op(name) for name in _get_partners(original)
                  if name in self._inside]
      del node.attr['_class']
      if partners:
        node.attr['_class'].list.s.extend([('loc:@' + name).encode() for name in partners])

  def _add_node(self, original, is_placed):
    """Adds and returns a node that is not a constant."""
    node = self._graph_def.node.add()
    self._copy_node(original, node)
    for name in original.input:
      if name.startswith('^') and name[1:] not in self._inside:
        self._control_inputs.setdefault(node.name, []).append(name[1:])
      else:
        node.input.append(self._names.get_input(name))
    if is_placed:
      self._placed.append(node)
    if 'frame_name' in node.attr:
      self._frames.append((node, node.attr['frame_name'].s.decode()))
    return node

  def _find_seeded(self, index):
    """Returns the nodes with the seeds of tower `index`; the model seeds all others itself.

    Raises:
      UsageError: the name that seeds a node may differ between towers.
    """
    def holds_seeds(node):
      seeded = tf.NodeDef()
      seeded.CopyFrom(node)
      seed_nodes([seeded], seed=self._seed, tower=self._first_tower + index)
      return seeded == node

    seeded = [node for node in find_random_nodes(self._graph_def.node) if holds_seeds(node)]
    for node in seeded:
      if '/' + self._tower.scope in node.name:
        raise UsageError(f'The random op {self._tower.scope}{node.name} of the model has the scope '
                         'of its tower within its name, which seeds it, as in gradients that the '
                         'model itself makes: clones may have other seeds. Build with '
                         'tower_build=reuse.')
    return seeded

  def clone(self, batch: Batch, *, index: int, device: str, replicas: Dict[str, Variable]) -> Any:
    """Returns tower `index` on `device`, computing on `batch`.

    Args:
      batch: of the same structure, dtypes and static shapes as the pattern's.
      index: of the tower.
      device: where the tower stands.
      replicas: the variables that it reads instead of the pattern's, by the names of these.
    """
    graph = tf.get_default_graph()
    # The name is not used up yet: if the clone fails, the model is called and needs the same names.
    scope = graph.unique_name(f'tower_{index}', mark_as_used=False) + '/'
    check_free(scope, self._scopes)
    replaced = self._replace_inputs(batch, index=index, device=device, replicas=replicas)
    self._adapt_nodes(index=index, device=device, scope=scope)
    for node in self._beside_batch:
      node.device = _tensors(batch)[0].device
    cloned = dict(self._import_nodes(scope, replaced), **replaced)
    graph.unique_name(f'tower_{index}')

    def copy(value):
      return _rebuild(value, lambda tensor: cloned.get(tensor.name, tensor))

    for key, items in self._collected.items():
      for item in items:
        graph.add_to_collection(key, copy(item))
    tower = self._tower
    return tower._replace(device=device, scope=scope, loss=copy(tower.loss),
                          num_examples=batch.num_examples, update_ops=[], penalties=[],
                          put_op=batch.put_op,
                          sums={name: copy(value) for name, value in tower.sums.items()},
                          weights={name: copy(value) for name, value in tower.weights.items()},
                          wholes={name: whole._replace(rows=[copy(row) for row in whole.rows])
                                  for name, whole in tower.wholes.items()},
                          gradients=[copy(gradient) for gradient in tower.gradients])

  def _replace_inputs(self, batch, *, index, device, replicas):
    """Returns what a clone takes instead of the pattern's batch, variables and joined reads."""
    replaced = {tensor.name: value for tensor, value in zip(_tensors(self._batch), _tensors(batch))}
    if batch.place is not None and self._batch.place is not None:
      replaced[self._batch.place.first.name] = batch.place.first
    replaced.update((name + ':0', variable.handle) for name, variable in replicas.items())
    for joined, alike in self._joined_reads:
      with tf.device(device), tf.name_scope(f'reads_{index}'):
        replaced.update(zip([read.name for read in alike],
                            unpack(joined, [read.shape for read in alike])))
    return replaced

  def _adapt_nodes(self, *, index, device, scope):
    """Gives the nodes the seeds, the loop frames and the device of a clone."""
    seed_nodes(self._random, seed=self._seed, tower=self._first_tower + index)
    for node, frame in self._frames:
      # No name scope has two slashes in a row, so no frame of another loop has this name.
      node.attr['frame_name'].s = f'{scope}/{frame}'.encode()
    for node in self._placed:
      node.device = device

  def _import_nodes(self, scope, replaced):
    """Imports the nodes; returns the clone's tensors by the names of the pattern's roots."""
    graph = tf.get_default_graph()
    input_map = {inside: replaced[name] if name in replaced else graph.get_tensor_by_name(name)
                 for inside, name in self._names.outside.items()}
    roots = [tensor for tensor in self._roots if tensor.op.name in self._inside]
    found = import_placed(self._graph_def, input_map=input_map, name=scope, return_elements=[
        *map(self._names.get_tensor, roots), *self._control_inputs])
    for op, sources in zip(found[len(roots):], self._control_inputs.values()):
      op._add_control_inputs([graph.get_operation_by_name(source) for source in sources])
    for tensor, clone in zip(roots, found):
      # Python knows more about shapes than TensorFlow's importer, such as those of loop results.
      clone.set_shape(tensor.shape)
    return dict(zip([tensor.name for tensor in roots], found))


def has_same_shapes(left: Batch, right: Batch) -> bool:
  """Returns whether all that is static is the same in two batches.

  A pattern holds what Python has computed from static shapes.
  """
  if left.may_be_empty != right.may_be_empty or left.is_static != right.is_static:
    return False
  if left.is_static and left.num_examples != right.num_examples:
    return False
  return all(a.dtype == b.dtype and _sizes(a) == _sizes(b)
             for a, b in zip(_tensors(left), _tensors(right)))


def _sizes(tensor):
  """Returns the sizes of the tensor's axes, or None where even their number is unknown."""
  return None if tensor.shape.ndims is None else tensor.shape.as_list()


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


def _find_collected(recording, own, left_out) -> Dict[str, List[Any]]:
  """Returns the tensors of the tower's `own` ops that it has added to collections, by collection.
  """
  graph = tf.get_default_graph()
  left_out = {getattr(tf.GraphKeys, name) for name in _NOT_CLONED}.union(left_out)
  collected: Dict[str, List[Any]] = {}
  for key in graph.get_all_collection_keys():
    items = [item for item in graph.get_collection_ref(key)[recording.sizes.get(key, 0):]
             if isinstance(item, (tf.Tensor, tf.IndexedSlices)) and item.op.name in own]
    if items and key not in left_out:
      collected[key] = items
  return collected


def _reach_back(roots: Sequence[str], nodes: Dict[str, Any], own: Set[str]) -> Set[str]:
  """Returns the names of the tower's `own` ops that the roots are computed from."""
  reached: Set[str] = set()
  pending = [name for name in roots if name in own]
  while pending:
    name = pending.pop()
    if name not in reached:
      reached.add(name)
      pending.extend(source for source in map(get_op_name, nodes[name].input) if source in own)
  return reached


def _find_placed(nodes: Sequence[Any], on_device: Set[str], replicated: Set[str]) -> Set[str]:
  """Returns the names of the nodes, given in the graph's order, that go on a clone's device.

  These are the ops that the model has not placed, ops on a variable of which the clone has a
  replica, also through the Enter op of a loop or the Switch of a branch, and ops colocated with
  either.
  """
  # A loop's Enter op comes after the ops inside that read it.
  entrances = {node.name: get_op_name(node.input[0]) for node in nodes if node.input and
               'T' in node.attr and node.attr['T'].type == tf.resource.as_datatype_enum}

  def is_replicated(name):
    while name in entrances:
      name = entrances[name]
    return name in replicated

  placed = set(on_device)
  for node in nodes:
    partners = _get_partners(node)
    touches_replica = any(map(is_replicated, [*map(get_op_name, node.input), *partners]))
    if touches_replica or not placed.isdisjoint(partners):
      placed.add(node.name)
  return placed


def _get_partners(node) -> List[str]:
  """Returns the names of the ops that a node is colocated with."""
  if '_class' not in node.attr:
    return []
  return [name[len(b'loc:@'):].decode() for name in node.attr['_class'].list.s]
