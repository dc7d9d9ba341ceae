"""Values of all towers inside of a model: sums over the global batch, and its rows.

  positives = towers.all_sum(tf.reduce_sum(mask))      # of all towers and workers: divide by it
  negatives = towers.all_rows(encode(images))          # [global batch, d], in the batch's order

A tower knows only its own examples. What a loss needs of all of them, such as the count that
divides it, is joined here, so that N towers are one tower for such losses too:

  tower 0   x ──► identity ──► the model goes on with the sum of all
  tower 1   x ──► identity ──► the same
                     ▲
                     └── once all towers are built, its input is the sum over all of them

The gradient of a sum is, for each tower, the sum of the gradients that all towers send to it: one
more identity, joined in the same way in the backward pass, so that each tower has one such pass.
With micro-batches a sum spans the towers of a micro-batch.

Rows are a sum too: each tower puts its own where they stand in the global batch, and zeros for the
others.
"""

import contextlib
import itertools
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set

from towers.base.usage_error import UsageError
from towers.graph.ordered_sum import add_all
from towers.graph.source_lines import find_line, format_op
from towers.graph.walk import find_dependents, find_needed
from towers.graph.writes import brings_values
from towers.input.batch import Batch
from towers.placement.host import HOST
from towers.placement.workers import ALONE, Workers, sum_over_workers
from towers.tensorflow_v1 import Operation, Tensor, tf
from towers.tower.tower import Tower

SUMS = 'towers/all_sums'
# What each tower has put into them, in the same order.
OWN_SUMS = 'towers/own_sums'
# What was asked for of all towers where there is one.
OF_ONE = 'towers/of_one'
SUM_GRADIENTS = 'towers/all_sum_gradients'
_GRADIENT = '_gradient/'  # Between a sum's name and that of its gradient.
# That calls of the model have made.
_PLACEHOLDERS = 'towers/placeholders'
# Where in the global batch each tower's rows stand.
SLOTS = 'towers/slots'
# Whether each tower has a part in the sums.
TAKES_PART = 'towers/takes_part'


class TowerContext(NamedTuple):
  """A tower among those of all workers, as its model sees it, in its name scope.

  `joins_norms` is whether batch normalisation is by sums of all towers. Once rows were asked for,
  `row_indices` has where in the global batch those of the tower stand, `order` where those of all
  towers do.
  """
  batch: Any
  scope: str
  num_towers: int
  joins_norms: bool
  row_indices: List[Tensor]
  order: List[Tensor]


# The first is that of what is outside of any tower.
_contexts = [TowerContext(None, '', 1, False, [], [])]


@contextlib.contextmanager
def joining(batch: Optional[Batch], *, num_towers: int, joins_norms: bool = False,
            scope: str = '') -> Iterator[None]:
  """Makes sums within the context those of all towers, once `join_sums` joins them."""
  _contexts.append(TowerContext(batch, scope, num_towers, joins_norms, [], []))
  try:
    yield
  finally:
    _contexts.pop()


@contextlib.contextmanager
def named_by_tower() -> Iterator[None]:
  """Names ops after the tower whose model is being called. A layer that is kept from call to call
  may name them after the first."""
  scope = _contexts[-1].scope
  is_named = f'{tf.get_default_graph().get_name_scope()}/'.startswith(scope)
  with contextlib.nullcontext() if is_named else tf.name_scope(scope):
    yield


def count_towers() -> int:
  """Returns the number of towers of the program whose model is being called, 1 outside of any."""
  return _contexts[-1].num_towers


def joins_norms() -> bool:
  """Returns whether batch normalisation is by sums of all towers here."""
  return _contexts[-1].joins_norms


def all_sum(x: Any, name: str = 'all_sum') -> Tensor:
  """Returns the sum of a tensor over all towers of all workers that share a micro-batch.

  Outside of a program of several towers it is `x`. A tower without an example has no part.

  Args:
    x: of a real dtype and a known shape, which is no number of examples: sum over these first.
    name: of the op.

  Raises:
    UsageError: a shape that only a run knows, another dtype, or a call within a loop or a branch.
  """
  x, context = tf.convert_to_tensor(x), _contexts[-1]
  if context.num_towers == 1:
    tf.add_to_collection(OF_ONE, x)
    return x
  _check('all_sum', x, context, x.shape.is_fully_defined(), ', which only a run knows: sum over '
         'the examples first, as in towers.all_sum(tf.reduce_sum(x, 0)).')
  return _join(x, name)


