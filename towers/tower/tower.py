"""Towers: one copy of the model's graph per device, all on the same variables.

                 ┌─ tower_0 ─ loss and metric sums, gradients ─┐
  batch of each ─┼─ tower_1 ─                                  ├─► average
                 └─ tower_2 ─                                  ─┘

A tower adds up the losses of its examples and divides by the number of examples in the *global*
batch (with several workers: in this worker's part of it). Then the towers' losses and gradients sum
to exactly those of one tower on the whole batch, whatever each tower's share. The mean of the
towers' means is right only where all shares are equal.

If the losses have weights, the sum of the weights of the global batch divides instead. No tower
knows it, so it divides what all of them have summed (see `towers.reduce.weights`).
"""

import contextlib
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from tensorflow_v1 import Gradient, Operation, Tensor, Variable, tf
from towers.base.collector import collect_former, uncollected
from towers.base.usage_error import UsageError, check_same_number
from towers.data.composite import decode_batch
from towers.graph.ordered_sum import add_all, keep_order
from towers.input.batch import Batch
from towers.input.places import build_places
from towers.placement.devices import check_devices
from towers.placement.frozen import freeze_variables
from towers.placement.host import HOST
from towers.placement.randomness import get_micro_batch_in_step, is_random
from towers.placement.set_values import keep_set_values
from towers.placement.variables import (
  VariableStore,
  build_variable_store,
  check_reads,
  check_shared,
  naming_missing,
  seed_made_before,
  stand_in,
)
from towers.placement.workers import ALONE, Workers
from towers.tower.all_towers import join_sums, joining
from towers.tower.apart import check_apart, check_penalties
from towers.tower.batch_norm import check_batch_norms, join_batch_norms, joins_moments
from towers.tower.batch_norm_layer import BATCH_MOMENTS, joined_sums
from towers.tower.cloning.cloner import Cloner
from towers.tower.cloning.pattern import record_tower
from towers.tower.differentiate import differentiate
from towers.tower.drawing.draws import Draws, begin_draws, tie_draws, warn_of_left
from towers.tower.drawing.folds import find_folds
from towers.tower.losses import Weighted, get_divisor, sum_returned
from towers.tower.precision import Precision, cast_inputs, float32_getter
from towers.tower.recomputing.recompute import Recomputed, recompute
from towers.whole import Whole

Values = Union[Tensor, Weighted]
Losses = Union[Values, Tuple[Tensor, Tensor], List[Values], Dict[str, Values]]
Model = Callable[[Any, Any], Union[Losses, Tuple[Losses, Dict[str, Values]]]]
"""A model: (the batch's tensors, is_training) to the loss, or to the loss and metrics. The loss is
`[batch]`, one value per example, or a scalar that is their mean. Metrics are a dict from names to
one value per example, `[batch]`. Loss and metrics may be `Weighted`; a pair of tensors is a loss
with weights; several losses are a list or a dict of them.
"""


class Tower(NamedTuple):
  """One copy of the model.

  Attributes:
    device: where it stands.
    scope: its name scope, with a slash at the end.
    loss: its share of the global batch's mean loss, a scalar: the towers' losses sum to it. With
      weights, of the mean of weight times loss over the examples.
    sums: scalars, each summed over the tower's examples: 'loss' and every metric.
    num_examples: its examples, an int or a scalar int32 tensor.
    update_ops: what its model added to UPDATE_OPS.
    penalties: what its model added to REGULARIZATION_LOSSES.
    num_global_examples: those of all towers, an int or a scalar int32 tensor.
    divisor: of `sums`: the same as a float or a scalar float32 tensor, never 0.
    put_op: as of its batch.
    gradients: for each trainable variable the gradient of the tower's loss: a tensor,
      `tf.IndexedSlices` or None. Empty for a tower that only validates.
    penalty_gradients: for each trainable variable that of the penalties, a tensor or None, where
      `gradients` do not hold it: of a first tower whose loss has weights, which do not divide
      penalties. Else empty.
    variables: the trainable variables of these gradients: the tower's own replicas, or the
      variables of all towers.
    num_micro_batches: of a full step. Gradients are divided by it as well, so that with a loss
      scale they are no larger than those of the whole step's batch.
    weights: for those of `sums` that have weights the sum of these, a scalar.
    losses: the names of several losses, whose means add up to the loss; empty for one loss.
    wholes: metrics of the whole split, by name, with the tower's rows.
    recomputed: the activations that the backward pass computes again, or None.
  """
  device: str
  scope: str
  loss: Tensor
  sums: Dict[str, Tensor]
  num_examples: Union[int, Tensor]
  update_ops: List[Any]
  penalties: List[Tensor]
  num_global_examples: Union[int, Tensor]
  divisor: Union[float, Tensor]
  put_op: Optional[Operation] = None
  gradients: List[Optional[Gradient]] = []
  penalty_gradients: List[Optional[Tensor]] = []
  variables: List[Variable] = []
  num_micro_batches: int = 1
  weights: Dict[str, Tensor] = {}
  losses: Sequence[str] = ()
  wholes: Mapping[str, Whole] = {}
  recomputed: Optional[Recomputed] = None


