"""The fed towers: the live ones on chosen rows at chosen places, and nothing else of a step.

A side is what some towers compute: in one run where they share sums, else in one for each share.

  reference    tower 0   rows 0 1 2 3 4 5 6 7 8
  other        tower 0   rows 0 1 2 3            tower 1   rows 4 5 6 7 8

What is no sum over examples by a setting of its own is made the same on both sides:

  kernels    of batch normalisation, forward and backward: they return for a row what they have
             returned for it on the reference
  moments    that no kernel takes: those of the reference's first share, for all
  sums       over all workers, of which no other runs: of that share, for all

No op is added to the graph, and its variables end as they were.
"""

import contextlib
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from towers.coupling.comparison import shake
from towers.coupling.sides import Share, Sides
from towers.graph.walk import find_dead, find_dependents, find_loops, find_needed, list_ops, sort
from towers.graph.writes import find_step_writes
from towers.placement.randomness import find_draws, is_random
from towers.tensorflow_v1 import Graph, Tensor, replaced, tf
from towers.tower.all_towers import OWN_SUMS, SLOTS, SUMS, TAKES_PART
from towers.tower.batch_norm.layer import BATCH_MOMENTS, BATCH_SUMS
from towers.tower.batch_norm.moving_averages import find_moments, is_moving_average
from towers.tower.drawing.draws import ALIGNED_BLOCKS, UNKNOWN_DRAWS
from towers.tower.tower import Tower

# Ops that take a value for what it is on one side of a limit; on few rows it may be on one alone.
_LIMITS = frozenset(('Greater', 'GreaterEqual', 'Less', 'LessEqual', 'Maximum', 'Minimum', 'Relu'))
_AXES = range(3)  # Of a value that is compared; features of examples may have more.
_BLOCK = 4  # The numbers of a block of the generator.
# Rounding turns a ReLU here or there, with a jump of gradients, or by luck none. A hundred times as
# large a change turns some wherever rounding may turn one.
_SHAKE = 1e-5
# What takes longer than both of these is left out.
_LONG_SECONDS, _LONG_SHARE = 2.0, 1 / 20
_WITH_GRADIENTS = 3  # What a run takes that computes them too, in forward runs.

Values = Dict[Tuple[str, str], List[Any]]
"""By kind and name, of each share: ('sum', name) of a loss, a metric or their weights; ('rows',
metric); ('input', op) and ('returned', tensor) of kernels; ('limited', tensor). Of the first share
alone ('penalty', op) and ('update', op), all that it assigns. Of all shares together, for each is
as large as the weights: ('gradient', variable)."""


class LeftOut(Exception):
  """Why towers are not measured."""