def all_rows(x: Any, with_places: bool = False) -> Any:
  """Returns the rows of a tensor of all towers of all workers, in the order of the global batch.

  Rows that only fill a batch up are left out. Outside of a program of several towers these are the
  rows of the batch. With micro-batches they are those of a micro-batch. In validation they may
  stand in another order, the same for all tensors.

  Args:
    x: `[batch, ...]`, of a real dtype; a row has a known shape.
    with_places: whether to say where this tower's own rows are among all, as labels for them.

  Returns:
    `[global batch, ...]`, a number where all batches have one size; or a pair of it and the places,
    int32 `[batch]`.

  Raises:
    UsageError: a shape of rows that only a run knows, another dtype, or a call within a loop or a
      branch.
  """
  x, context = tf.convert_to_tensor(x), _contexts[-1]
  if context.batch is None:
    return (x, tf.range(tf.shape(x)[0])) if with_places else x
  _check('all_rows', x, context, x.shape.ndims and x.shape[1:].is_fully_defined(), ': give it one '
         'row for each example, of a shape that is known before a run, as by '
         'towers.padded(examples, pad_to=8).')
  own = x[:context.batch.num_examples] if context.batch.has_filler else x
  if context.num_towers > 1:
    rows = _join_rows(own, context)
  else:
    tf.add_to_collection(OF_ONE, own)
    rows = own
  return (rows, _find_row_indices(x, context)) if with_places else rows


def is_own(op: Operation, tensors: Any, alike: Iterable[Operation] = ()) -> bool:
  """Returns whether an op depends on the tensors of a tower's batch, or what it draws or is fed,
  but through what all towers share, as what is `alike` in them."""
  sums, slots = [{tensor.op for tensor in tf.get_collection(key)} for key in (SUMS, SLOTS)]
  batch = {tensor.op for tensor in tf.nest.flatten(tensors)}
  return any(source in batch or source in slots or brings_values(source)
             for source in find_needed([op], by_control=False, without={*sums, *alike}))


def is_of_all(op: Operation, tensors: Any) -> bool:
  """Returns whether an op takes what all towers share, and nothing that is a tower's own."""
  sums = {tensor.op for tensor in tf.get_collection(SUMS)}
  return not (sums.isdisjoint(find_needed([op], by_control=False))
              or any(is_own(tensor.op, tensors) for tensor in op.inputs))


def leave_out_unfed(placeholders: Sequence[Operation]) -> None:
  """Leaves out sums of what nothing feeds, as when a functional model of Keras is built, or called
  on placeholders of an earlier call; those given are of this one."""
  unfed = tf.get_collection_ref(_PLACEHOLDERS)
  unfed += placeholders
  if unfed:
    dependents = find_unfed()
    for key in (SUMS, OWN_SUMS):
      sums = tf.get_collection_ref(key)
      sums[:] = [tensor for tensor in sums if tensor.op not in dependents]


def find_unfed() -> Set[Operation]:
  """Returns the ops that models have made on what nothing feeds, so that none of them runs."""
  return find_dependents(tf.get_collection(_PLACEHOLDERS), by_control=False)


def _check(name, x, context, has_shape, advice):
  if not has_shape:
    raise UsageError(f'towers.{name} got the shape {x.shape}{advice}')
  if not (x.dtype.is_floating or x.dtype.is_integer):
    raise UsageError(f'towers.{name} got {x.dtype.name}: cast it to a number first.')
  if context.num_towers > 1 and tf.get_default_graph()._get_control_flow_context() is not None:
    raise UsageError(f'towers.{name} is called within a loop or a branch, which may run on one '
                     'tower and not on another: call it before or after.')