class ModelCall(NamedTuple):
  """How each tower calls the model.

  Attributes:
    model: to call.
    store: makes the variables.
    num_global_examples: of all towers that call it, an int or a scalar int32 tensor.
    divisor: of the sums of a tower, see `Tower`.
    is_training: for the model: a bool, or a scalar bool tensor where towers also validate.
    precision: for towers that compute in half precision, or None.
    num_micro_batches: of a full step.
    draws: what its random ops depend on.
    num_towers: of all workers, whose values it may take.
    joins_sums: whether its layers of batch normalisation take values of all.
    frozen: patterns of variables that get no gradients.
    recompute: which activations the backward pass computes again.
  """
  model: Model
  store: VariableStore
  num_global_examples: Union[int, Tensor]
  divisor: Union[float, Tensor]
  is_training: Union[bool, Tensor]
  precision: Optional[Precision]
  num_micro_batches: int
  draws: Draws
  num_towers: int = 1
  joins_sums: bool = False
  frozen: Sequence[str] = ()
  recompute: Union[str, int] = 'none'


@uncollected()
def build_towers(model: Model, batches: Sequence[Batch], *, devices: Sequence[str],
                 store: VariableStore, is_training: Union[bool, Tensor] = True,
                 batch_norm: str = 'first', accumulate: int = 1, build: str = 'reuse',
                 precision: Optional[Precision] = None, workers: Workers = ALONE,
                 frozen: Sequence[str] = (),
                 recompute: Union[str, int] = 'none') -> List[Tower]:
  """Builds a tower with gradients for each batch.

  Args:
    model: called once per tower, under `variable_scope` reuse from the second on. Clones do not
      call it.
    batches: for each tower its batch.
    devices: for each tower its device.
    store: makes the variables.
    is_training: for the model: True, or a scalar bool tensor where the towers also validate.
    batch_norm: 'first', 'mean' or 'sync', see `batch_norm`.
    accumulate: micro-batches of a full step, each with random numbers of its own; the same as for
      `average_gradients`.
    build: 'reuse', 'clone' or 'auto', see `cloner`. The results are the same to the bit.
    precision: for towers that compute in half precision, or None. Their gradients are then those
      of the scaled loss, see `unscale_gradients`.
    workers: whose towers batch normalisation joins; these towers are one worker's.
    frozen: patterns of variables that get no gradients, see `frozen`.
    recompute: 'none', 'auto', a number of segments or names of ops: the activations that the
      backward pass computes again, see `recompute`. The results are the same to the bit.

  Raises:
    UsageError: a loss or metric of the wrong shape, a model without trainable variables or whose
      batch normalisation never updates its averages, towers that do not share, or numbers of
      batches, devices and the store's towers that differ.
  """
  collect_former()
  counts = [batch.num_examples for batch in batches]
  may_be_empty = any(batch.may_be_empty for batch in batches)
  cloner = Cloner(build, store,
                  left_out=() if joins_moments(batch_norm, may_be_empty) else [BATCH_MOMENTS])
  _check_numbers(batches, devices, store)
  num_towers = len(devices) * workers.num_workers
  draws = begin_draws(store.seed)
  if num_towers * accumulate > 1:
    batches = _place(batches, draws.read_step, accumulate)
  call = ModelCall(model, store, *_count_examples(batches), is_training, precision,
                   num_micro_batches=accumulate, draws=draws, num_towers=num_towers,
                   joins_sums=num_towers > 1 and batch_norm == 'sync',
                   frozen=frozen, recompute=recompute)

  towers: List[Tower] = []
  for index, (batch, device) in enumerate(zip(batches, devices)):
    tower = cloner.clone(batch, index=index, device=device)
    if tower is None:
      recording = record_tower(device)
      tower, own_gradients = _build_tower(call, batch, index=index, device=device,
                                          recording=recording)
      cloner.add_pattern(tower._replace(gradients=own_gradients), batch, recording, index=index,
                         later=batches[index + 1:])
    else:
      tower = tower._replace(variables=_own_variables(store, index))
    towers.append(tower)
    store.scopes.append(tower.scope)

  check_batch_norms(batch_norm, update_ops=towers[0].update_ops, variables=tf.global_variables(),
                    scope=towers[0].scope, loss=towers[0].loss)
  scopes = [tower.scope for tower in towers]
  join_batch_norms(batch_norm, scopes=scopes, devices=devices, counts=counts,
                   may_be_empty=may_be_empty, workers=workers)
  join_sums(scopes=scopes, devices=devices, counts=counts, workers=workers)
  return towers


