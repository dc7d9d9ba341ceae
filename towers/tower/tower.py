"""Towers: one copy of the model's graph per device, all on the same variables.

                 ┌─ tower_0 ─ loss and metric sums, gradients ─┐
  batch of each ─┼─ tower_1 ─                                  ├─► average
                 └─ tower_2 ─                                  ─┘

A tower adds up the losses of its examples and divides by the number of examples in the *global*
batch (of several workers: in this one's part of it). Then the towers' losses and gradients sum to
exactly those of one tower on the whole batch, whatever share each tower got; the mean of the
towers' means is right only where all shares are equal.
"""

import contextlib
import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from tensorflow_v1 import tf
from towers.base.collector import collect_former, uncollected
from towers.base.usage_error import UsageError, check_same_number
from towers.graph.ordered_sum import add_all, keep_order
from towers.input.batch import Batch
from towers.placement.host import HOST
from towers.placement.randomness import get_micro_batch_in_step, seed_tower
from towers.placement.set_values import keep_set_values
from towers.placement.variables import (
  VariableStore,
  check_reads,
  check_shared,
  naming_missing,
  seed_made_before,
  stand_in,
)
from towers.placement.workers import ALONE, Workers
from towers.tower.apart import check_apart, check_penalties
from towers.tower.batch_norm import check_batch_norms, join_batch_norms, joins_moments
from towers.tower.batch_norm_layer import BATCH_MOMENTS, joined_sums
from towers.tower.clone import Pattern, attempt, has_same_shapes, record_tower
from towers.tower.losses import sum_values
from towers.tower.precision import LARGEST_HALF_SCALE, Precision, cast_inputs, float32_getter

TOWER_BUILDS = ('reuse', 'clone', 'auto')
# Below, calling the model again takes less than making a pattern of the first tower.
_OPS_WORTH_CLONING = 1000

Model = Callable[[Any, Any], Union[Any, Tuple[Any, Dict[str, Any]]]]
"""A model: (the batch's tensors, is_training) to the loss, or to the loss and metrics. The loss is
`[batch]`, one value per example, or a scalar that is their mean. Metrics are a dict from names to
one value per example, `[batch]`.
"""


class Tower(NamedTuple):
  """One copy of the model.

  Attributes:
    device: where it stands.
    scope: its name scope, with a slash at the end.
    loss: its share of the global batch's mean loss, a scalar: the towers' losses sum to it.
    sums: scalars, each summed over the tower's examples: 'loss' and every metric.
    num_examples: its examples, an int or a scalar int32 tensor.
    update_ops: what its model added to UPDATE_OPS.
    penalties: what its model added to REGULARIZATION_LOSSES.
    num_global_examples: those of all towers, an int or a scalar int32 tensor.
    put_op: as of its batch.
    gradients: for each trainable variable the gradient of the tower's loss: a tensor,
      `tf.IndexedSlices` or None. Empty where the tower only validates.
    variables: the trainable variables that these are the gradients of: the tower's own replicas, or
      those of all towers.
    num_micro_batches: of a full step; the gradients are divided by it as well, so that a loss scale
      makes them no larger than those of the whole step's batch at once.
  """
  device: str
  scope: str
  loss: Any
  sums: Dict[str, Any]
  num_examples: Union[int, Any]
  update_ops: List[Any]
  penalties: List[Any]
  num_global_examples: Union[int, Any]
  put_op: Any = None
  gradients: List[Any] = []
  variables: List[Any] = []
  num_micro_batches: int = 1