def _join_rows(x, context):
  with named_by_tower(), tf.name_scope('all_rows'):
    if not context.order:
      context.order.append(_find_order(context))
    rows = _join(_scatter_rows(x, context), 'slots')
    with tf.get_default_graph().gradient_override_map({'GatherV2': 'TowersOrder'}):
      gathered = tf.gather(rows, context.order[0])
    if context.batch.is_static:  # Then all slots are filled.
      gathered.set_shape(rows.shape)
    return gathered


def _find_order(context):
  """Returns where rows of any tower stand, in the order of the global batch."""
  row_offset = context.batch.row_offset
  with tf.device(HOST):
    count = tf.cast(context.batch.num_examples, tf.int64)
    row_indices = row_offset.first - row_offset.begin + row_offset.stride * tf.range(count)
    context.row_indices.append(row_indices)
    tf.add_to_collection(SLOTS, row_indices)
    filled = _join(_scatter_rows(tf.ones([count]), context), 'filled')
    return tf.where(filled > 0)[:, 0]


def _find_row_indices(x, context):
  """Returns where each row of a tower stands among all rows, 0 where it only fills a batch up."""
  with tf.device(HOST):
    indices = (tf.range(context.batch.num_examples) if context.num_towers == 1 else
               tf.searchsorted(context.order[0], context.row_indices[0]))
    indices = tf.pad(indices, [[0, tf.shape(x)[0] - tf.shape(indices)[0]]])
    indices.set_shape(x.shape[:1])
  return indices


def _scatter_rows(x, context):
  """Returns the rows of a tower where they stand in the global batch, with zeros for the others."""
  num_rows, row = context.batch.row_offset.num_slots, x.shape.as_list()[1:]
  rows = tf.scatter_nd(context.row_indices[0][:, None], x,
                       tf.stack([tf.cast(num_rows, tf.int64), *row]))
  rows.set_shape([num_rows if isinstance(num_rows, int) else None, *row])
  return rows


@tf.RegisterGradient('TowersOrder')
def _spread_rows(op, gradient):
  """Returns dense rows, as sums over towers take; TensorFlow's own are sparse."""
  slots, order = op.inputs[:2]
  shape = tf.shape(slots, out_type=order.dtype)
  return [tf.scatter_nd(order[:, None], gradient, shape), None, None]


def _join(x, name):
  """Returns the sum of a tensor over all towers, once they are joined."""
  with named_by_tower(), tf.get_default_graph().gradient_override_map({'Identity': 'TowersAllSum'}):
    total = tf.identity(x, name=name)
  tf.add_to_collection(SUMS, total)
  tf.add_to_collection(OWN_SUMS, x)
  return total


@tf.RegisterGradient('TowersAllSum')
def _join_gradient(op, gradient):
  context = _contexts[-1]
  with tf.name_scope(op.name + _GRADIENT):
    gradient = tf.convert_to_tensor(gradient)  # Of rows that are looked up in it on TensorFlow 2.x.
    if context.num_towers > 1:  # The model takes it, and may differentiate it again.
      _check("all_sum's gradient", gradient, context, True, '')
      return _join(gradient, 'all_sum')
    with tf.get_default_graph().gradient_override_map({'Identity': 'TowersAllSumGradient'}):
      gradient = tf.identity(gradient)
  tf.add_to_collection(SUM_GRADIENTS, gradient)
  return gradient


@tf.RegisterGradient('TowersAllSumGradient')
def _refuse_second(op, gradient):
  raise UsageError(f'{op.name}, the gradient of a sum over all towers, is differentiated outside '
                   'of the model, where its own would be those of one tower alone: take '
                   'tf.gradients within the model function.')