def _place(batches, read_step, accumulate):
  """Returns the batches, each with its place in the global batch."""
  micro_batch = None
  if accumulate > 1:
    with tf.device(HOST), tf.name_scope('run/'):
      micro_batch = get_micro_batch_in_step().read_value()
  places = build_places(batches, read_step=read_step, micro_batch=micro_batch)
  return [batch._replace(place=place) for batch, place in zip(batches, places)]


def _check_numbers(batches, devices, store):
  """Refuses numbers of towers that differ, devices without an index, and other structures."""
  check_same_number(len(batches), 'batches', len(devices), 'devices',
                    fix='give a device for each batch.')
  check_same_number(store.num_towers, 'devices of the variable store', len(devices),
                    'devices of the towers', fix='build the store with the devices of the towers.')
  check_devices(devices)
  sizes = [len(tf.nest.flatten(batch.tensors)) for batch in batches]
  for tower, size in enumerate(sizes):
    check_same_number(size, f'tensors in the batch of tower {tower}', sizes[0],
                      'in that of tower 0',
                      fix='the model takes both; give all batches the same structure.')


def _build_tower(call, batch, *, index, device, recording):
  """Returns a tower that the model builds, and the gradients of its loss without penalties."""
  store, graph = call.store, tf.get_default_graph()
  replicas = store.replicas.get(index, {})
  before = tf.global_variables()

  # All towers start from the values that the first tower's model assigns.
  with contextlib.nullcontext() if index else keep_set_values():
    tower = build_forward(call, batch, index=index, device=device, place=recording.place,
                          instead=replicas, reuse=index > 0)
  if index == 0:
    _check_trained(call)
    seed_made_before(store, tf.trainable_variables())
    freeze_variables(call.frozen)
  else:
    check_shared(before, tf.global_variables(), tower=index)
  check_reads(store, replicas, scope=tower.scope,
              fix='use variables=host, first or balanced, or tower_build=clone')

  tower = tower._replace(variables=_own_variables(store, index),
                         num_micro_batches=call.num_micro_batches)
  num_forward = len(graph.get_operations())
  tower, own_gradients = differentiate(
      tower, batch, place=recording.place, is_first=index == 0,
      loss_scale=None if call.precision is None else call.precision.loss_scale.value)
  tower = tower._replace(recomputed=recompute(
      call.recompute, tower, own_gradients, recording=recording, first_backward=num_forward,
      warns=index == 0))
  check_apart(dict(gradients=own_gradients), graph.get_operations()[recording.num_ops:],
              index=index, others=store.scopes, batch=batch)
  return tower, own_gradients


def _check_trained(call):
  """Refuses a model without weights, or with weights in half precision: these lose small updates.
  """
  variables = tf.trainable_variables()
  if not variables:
    raise UsageError('The model made no trainable variable: make them with tf.get_variable in '
                     'the model function.')
  if call.precision is None:
    return
  dtype = call.precision.dtype
  halves = [variable.op.name for variable in variables if variable.dtype.base_dtype == dtype]
  if halves:
    raise UsageError(f'precision=mixed, but {halves[0]} and {len(halves) - 1} more weights are of '
                     f'{dtype.name} themselves, in which small updates are lost: make them with '
                     'tf.get_variable, or use precision=float32.')


def _own_variables(store, index):
  """Returns the trainable variables that tower `index` reads."""
  replicas = store.replicas.get(index, {})
  return [replicas.get(variable.op.name, variable) for variable in tf.trainable_variables()]