@uncollected()
def build_towers(model: Model, batches: Sequence[Batch], *, devices: Sequence[str],
                 store: VariableStore, is_training: Any = True, batch_norm: str = 'first',
                 accumulate: int = 1, build: str = 'reuse', precision: Optional[Precision] = None,
                 workers: Workers = ALONE) -> List[Tower]:
  """Builds a tower with gradients for each batch.

  Args:
    model: called once per tower, under `variable_scope` reuse from the second on; clones do without
      the call.
    batches: for each tower its batch.
    devices: for each tower its device.
    store: makes the variables.
    is_training: handed to the model: True, or a scalar bool tensor where the towers also validate.
    batch_norm: 'first', 'mean' or 'sync', see `batch_norm`.
    accumulate: runs of a full step, each with random numbers of its own; `average_gradients` takes
      the same number.
    build: 'reuse', 'clone' (see `clone`: a tower is copied from the first one whose batch has the
      same static shapes) or 'auto', which clones where it can be done and a tower has so many ops
      that it saves time. The results are the same to the bit.
    precision: what makes the towers compute in half precision, or None. Their gradients are then
      those of the scaled loss, see `unscale_gradients`.
    workers: whose towers batch normalisation joins, these being one's.

  Raises:
    UsageError: a loss or metric of the wrong shape, a model without trainable variables or whose
      batch normalisation never updates its averages, towers that do not share, or numbers of
      batches, devices and the store's towers that differ.
  """
  collect_former()
  if build not in TOWER_BUILDS:
    raise UsageError(f"tower_build is {build!r}: choose one of {', '.join(TOWER_BUILDS)}.")
  _check_numbers(batches, devices, store)
  run = run_reader(accumulate)
  total = _count_examples(batches)
  counts = [batch.num_examples for batch in batches]
  towers: List[Tower] = []
  patterns: List[Pattern] = []
  shared: List[Any] = []
  layers = joined_sums if batch_norm == 'sync' and len(
      devices) * workers.num_workers > 1 else contextlib.nullcontext
  for number, (batch, device) in enumerate(zip(batches, devices)):
    pattern = next((pattern for pattern in patterns if pattern.fits(batch)), None)
    if pattern is not None:
      clone = attempt(build, pattern.clone, batch, number=number, device=device,
                      replicas=store.replicas.get(number, {}))
      if clone is not None:
        towers.append(clone._replace(variables=_own_variables(store, number)))
        store.scopes.append(clone.scope)
        continue
      build, patterns = 'reuse', []
    recording = record_tower(device)
    replicas = store.replicas.get(number, {})
    getter, creator = stand_in(store, replicas)
    # What the first tower's model sets, all towers start from; a variable is made with it.
    with layers(), contextlib.nullcontext() if number else keep_set_values():
      tower = build_forward(model, batch, number=number, device=device, place=recording.place,
                            is_training=is_training, total=total, creator=creator, getter=getter,
                            store=store, run=run, reuse=number > 0, precision=precision)
    if number == 0:
      shared = tf.global_variables()
      if not tf.trainable_variables():
        raise UsageError('The model made no trainable variable: make them with tf.get_variable in '
                         'the model function.')
      seed_made_before(store, tf.trainable_variables())
      if precision is not None:
        _check_float32(tf.trainable_variables(), precision)
    check_shared(shared, tf.global_variables(), tower=number)
    check_reads(store, replicas, scope=tower.scope, fix='use variables=host, first or balanced, or '
                                                        'tower_build=clone')
    tower = tower._replace(variables=_own_variables(store, number), num_micro_batches=accumulate)
    tower, own_gradients = _differentiate(
        tower, batch, place=recording.place, is_first=number == 0,
        loss_scale=None if precision is None else precision.loss_scale.value)
    check_apart(dict(gradients=own_gradients),
                tf.get_default_graph().get_operations()[recording.num_ops:], number=number,
                others=store.scopes, batch=batch)
    towers.append(tower)
    store.scopes.append(tower.scope)
    if _is_pattern(build, batches[number + 1:], batch, recording):
      pattern = attempt(build, Pattern, tower._replace(gradients=own_gradients), batch, recording,
                        number=number, seed=store.seed, first_tower=store.first_tower,
                        left_out=() if joins_moments(batch_norm, counts) else [BATCH_MOMENTS],
                        copied={name for replicas in store.replicas.values() for name in replicas})
      build, patterns = ('reuse', []) if pattern is None else (build, [*patterns, pattern])
  check_batch_norms(batch_norm, update_ops=towers[0].update_ops, variables=shared,
                    scope=towers[0].scope, loss=towers[0].loss)
  join_batch_norms(batch_norm, scopes=[tower.scope for tower in towers], devices=devices,
                   counts=counts, workers=workers)
  return towers