def join_sums(towers: Sequence[Tower], *, workers: Workers = ALONE) -> None:
  """Replaces each sum, and its gradient, by that over all towers of all workers, once these are
  built. A tower with 0 examples has a row that only fills its batch, and takes no part.

  Raises:
    UsageError: a sum, or its gradient, that not all towers have.
  """
  device, sums = towers[0].device, match_towers(SUMS, towers)
  if not sums:
    return
  gradients = _match_gradients(sums, towers)
  counts = [tower.num_examples for tower in towers]
  # The gradient of no examples may be NaN, so it is left out like the sums.
  with tf.device(HOST):
    weights = [(None, tf.greater(count, 0)) for count in counts]
  tf.get_collection_ref(TAKES_PART).extend(takes_part for _, takes_part in weights)
  # Gradients are of a worker's mean loss; only the all-reduce weights them by its examples.
  examples = None
  if workers.num_workers > 1 and not all(isinstance(count, int) for count in counts):
    examples = tf.cast(tf.maximum(tf.reduce_sum(tf.stack(counts)), 1), tf.float32)
  for found, scale in ((sums, None), (gradients, examples)):
    for identities in found:
      total = add_up(identities, weights, device, workers, scale)
      for identity in identities:
        identity.op._update_input(0, total)


def match_towers(collection: str, towers: Sequence[Tower]) -> List[List[Tensor]]:
  """Returns the values of all towers in a collection, for each op of the model those of all.

  An op is the same by its name; or else, as in a layer that is kept from call to call, by the line
  that made it, and by its number among those of the line.

  Raises:
    UsageError: an op that not all towers have.
  """
  values = [tf.get_collection(collection, tower.scope) for tower in towers]
  keys: List[List[Any]] = [[value.op.name[len(tower.scope):] for value in of_tower]
                           for of_tower, tower in zip(values, towers)]
  if any(set(each) != set(keys[0]) for each in keys):
    lines = [[find_line(value.op) for value in of_tower] for of_tower in values]
    keys = [[(line, each[:index].count(line)) for index, line in enumerate(each)] for each in lines]
  found = [dict(zip(*each)) for each in zip(keys, values)]
  rows = [[each.get(key) for each in found] for key in dict.fromkeys(itertools.chain(*found))]
  for row in rows:
    [op, *_] = [value.op for value in row if value is not None]
    _check_all(op, 'values', [value is not None for value in row], towers)
  return rows


def _match_gradients(sums, towers):
  """Returns the gradients of sums, for each those of all towers, in the backward pass's order."""
  gradients: Dict[str, List[Tensor]] = {}
  for gradient in tf.get_collection(SUM_GRADIENTS):
    gradients.setdefault(gradient.op.name.rpartition(_GRADIENT)[0], []).append(gradient)
  found: List[Sequence[Tensor]] = []
  for row in sums:
    of_sum = [gradients.get(value.op.name, []) for value in row]
    _check_all(row[0].op, 'gradients', [len(each) == max(map(len, of_sum)) for each in of_sum],
               towers)
    found += zip(*of_sum)
  return sorted(found, key=lambda row: row[0].op._id)


def _check_all(op, what, is_in, towers):
  """Refuses what only some towers have."""
  having, lacking = [', '.join(tower.scope[:-1] for tower, has in zip(towers, is_in) if has is each)
                     for each in (True, False)]
  if lacking:
    raise UsageError(
        f'The {what} of {format_op(op)}, are to be joined over all towers, but {having} has them '
        f'and {lacking} does not. Each call of the model has to make them, not the first alone: '
        'take them before any `if` on the tower and keep them in no cache, as in '
        'total = towers.all_sum(tf.reduce_sum(x, 0)).')


def add_up(identities: Sequence[Tensor], weights: Sequence[Any], device: str, workers: Workers,
           scale: Any = None) -> Tensor:
  """Returns the weighted sum of the identities' inputs over all workers.

  An input that takes no part is left out, even if it is NaN. A weight of None is 1. With a `scale`
  each worker multiplies its part by its own scale, and divides the sum by it.
  """
  with tf.device(device), tf.name_scope('all_sum'):
    zeros, parts = tf.zeros_like(identities[0].op.inputs[0]), []
    for identity, (weight, takes_part) in zip(identities, weights):
      part = tf.where(takes_part, identity.op.inputs[0], zeros)  # 0 times NaN is NaN.
      parts.append(part if weight is None else tf.cast(weight, part.dtype) * part)
    total = add_all(parts)
    if scale is None:
      return sum_over_workers(total, workers)
    scale = tf.cast(scale, total.dtype)
    return sum_over_workers(total * scale, workers) / scale
