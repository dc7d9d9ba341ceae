"""The fed tower: the first one's forward pass on chosen rows of a batch, and nothing else of a run.

Beside the batch is fed all that does not follow from a row alone by a law of the model's own:

  draws     what was drawn for a row goes where the row goes; no state of a generator moves
  sums      over all towers are as they would be without the others
  moments   of layers of batch normalisation, which have a setting of their own: what the fused
            kernels return goes with its rows, other moments are fixed

No op is added to the graph, and nothing in it is written.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from tensorflow_v1 import Tensor, replaced, tf
from towers.checks.comparison import shake
from towers.graph.source import format_op
from towers.graph.walk import find_dead, find_dependents, find_loops, find_needed
from towers.graph.writes import VARIABLES, find_writes
from towers.placement.randomness import find_draws, find_numbers, find_unseedable, is_random
from towers.tower.all_towers import OWN_SUMS, PLACES, SUMS
from towers.tower.batch_norm import is_moving_average
from towers.tower.batch_norm_layer import BATCH_MOMENTS, BATCH_SUMS
from towers.tower.forward_pass import Tower

# Where the rows of examples stand in a value that has several for each: all first ones before all
# second ones, or those of an example side by side; or the value has no rows.
BESIDE, WITHIN, AS_IS = LAYOUTS = ('beside', 'within', 'as is')
# Tensors that are fetched in one run.
_CHUNK = 100
_LATER = 64  # Entries of later axes, at most, by which a tensor that mixes rows is found.
# What is drawn and normalised is fed, and copied in each run: that of some rows.
_MOST_BYTES, _FEWEST_ROWS = 2 ** 26, 8

Values = Dict[Tuple[str, str], np.ndarray]
"""By kind and name: ('sum', name) of a loss, a metric or their weights; ('values', name) what is
summed; ('input', op) into a kernel of batch normalisation; ('gradient', variable)."""


class LeftOut(Exception):
  """Why a tower cannot be run by itself."""


class FedTower:
  """A tower whose batch is fed.

  Attributes:
    index: of its `size` rows, in their order.
    is_open: whether it takes any number of rows; if so, `size` is at most `most`.
    most: the rows that what is fed beside the batch leaves memory for.
    ops: that it runs, in order.
    is_half: whether it computes in 16 bits.
    of_batch: the ops that depend on the batch.
    writes: of update ops, loss and metrics, those that depend on the batch.
    by_row: the values that go with their rows, beside the batch.
  """

  def __init__(self, tower: Tower, session: Any, rows: Sequence[Any], moves_state: bool = False):
    """Finds what a run takes, of a session with variables and the values of `Batch.flatten`.

    The state of a random op may move only if `moves_state`.
    """
    self.tower, self.session, batch = tower, session, tower.batch
    *values, count = rows
    self.size = len(values[0]) if batch.is_padded else int(count)
    self.tensors = tf.nest.flatten(batch.tensors)
    self.is_open = all(tensor.shape.ndims and tensor.shape.as_list()[0] is None
                       for tensor in self.tensors)
    self._graph, self._moves_state = tower.loss.graph, moves_state
    self._sums = {**tower.sums, **{f'{name} (weights)': weight
                                   for name, weight in tower.weights.items()}}
    # What the model sums over all towers is the same on any number of them, but for batch
    # normalisation, which has a setting.
    totals = {total.op for total in self._graph.get_collection(SUMS)}
    moments = {total.op for total in self._graph.get_collection(BATCH_SUMS)}
    fed = {tensor.op for tensor in self.tensors}
    # Where micro-batches add moments up, no input leads from the batch to their mean.
    kept = {moment.op for moment in self._graph.get_collection(BATCH_MOMENTS, tower.scope)}
    # Updates of a model wait for what the step adds later: its loss, its micro-batches, its guard.
    own = {op for op in self._graph.get_operations() if op._id <= tower.loss.op._id}
    self._needed = find_needed([value.op for value in self._sums.values()], without=fed | totals)
    self.of_batch = find_dependents(fed | kept, by_control=False, without=totals - moments,
                                    within=own | kept | self._needed)
    self.ops = sorted(self._needed, key=lambda op: op._id)
    self._draws = find_draws(self.ops)
    self.is_half = any(tensor.dtype in (tf.float16, tf.bfloat16)
                       for op in self.ops for tensor in op.outputs)
    self._kernels = [op for op in self.ops if op.type.startswith('FusedBatchNorm')
                     and op.get_attr('is_training')]
    self._numbers = [tensor for op in self._draws for tensor in find_numbers(op)]
    num_bytes = sum(_count_bytes(tensor, self.size) for tensor in (
        *(op.outputs[0] for op in self._kernels), *self._numbers))
    self.most = max(_MOST_BYTES * self.size // max(num_bytes, 1), _FEWEST_ROWS)
    self.size = min(self.size, self.most) if self.is_open else self.size
    self.index = np.arange(self.size)
    # Rows that only fill a batch up give way to others.
    self.rows = [value[self.index % max(int(count), 1)] for value in values]
    updating = find_needed([getattr(op, 'op', op) for op in tower.update_ops], within=own)
    run = sorted(updating | self._needed, key=lambda op: op._id)
    writes = find_writes(self._graph, [op for op in run if op.type in VARIABLES])
    writes = [write for write in writes if write.op in updating or write.op in self._needed]
    self._writes_early = any(write.op in self._needed for write in writes)
    self.writes = [write for write in writes if write.op in self.of_batch]
    self._fetches: Dict[Tuple[str, str], Any] = {}
    self._fixed: Dict[Any, Any] = {}
    self.by_row: Dict[Any, Any] = {}

  def prepare(self, feeds_moments: bool = True) -> None:
    """Finds what is fed beside the batch, moments too if `feeds_moments`, and what is fetched.

    Raises LeftOut if a run would change the program's state, or draw what cannot be fed.
    """
    if self._writes_early:
      raise LeftOut('the loss or a metric changes a variable')
    for op in self._draws:
      loops = find_loops(op)
      if loops or is_random(op) and not self._moves_state:
        raise LeftOut(f'{op.name} draws {"in a loop" if loops else "by a state of its own"}')
    for op in filter(find_unseedable, self.ops):
      raise LeftOut(f'{op.name} draws in a function')
    self._fetches = {('sum', name): value for name, value in self._sums.items()}
    self._fetches.update((('values', name), value.op.inputs[0])
                         for name, value in self.tower.sums.items() if value.op.type == 'Sum')
    self.by_row, self._fixed = {}, {}
    for sums in self._graph.get_collection(BATCH_SUMS, self.tower.scope):
      channels = sums.shape.as_list()[0] // 2
      self._fixed[sums] = np.float32([0.0] * channels + [1.0] * (channels + 1))
    for total, own in zip(*(self._graph.get_collection(key, self.tower.scope)
                            for key in (SUMS, OWN_SUMS))):
      if total not in self._fixed:
        self._fixed[total] = self._read([own])[own]
        if not feeds_moments:
          self._fetches['sum', total.op.name] = own
    kernels, moments = (self._kernels, self._find_moments()) if feeds_moments else ([], [])
    # In one run, since TensorFlow prunes the whole graph for each choice of what it fetches.
    values = self._read([*self._numbers, *self._graph.get_collection(PLACES, self.tower.scope),
                         *(op.outputs[0] for op in kernels), *moments])
    self._fixed.update((tensor, values.pop(tensor)) for tensor in moments if tensor in values)
    self.by_row.update(values)
    if kernels or moments:
      self._fetches.update((('input', op.name), op.inputs[0]) for op in kernels)
    elif not self._fixed and any(
        op.type == 'IdentityN' and b'CustomGradient' in op.node_def.attr['_gradient_op_type'].s
        for op in self.ops):
      self._fetches.update(
          (('gradient', variable.op.name), tf.convert_to_tensor(gradient)) for variable, gradient
          in zip(self.tower.variables, self.tower.gradients) if gradient is not None)

  def list_sums(self, most: int) -> List[np.ndarray]:
    """Returns the sums of the rows of the smallest numeric tensors, of as many as `most`."""
    numeric = [value for value in self.rows if value.size and value.dtype.kind in 'biuf']
    return [value.reshape([len(value), -1]).sum(1) for value in sorted(numeric, key=np.size)[:most]]

  def _read(self, tensors) -> Dict[Any, np.ndarray]:
    """Returns the values of tensors for all rows, but for those of a branch that is not taken."""
    try:
      return dict(zip(tensors, self._fetch(tensors, self.index, AS_IS) if tensors else []))
    except tf.errors.InvalidArgumentError:
      alone = [self._read([tensor]) for tensor in tensors] if len(tensors) > 1 else []
      return {tensor: value for values in alone for tensor, value in values.items()}

  def _find_moments(self) -> List[Tensor]:
    """Returns the moments that both the loss and updates of moving averages take from the batch."""
    found: List[Tensor] = []
    # From an update back to what the loss takes too it is not far.
    apart, shared = self.of_batch - self._needed, self.of_batch & self._needed
    for write in self.writes:
      [variable, *_] = write.variables
      size = tf.TensorShape(variable.get_attr('shape')).num_elements()
      updating = find_needed([write.op], within=apart) if is_moving_average(variable) else ()
      found += [tensor for op in updating for tensor in op.inputs
                if tensor.op in shared and tensor.shape.num_elements() == size
                and not shared.isdisjoint(tensor.consumers())]
    return found

  def run(self, index: Any, layout: str, count: Optional[int] = None,
          shakes: bool = False) -> Values:
    """Returns what the tower computes for the rows `index`, of which `count` are real, by default
    all; `layout` is that of what goes with its rows, one of `LAYOUTS`. With `shakes` all that is
    fed is changed in its last bits.
    """
    values = self._fetch(list(self._fetches.values()), index, layout, count, shakes)
    return {(kind, name): np.asarray(value, np.float64 if 'sum' in kind else np.float32)
            for (kind, name), value in zip(self._fetches, values)}

  def locate(self, orders: Sequence[Any], is_right: Callable[[List[np.ndarray]], bool]) -> str:
    """Describes the first op for whose values in all orders `is_right` is false, or returns ''."""
    given = {tensor.op for tensor in (*self.by_row, *self._fixed)}
    computed = find_needed([value.op for value in self._fetches.values()], without=given)
    computed &= self.of_batch - find_dead(self.ops)
    tensors = [tensor for op in self.ops if op in computed for tensor in op.outputs
               if tensor.dtype.is_floating and not tensor.dtype._is_ref_dtype]
    for begin in range(0, len(tensors), _CHUNK):
      chunk = tensors[begin:begin + _CHUNK]
      try:
        values = [list(map(_thin_out, self._fetch(chunk, order, BESIDE))) for order in orders]
      except tf.errors.OpError:
        break
      for tensor, *of_orders in zip(chunk, *values):
        if not is_right(of_orders):
          return f'; its rows are first mixed by {format_op(tensor.op)}'
    return ''

  def _fetch(self, fetches, index, layout, count=None, shakes=False):
    """Runs, though TensorFlow lets nobody feed or fetch what is inside of a branch."""
    feed = {tensor: value[index] for tensor, value in zip(self.tensors, self.rows)}
    feed.update({number: len(index) if count is None else count for number in (
        self.tower.num_examples, self.tower.whole.num_examples) if tf.is_tensor(number)})
    feed.update(self._fixed)
    feed.update({tensor: take_rows(value, index, self.size, layout)
                 for tensor, value in self.by_row.items()})
    if shakes:
      random = np.random.RandomState(0)
      feed = {tensor: shake(np.asarray(value), random) for tensor, value in feed.items()}
    with replaced(*((self._graph, name, type(getattr(self._graph, name))())
                    for name in ('_unfeedable_tensors', '_unfetchable_ops'))):
      return self.session.run(fetches, feed)


def _thin_out(value: Any) -> np.ndarray:
  """Returns, of an array's later axes, enough to see a row that differs."""
  value = np.asarray(value)
  if value.ndim > 2:
    value = value.reshape([*value.shape[:2], int(np.prod(value.shape[2:]))])
    value = value[:, :, ::value.shape[2] // _LATER + 1]
  return value.astype(np.float64)


def _count_bytes(tensor, num_rows: int) -> int:
  """Returns how much memory a tensor takes, with as many rows where their number is open."""
  sizes = [size or 1 for size in (tensor.shape.as_list() if tensor.shape.ndims else [])]
  is_open = tensor.shape.ndims and tensor.shape.as_list()[0] is None
  return int(np.prod(sizes)) * tensor.dtype.size * (num_rows if is_open else 1)


def take_rows(value: np.ndarray, index: Any, size: int, layout: str) -> np.ndarray:
  """Returns the rows `index` of a value; as it is where no axis has a multiple of `size` rows."""
  for axis in range(0 if layout == AS_IS else min(value.ndim, 2)):
    outer, rest = divmod(value.shape[axis], size)
    if outer and not rest and (axis == 0 or outer == 1):
      chosen = (np.arange(outer)[:, None] * size + index if layout == BESIDE
                else np.asarray(index)[:, None] * outer + np.arange(outer))
      return np.take(value, chosen.ravel(), axis)
  return value