def _check_numbers(batches, devices, store):
  """Raises where the numbers of towers differ, or batches are of other structures."""
  check_same_number(len(batches), 'batches', len(devices), 'devices', fix='give a device for each '
                                                                          'batch.')
  check_same_number(store.num_towers, 'devices of the variable store', len(devices),
      'devices of the towers',
                    fix='build the store with the devices of the towers.')
  sizes = [len(tf.nest.flatten(batch.tensors)) for batch in batches]
  for tower, size in enumerate(sizes):
    check_same_number(size, f'tensors in the batch of tower {tower}', sizes[0],
        'in that of tower 0',
                      fix='the model takes both; give all batches the same structure.')


def _check_float32(variables, precision):
  """Raises where weights themselves are of half precision, in which small updates are lost."""
  halves = [
      variable.op.name for variable in variables if variable.dtype.base_dtype == precision.dtype
  ]
  if halves:
    raise UsageError(f'precision=mixed, but {halves[0]} and {len(halves) - 1} more weights are of '
                     f'{precision.dtype.name} themselves, in which small updates are lost: make '
                     'them with tf.get_variable, or use precision=float32.')


def _own_variables(store, number):
  """Returns the trainable variables as tower `number` reads them."""
  replicas = store.replicas.get(number, {})
  return [replicas.get(variable.op.name, variable) for variable in tf.trainable_variables()]


def _is_pattern(build, later, batch, recording):
  """Returns whether later towers are to be cloned from this one."""
  if build == 'reuse' or not any(has_same_shapes(batch, other) for other in later):
    return False
  return build == 'clone' or recording.count_ops() >= _OPS_WORTH_CLONING


def build_forward(model: Model, batch: Batch, *, number: int, device: str, is_training: Any,
                  total: Union[int, Any], creator: Callable[..., Any], store: VariableStore,
                  run: Callable[[], Any], reuse: bool, place: Any = None,
                  getter: Optional[Callable[..., Any]] = None,
                  precision: Optional[Precision] = None) -> Tower:
  """Builds a tower without gradients.

  Args:
    place: a device function in place of `device`, or None.
    total: examples in the global batch, an int or a scalar int32 tensor.
    creator: makes variables, or stands in for them: the store's or one around it.
    run: returns the scalar int64 tensor that random ops of the model are tied to.
    reuse: whether the variables exist already.
    getter: a custom getter of the variable scope.
    others: as for `build_towers`.
  """
  graph = tf.get_default_graph()
  num_ops = len(graph.get_operations())
  collections = [tf.GraphKeys.UPDATE_OPS, tf.GraphKeys.REGULARIZATION_LOSSES]
  sizes = [len(tf.get_collection(key)) for key in collections]
  outer = tf.get_variable_scope()
  store.begin_tower()
  with tf.device(place or device), tf.name_scope(f'tower_{number}') as scope:
    tensors, half = batch.tensors, {}
    if precision is not None:
      tensors = cast_inputs(tensors, precision.dtype)
      half = dict(custom_getter=float32_getter(scope), dtype=precision.dtype)
    with tf.variable_scope(outer, reuse=reuse or None, custom_getter=getter,
                           auxiliary_name_scope=False), \
        tf.variable_scope(tf.get_variable_scope(), auxiliary_name_scope=False, **half), \
        tf.variable_creator_scope(creator), naming_missing(tower=number):
      returned = model(tensors, is_training)
    loss, metrics = returned if isinstance(returned, tuple) else (returned, {})
    sums = sum_values(loss, metrics, batch)
    share = sums['loss'] / _divisor(total)
  ops = [op for op in graph.get_operations()[num_ops:] if op not in store.initial_ops]
  keep_order(ops)
  check_apart(
      {'loss' if name == 'loss' else f'metric {name}': [value] for name, value in sums.items()},
      ops, number=number, others=store.scopes, batch=batch)
  seed_tower(ops, seed=store.seed, tower=store.first_tower + number, scope=scope, run=run)
  update_ops, penalties = [tf.get_collection(key)[size:] for key, size in zip(collections, sizes)]
  check_penalties(sums['loss'], penalties, ops)
  return Tower(device, scope, share, sums, batch.num_examples, update_ops, penalties, total,
               batch.put_op)