class FedTowers:
  """Towers whose batches are fed.

  Attributes:
    sizes: the rows of each tower, None where it takes any number.
    unit: what divides the places at which towers may begin: where rows draw parts of blocks, their
      numbers are those of their places only if the tower's first block begins there.
    pool: the rows of all towers' batches, `size` of them.
    forward: the ops of the first tower's loss and metrics.
    totals: the sums over all towers in the first one, each with its own part of it.
    gradients: of the loss, for each variable those of all towers; none where moments or sums are
      fixed, whose gradients are those of other parts too.
    kernels: of batch normalisation in it, forward and backward, but those in loops.
    limited: values of the first tower's forward pass that it compares with limits.
    writes: of the first tower's update ops, those that depend on its batch.
    updates: that may do so, but for those of moving averages, each with what it assigns, and where;
      nothing where it follows another or is in a branch or a loop, and so cannot be fetched.
    given: what is fed to each share of the other side beside its rows, once measured.
    mode: what every run is fed with too, as the switch of validation.
    is_guess: whether variables or labels are not those of the program, so that rounding may decide.
    runs_per_epoch: as for `check_towers`: with it no run begins that would take longer than may be.
  """

  def __init__(self, towers: Sequence[Tower], session: Any, rows: Sequence[Sequence[Any]],
               num_workers: int = 1, runs_per_epoch: Optional[int] = None):
    """Finds what a run takes, of a session with variables and of the values of `Batch.flatten` of
    each tower."""
    # Of all cores: the beginning, and what a tower's forward run takes.
    self._began, self._forward_seconds = time.process_time(), 0.0
    self.towers, self.session, tower = towers, session, towers[0]
    self.graph, self.scope = tower.loss.graph, tower.scope
    self.runs_per_epoch = runs_per_epoch
    self.sizes, place = [each.batch.num_rows for each in towers], tower.batch.row_offset
    is_aligned = self.graph.get_collection(ALIGNED_BLOCKS)
    self.unit = int(np.gcd(place.multiple, _BLOCK)) if place is not None and is_aligned else 1
    self._tensors = [tf.nest.flatten(each.batch.tensors) for each in towers]
    batches = [[value[:int(flat[-1])] for value in flat[:-1]] for flat in rows if int(flat[-1])]
    # Towers may pad their batches to other sizes.
    alike = [batch for batch in batches if all(
        value.shape[1:] == first.shape[1:] for value, first in zip(batch, batches[0]))]
    self.pool = [np.concatenate(values) for values in zip(*alike)]
    self.size = len(self.pool[0]) if self.pool else 0
    self.given: List[Dict[Any, Any]] = []
    self.mode: Dict[Any, Any] = {}
    self.is_guess = False
    self._fixed: Dict[Any, Any] = {}

    batch_sums, batch_moments = [self.graph.get_collection(key, self.scope)
                                 for key in (BATCH_SUMS, BATCH_MOMENTS)]
    sums = zip(*map(self.graph.get_collection, (SUMS, OWN_SUMS)))
    self._sums = [{**each.sums, **{f'{name} (weights)': weight
                                   for name, weight in each.weights.items()}} for each in towers]
    fed, outputs = {tensor.op for tensor in self._tensors[0]}, list_ops(self._sums[0].values())
    # What only a summary takes is computed after the update.
    used = find_needed(
        [*outputs, *list_ops([*tower.gradients, *tower.update_ops]),
         *(penalty.op for penalty in tower.penalties)], without=fed)
    self.totals = {total: own for total, own in sums if total.op in used
                   and total.op.name.startswith(self.scope)}
    totals = {total.op for total in self.totals}
    self._has_others = bool(num_workers > 1 and totals)
    self.forward = find_needed(outputs, without=fed | totals)
    # Updates wait for what a step adds later. Micro-batches add up moments that averages take.
    own = {op for op in self.graph.get_operations() if op._id <= tower.loss.op._id}
    of_batch = find_dependents(
        fed.union(moment.op for moment in batch_moments), by_control=False, within=own,
        without=totals.difference(total.op for total in batch_sums))
    self._early, late = find_step_writes(self._sums[0].values(), tower.update_ops)
    self.writes = [write for write in self._early + late if write.op in of_batch]
    written = {write.op for write in self._early + late}
    updates = [(write, _list_assigned(write, fed, written)) for write in self._early + late
               if not all(map(is_moving_average, write.variables))]
    # A static size of the batch is a constant, and another one in a tower of another size.
    self.updates = [(write, values) for write, values in updates
                    if write.op in of_batch or write.op in own and values
                    and len(set(self.sizes)) > 1]
    self._moments = [total for total in batch_sums
                     if total.op in used and total not in self.totals]
    if len(towers) * num_workers > 1:  # No setting joins those of one tower's micro-batches.
      self._moments += find_moments(self.writes, of_batch, self.forward)
    gradients = zip(*(each.gradients for each in towers))
    self.gradients = [] if self._moments or self._has_others else list(gradients)
    needed = find_needed([*outputs, *(list_ops(tower.gradients) if self.gradients else [])],
                         without=fed)
    self.kernels = [op for op in sorted(needed, key=lambda op: op._id)
                     if op.name.startswith(self.scope) and op.type.startswith('FusedBatchNorm')
                     and op.get_attr('is_training') and not find_loops(op)
                     # Keras' layer normalisation takes examples for the channels of one image.
                     and op.outputs[0].shape.as_list()[0] != 1]
    self._returned = [tensor for op in self.kernels for tensor in op.outputs[:3]]
    taken = sort(find_needed(outputs, by_control=False, within=self.forward))  # No assertions.
    dead, self.limited = find_dead(taken), []
    for tensor in (tensor for op in taken if op.type in _LIMITS and op not in dead
                   for tensor in op.inputs if tensor.op.name.startswith(self.scope)):
      if tensor.dtype.is_floating and tensor.shape.ndims in _AXES:
        with contextlib.suppress(LeftOut):
          peers = [self.find_peer(tensor, index) for index in range(len(towers))]
          self.limited += peers[:1]
    self.is_half = any(tensor.dtype in (tf.float16, tf.bfloat16)
                       for op in self.forward for tensor in op.outputs)

  def check(self) -> None:
    """Raises LeftOut if a run would change the program's state, or cannot be repeated."""
    if self._early:
      raise LeftOut('the loss or a metric changes a variable')
    for op in filter(is_random, find_draws(self.forward)):
      raise LeftOut(f'{op.name} draws by a state of its own')
    names = {op.name.split('_stateless/')[0] for op in self.forward}  # Twins are named after draws.
    for name in filter(names.__contains__, self.graph.get_collection(UNKNOWN_DRAWS)):
      raise LeftOut(f'the rows of what {name} draws were not found')

  def check_price(self, what: str, seconds: float) -> None:
    """Raises LeftOut where something would take longer, with all before, than it may; the first
    run tells how long that is."""
    if self.runs_per_epoch is not None and self._forward_seconds:
      limit = max(_LONG_SECONDS, self._forward_seconds * self.runs_per_epoch * _LONG_SHARE)
      spent = time.process_time() - self._began
      if spent + seconds > limit:
        raise LeftOut(f'{what} would take {seconds:.1f} s beside {spent:.1f} s, more than '
                      f'{limit:.1f} s, the larger of {_LONG_SECONDS:g} s and a twentieth of an '
                      'epoch\'s runs')

  def list_results(self, index: int, is_first: bool = False) -> Dict[Tuple[str, str], Any]:
    """Returns what is fetched of a tower, by kind and name as in `Values`; for the first share too
    what is the same for all."""
    tower = self.towers[index]
    found: Dict[Tuple[str, str], Any] = {
        ('sum', name): value for name, value in self._sums[index].items()}
    for name, whole in tower.wholes.items():
      found.update((('rows', f'{name}, part {number}'), row)
                   for number, row in enumerate(whole.rows, 1))
    found.update((('input', op.name), self.find_peer(op.inputs[0], index)) for op in self.kernels)
    found.update((('returned', tensor.name), self.find_peer(tensor, index))
                 for tensor in self._returned)
    found.update((('limited', tensor.name), self.find_peer(tensor, index))
                 for tensor in self.limited)
    found.update((('gradient', variable.op.name), gradients[index]) for variable, gradients in zip(
        self.towers[0].variables, self.gradients) if gradients[index] is not None)
    if is_first:
      found.update((('penalty', penalty.op.name), [penalty]) for penalty in tower.penalties)
      found.update((('update', write.op.name), [self.find_peer(value, index) for value in values])
                   for write, values in self.updates if values)
    return found

  def find_peer(self, tensor: Tensor, index: int) -> Tensor:
    """Returns a tower's tensor like one of the first; raises LeftOut if it has none."""
    given = dict(zip(self._tensors[0], self._tensors[index]))
    if index == 0 or tensor in given:
      return given.get(tensor, tensor)
    scope, own = self.towers[index].scope, tensor.name[len(self.scope):]
    # Gradients repeat the tower's scope; those of a clone leave it out, where they can.
    for inner in (scope, '', self.scope):
      with contextlib.suppress(KeyError):
        return self.graph.get_tensor_by_name(scope + own.replace(self.scope, inner))
    raise LeftOut(f'tower {index} has no tensor like {tensor.name}')

  def find_losses(self, side: Sequence[Share]) -> Optional[List[np.ndarray]]:
    """Returns the losses of the examples of each share; None if a model returns their mean."""
    losses = [tower.sums['loss'].op for tower in self.towers]
    if any(loss.type != 'Sum' for loss in losses):
      return None
    self._fix(side[0])
    found = list(self.run(side, lambda share: losses[share.tower].inputs[0]))
    is_whole = [np.size(values) for values in found] == [len(share.rows) for share in side]
    return found if is_whole else None

  def measure(self, sides: Sides) -> Tuple[Values, Values]:
    """Returns what both sides compute, and of rows the reference in the order of the other side."""
    self.given = []
    self._fix(sides.reference[0])
    reference = self.compute_reference(sides)
    for number, share in enumerate(sides.other):
      given = {}
      for tensor in self._returned:
        values = reference['returned', tensor.name]
        # Gradients of scale and offset are sums, which the shares make up together.
        is_sum = np.ndim(values[0]) < 2 and 'Grad' in tensor.op.type
        given[self.find_peer(tensor, share.tower)] = (
            sum(values) / len(sides.other) if is_sum else values[min(number, len(values) - 1)])
      self.given.append(given)
    return reference, self._compute(sides.other, self.given)

  def shake(self, side: Sequence[Share], seed: int) -> Dict[Any, Any]:
    """Returns what is fed to make the first tower's weights a little other."""
    weights = {variable.op for variable in self.towers[0].variables}
    forward = sort(self.forward)
    dead = find_dead(forward)
    reads = [op.outputs[0] for op in forward if op not in dead and any(
        source.op in weights for source in op.inputs)]
    values = self._fetch(side[0], reads)
    random = np.random.RandomState(seed)
    return dict(zip(reads, [shake(value, random, _SHAKE) for value in values]))

  def compute_reference(self, sides: Sides, given: Sequence[Dict[Any, Any]] = ()) -> Values:
    """Returns what the reference computes, and of rows in the order of the other side."""
    reference = self._compute(sides.reference, given)
    ours, others = [[list(enumerate(share.rows.tolist(), share.first)) for share in side]
                    for side in sides]
    places = sum(ours, [])
    waiting: Dict[Any, List[int]] = {}  # Of copies of an example each tower has its own values.
    for number, place in reversed(list(enumerate(places))):
      waiting.setdefault(place, []).append(number)
    index = [[waiting[place].pop() for place in each] for each in others]
    for (kind, name), values in reference.items():
      if kind in ('rows', 'input') or kind == 'returned' and np.ndim(values[0]) > 1:
        rows = np.concatenate(values)
        if len(rows) == len(places):  # Metrics of a whole split leave out what fills a batch up.
          reference[kind, name] = [rows[of_share] for of_share in index]
    return reference

  def _compute(self, side, given=()) -> Values:
    joined: Values = {}
    passes = _WITH_GRADIENTS if self.gradients else 1
    for results in self.run(side, lambda share: self.list_results(
        share.tower, is_first=share is side[0]), given, passes):
      for key, value in results.items():
        values = joined.setdefault(key, [])
        values.append(_add(values.pop(), value) if key[0] == 'gradient' and values else value)
    return joined

  def _fix(self, share):
    """Fixes moments and sums over all workers as those of the first tower."""
    self._fixed = {}
    for total, own in self.totals.items() if self._has_others else ():
      if total in self.graph.get_collection(BATCH_SUMS):  # Next to them there is a mean of 0.
        channels = total.shape.as_list()[0] // 2
        self._fixed[total] = np.float32([0.0] * channels + [1.0] * (channels + 1))
      else:
        self._fixed[total] = self._fetch(share, own)
    if self._moments:
      self._fixed.update(zip(self._moments, self._fetch(share, self._moments)))

  def _fetch(self, share, values):
    return next(self.run([share], lambda _: values))

  def run(self, side: Sequence[Share], fetch: Callable[[Share], Any],
          given: Sequence[Dict[Any, Any]] = (), passes: int = 1) -> Iterator[Any]:
    """Yields for each share the values of what `fetch` returns for it, of so many forward runs.

    Towers run together where they share sums.
    """
    shares = list(zip(side, [*given, *({} for _ in side)]))
    is_together = self.totals and len({share.tower for share in side}) == len(side)
    for together in [shares] if is_together else [[share] for share in shares]:
      self.check_price('a run more', self._forward_seconds * passes * len(together))
      feed = {**self.mode, **self._feed_idle({share.tower for share, _ in together})}
      for share, others in together:
        feed.update(self._feed(share, sum(each.num_real for each in side)))
        feed.update(others)
      began = time.process_time()
      with unlocked(self.graph):
        found = self.session.run([fetch(share) for share, _ in together], feed)
      self._forward_seconds = self._forward_seconds or (
          time.process_time() - began) / (passes * len(together))
      while found:
        yield found.pop(0)

  def _feed(self, share, total):
    """Returns what a tower is fed with, on a side of `total` examples."""
    tower, rows = self.towers[share.tower], share.rows % self.size
    feed = {tensor: value[rows] for tensor, value in zip(self._tensors[share.tower], self.pool)}
    feed.update((self.find_peer(tensor, share.tower), value)
                for tensor, value in self._fixed.items())
    numbers = [(tower.global_batch.num_examples, total), (tower.global_batch.divisor, float(total)),
               (tower.num_examples, share.num_real)]  # The first may be the last.
    place = tower.batch.row_offset
    if place is not None:
      numbers += [(place.first, share.first * place.stride), (place.num_slots, total)]
      count = share.num_real if tf.is_tensor(tower.num_examples) else len(share.rows)
      numbers += [(slots, share.slots[:count])
                  for slots in self.graph.get_collection(SLOTS, tower.scope)]
    feed.update((number, value) for number, value in numbers if tf.is_tensor(number))
    return feed

  def _feed_idle(self, busy):
    """Returns what towers without a share are fed with: a row that takes no part in sums."""
    feed = {}
    if self.totals and not self._has_others:
      # Behind them come those of towers that measure alone.
      for index, takes_part in zip(range(len(self.towers)), self.graph.get_collection(TAKES_PART)):
        if index not in busy:
          rows = np.zeros(self.sizes[index] or 1, int)
          feed.update(self._feed(Share(index, rows, 0, 1, np.arange(len(rows))), 1))
        feed[takes_part] = index in busy
    return feed


def unlocked(graph: Graph) -> ContextManager[None]:
  """Lets feed and fetch what is inside of a branch too, which TensorFlow lets nobody do, nor feed
  what somebody has asked the static value of."""
  return replaced(*((graph, name, type(getattr(graph, name))())
                    for name in ('_unfeedable_tensors', '_unfetchable_ops')))


def _list_assigned(write, fed, written) -> List[Tensor]:
  values = [value for value in write.op.inputs[1:] if value.dtype != tf.resource]
  needed = find_needed(list_ops(values), without=fed)
  return values if written.isdisjoint(needed) and not find_dead(sort(needed)) else []


def _add(total, value):
  """Returns the sum of two gradients, dense or of rows."""
  if not hasattr(total, 'indices'):
    with np.errstate(all='ignore'):  # In half precision they may be infinite.
      return total + value
  return total._replace(**{name: np.concatenate([getattr(total, name), getattr(value, name)])
                           for name in ('values', 'indices')})