def build_forward(call: ModelCall, batch: Batch, *, index: int, device: str,
                  place: Optional[Callable[[Operation], str]] = None,
                  instead: Dict[str, Variable], reuse: bool) -> Tower:
  """Builds a tower without gradients.

  Args:
    call: of the model.
    batch: of the tower.
    index: of the tower.
    device: where the tower stands.
    place: a device function that gives its ops this device, or None.
    instead: the variables that the tower reads instead of the store's, by name.
    reuse: whether the variables exist already.
  """
  graph, store = tf.get_default_graph(), call.store
  num_ops = len(graph.get_operations())
  collections = [tf.GraphKeys.UPDATE_OPS, tf.GraphKeys.REGULARIZATION_LOSSES]
  sizes = [len(tf.get_collection(key)) for key in collections]

  store.begin_tower()
  outer = tf.get_variable_scope()
  with tf.device(place or device), tf.name_scope(f'tower_{index}') as scope, joining(
      batch, num_towers=call.num_towers):
    returned = _call_model(call, batch.tensors, index=index, scope=scope, outer=outer,
                           instead=instead, reuse=reuse)
    sums, weights, losses, wholes = sum_returned(returned, batch)
    share = sums['loss'] / call.divisor
  if call.num_micro_batches > 1 and set(losses) & set(weights):
    raise UsageError(f'accumulate={call.num_micro_batches} takes a step in micro-batches, and the '
                     f'losses {", ".join(losses)} have weights whose sums only the whole step '
                     'knows: return one towers.Weighted, or use accumulate=1.')

  ops = [op for op in graph.get_operations()[num_ops:] if op not in store.initial_ops]
  keep_order(ops)
  _move_switches(ops, place or (lambda op: device))
  named = {'loss' if name == 'loss' else f'metric {name}':
           [value] + ([weights[name]] if name in weights else []) for name, value in sums.items()}
  named.update((f'metric {name}', list(whole.rows)) for name, whole in wholes.items())
  check_apart(named, ops, index=index, others=store.scopes, batch=batch)
  if index == 0 and batch.place is not None:
    call.draws.folds.update(find_folds(
        filter(is_random, ops), batch, scope=scope,
        call_again=lambda tensors: _call_beside(call, tensors, scope=scope)))
  left = tie_draws(ops, call.draws, tower=store.first_tower + index, scope=scope, batch=batch)
  if index == 0:
    warn_of_left(left)
  update_ops, penalties = [tf.get_collection(key)[size:] for key, size in zip(collections, sizes)]
  check_penalties(sums['loss'], penalties, ops)
  return Tower(device, scope, share, sums, batch.num_examples, update_ops, penalties,
               call.num_global_examples, call.divisor, batch.put_op, weights=weights,
               losses=losses, wholes=wholes)


def build_outputs(call: ModelCall, batch: Batch, *, index: int, device: str) -> Any:
  """Returns whatever the model of `call` returns in a tower that only computes it.

  The arguments are those of `build_forward`.
  """
  call.store.begin_tower()
  outer = tf.get_variable_scope()
  with tf.device(device), tf.name_scope(f'tower_{index}') as scope:
    return _call_model(call, batch.tensors, index=index, scope=scope, outer=outer, instead={},
                       reuse=index > 0)


def _move_switches(ops, place):
  """Places the switches of variables' values on the tower's device.

  A branch puts each beside the op that reads the variable, often on the host, from which the value
  goes on to the tower. A clone gets the value itself, and would send it back to be switched.
  """
  for op in ops:
    if op.type == 'Switch' and op.inputs[0].op.type == 'ReadVariableOp':
      op._clear_attr('_class')
      op._set_device('')
      op._set_device(place(op))


def _call_model(call, tensors, *, index, scope, outer, instead, reuse):
  """Returns what the model returns, called on the store's variables in the tower's precision."""
  getter, creator = stand_in(call.store, instead)
  half: Dict[str, Any] = {}
  if call.precision is not None:
    tensors = cast_inputs(tensors, call.precision.dtype)
    half = dict(custom_getter=float32_getter(scope), dtype=call.precision.dtype)

  with contextlib.ExitStack() as contexts:
    if call.joins_sums:
      contexts.enter_context(joined_sums())
    contexts.enter_context(tf.variable_scope(outer, reuse=reuse or None, custom_getter=getter,
                                             auxiliary_name_scope=False))
    contexts.enter_context(tf.variable_scope(tf.get_variable_scope(), auxiliary_name_scope=False,
                                             **half))
    contexts.enter_context(tf.variable_creator_scope(creator))
    contexts.enter_context(naming_missing(tower=index))
    return call.model(decode_batch(tensors), call.is_training)


def _call_beside(call, tensors, *, scope):
  """Calls the model in another graph, which must not show in what the model keeps in itself."""
  owner = getattr(call.model, '__self__', call.model)
  kept = dict(getattr(owner, '__dict__', {}))
  beside = call._replace(
      store=build_variable_store(devices=[HOST]),
      is_training=tf.placeholder(tf.bool, []) if tf.is_tensor(call.is_training) else True)
  try:
    with tf.name_scope(scope):
      _call_model(beside, tensors, index=0, scope=scope, outer=tf.get_variable_scope(), instead={},
                  reuse=False)
  finally:
    getattr(owner, '__dict__', {}).update(kept)


def _count_examples(batches: Sequence[Batch]) -> Tuple[Union[int, Tensor], Union[float, Tensor]]:
  """Returns the size of the global batch, and what divides its sums: numbers, or scalar tensors on
  the host.
  """
  counts = [batch.num_examples for batch in batches]
  if all(batch.is_static for batch in batches):
    return sum(counts), get_divisor(sum(counts))
  with tf.device(HOST), tf.name_scope('count_examples'):
    total = add_all(counts)
    return total, get_divisor(total)