def _differentiate(tower, batch, *, place, is_first, loss_scale):
  """Returns the tower with the gradients of its loss and, for the first one, of the penalties.

  Penalties belong to the variables, which exist once: one tower differentiates them, whole. Their
  gradients are added apart from the loss's, which alone may be cloned, or be nothing where a batch
  is empty.
  """
  variables = tower.variables
  graph = tf.get_default_graph()
  num_ops = len(graph.get_operations())
  with tf.device(place), tf.name_scope(tower.scope):
    scale = 1.0 if loss_scale is None else loss_scale
    if tower.num_micro_batches > 1:
      scale /= tower.num_micro_batches
    # Of the sum, from one number that says what share it has: shorter than through the division
    # backwards.
    weight = scale / _divisor(tower.num_global_examples)
    total = tower.sums['loss']
    own = [
        batch.zero_if_empty(gradient)
        for gradient in tf.gradients(total, variables, [tf.convert_to_tensor(weight, total.dtype)])
    ]
    made = graph.get_operations()[num_ops:]
    keep_order(made)
    _keep_stacks(made)
    if not (is_first and tower.penalties):
      return tower._replace(gradients=own), own
    penalties = _differentiate_penalties(tower, scale)
    gradients = [gradient if penalty is None else
                 add_all([part for part in (gradient, penalty) if part is not None])
                 for gradient, penalty in zip(own, penalties)]
  return tower._replace(gradients=gradients), own


def _keep_stacks(ops):
  """Leaves the stacks that a loop's gradients need on the tower's device, beside what pushes and
  pops.

  TensorFlow wants each where the value is made that it holds: for a shared variable that is read in
  the loop, where the variable stands.
  """
  for op in ops:
    if op.type == 'StackV2' and any(b'ReadVariableOp' in group for group in op.colocation_groups()):
      own = tf.AttrValue.ListValue(s=[f'loc:@{op.name}'.encode()])
      op._set_attr('_class', tf.AttrValue(list=own))


def _differentiate_penalties(tower, scale):
  """Returns the gradients of the tower's penalties times `scale`."""
  # A penalty on weights as the model sees them is of half precision itself, and so is what its
  # gradient begins with; the rest of a large scale comes when that is of float32.
  is_half = any(penalty.dtype == tf.float16 for penalty in tower.penalties)
  first = tf.minimum(scale, LARGEST_HALF_SCALE) if is_half else scale
  gradients = tf.gradients(tower.penalties, tower.variables,
                           [tf.cast(first, penalty.dtype) * tf.ones_like(penalty)
                            for penalty in tower.penalties])
  if not is_half:
    return gradients
  return [None if gradient is None else tf.convert_to_tensor(gradient) * (scale / first)
          for gradient in gradients]


def _divisor(num_examples):
  """Returns what a sum over a batch is divided by: never 0, though all rows may have been damaged
  and left out.
  """
  return float(num_examples) if isinstance(num_examples, int) else tf.cast(
      tf.maximum(num_examples, 1), tf.float32)


def run_reader(accumulate: int = 1) -> Callable[[], Any]:
  """Returns a function that gives the number of the run, a scalar int64 tensor on the host, read
  only if asked for.

  Args:
    accumulate: runs of a full step; with 1 the run is the step.
  """
  @functools.lru_cache(maxsize=None)
  def read():
    with tf.device(HOST), tf.name_scope('run/'):
      step = tf.train.get_or_create_global_step().read_value()
      return step if accumulate == 1 else step * accumulate + get_micro_batch_in_step().read_value()

  return read


def _count_examples(batches: Sequence[Batch]) -> Union[int, Any]:
  """Returns the number of examples in the global batch: an int, or a scalar int32 tensor on the
  host.
  """
  counts = [batch.num_examples for batch in batches]
  if all(batch.is_static for batch in batches):
    return sum(counts)
  with tf.device(HOST), tf.name_scope('count_examples'):
    return add_all(counts)
