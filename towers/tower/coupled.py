"""Coupled: models that compute from several examples at once.

A tower has only its own examples. So a value of a whole batch, such as the mean that some
normalisation subtracts or a product of all pairs of examples, is another one with other towers. And
where rows only fill a batch up, they would count.
"""

import logging
import math
from typing import Any, Sequence

from tensorflow_v1 import Tensor, get_constant_array, tf
from towers.base.usage_error import UsageError
from towers.coupling.follow import follow
from towers.coupling.values import Mixed, Rows, Total, Value
from towers.graph.source import format_op
from towers.graph.walk import find_dependents, find_needed
from towers.graph.writes import find_writes
from towers.input.batch import Batch
from towers.tower.batch_norm import is_moving_average
from towers.tower.batch_norm_layer import BATCH_SUMS
from towers.tower.losses import Weighted, split_returned

_GRADIENT_FIX = ('inside of a model take tf.gradients of values per example or of their sum, '
                 'since those of a mean are divided by the size of the batch')
_FIX = ('For batch normalisation use towers.tower.batch_norm_layer with batch_norm=sync, for a '
        f'mean by weights return towers.Weighted(losses, weights), and {_GRADIENT_FIX}.')
_PICKS = ('Gather', 'GatherV2', 'ReverseV2', 'Roll', 'Slice', 'Split', 'SplitV', 'StridedSlice',
          'Unpack')
_PICK_FIX = ("Other examples stand at a place of a tower's batch: let one example of the data hold "
             'all that belongs together.')
_MEAN_FIX = ('Where an axis is as long as the longest example, sum over it with a mask, and divide '
             'by the number of elements.')
_PAD_FIX = 'use last_batch=drop, whose batches have one shape too, or keep'


def check_coupled(returned: Any, batch: Batch, *, num_parts: int) -> None:
  """Refuses a loss or metric that is no mean over examples; warns of one that mixes them.

  It follows the batch through the graph, op by op, and says nothing about ops that it does not
  know. The kernels and the layer of batch normalisation have settings of their own. `check` runs
  the model instead, and measures by how much several towers differ from one.

  Args:
    returned: by the model of the first tower.
    batch: of that tower.
    num_parts: into which a step's global batch is divided: towers, workers, micro-batches.

  Raises:
    UsageError: the loss is a sum, or divides by the number of examples what is divided by it later;
      or rows that only fill a batch up are mixed with others.
  """
  if num_parts == 1 and not batch.is_padded:
    return
  named = _name_parts(returned)
  # Rows that fill up the batch of a single tower stand behind its examples.
  most_rows = (batch.num_rows or batch.most_rows) if num_parts > 1 else None
  values = follow(
      tf.nest.flatten(batch.tensors), list(named.values()), num_rows=batch.num_rows,
      most_rows=most_rows, free=tf.get_collection(BATCH_SUMS))
  for (name, tensor), value in zip(named.items(), values):
    _check_scale(name, tensor, value, num_parts)
    if isinstance(value, Mixed):
      _report_mixed(name, value, batch, num_parts)
      return


def _name_parts(returned):
  """Returns the tensors of loss and metrics, by what to call them."""
  loss, metrics = split_returned(returned)
  named = {'The loss of the model': loss}
  named.update((f'The metric {name}', values) for name, values in metrics.items())
  parts = {}
  for name, values in named.items():
    if isinstance(values, Weighted):
      parts[name] = tf.convert_to_tensor(values.values)
      parts[f'{name} (its weights)'] = tf.convert_to_tensor(values.weights)
    elif tf.is_tensor(values):
      parts[name] = values
  return parts


def _check_scale(name: str, tensor: Tensor, value: Value, num_parts: int) -> None:
  """Refuses a sum over the examples, and values per example that are divided by their number."""
  fix = ('Return one loss per example, [batch], or the mean over the batch; or '
         'towers.Weighted(losses, weights).')
  if not isinstance(value, (Rows, Total)) or math.isnan(value.power):
    return
  if isinstance(value, Total) and value.power != -1 and tensor.shape.ndims == 0:
    what = 'a sum' if value.power == 0 else 'no mean'
    raise UsageError(
        f'{name} is {what} over the examples of a batch ({format_op(value.op)}), which is smaller '
        f'in each of the {num_parts} parts of a step (towers x micro-batches x workers) than in '
        f'one, and so would be the update. {fix} A division by a constant does not help: a tower '
        f'has only its share of the batch. And {_GRADIENT_FIX}.')
  if isinstance(value, Rows) and value.power and tensor.shape.ndims == 1:
    raise UsageError(
        f'{name} has one value per example that depends on the number of examples '
        f'({format_op(tensor.op)}), which differs between towers; they divide by the number of '
        f'the global batch themselves. {fix}')


def _report_mixed(name: str, value: Mixed, batch: Batch, num_parts: int) -> None:
  """Warns of a value of several examples, or refuses it where some rows are no examples."""
  where = f'{name} depends on {format_op(value.op)}, a value of several examples of a batch'
  if batch.is_padded:
    raise UsageError(f'last_batch=pad fills batches up with rows that must not count. {where}: '
                     f'{_PAD_FIX}.')
  fix = _PICK_FIX if value.op.type in _PICKS else _FIX
  if value.op.type == 'Mean':
    fix = f'{fix} {_MEAN_FIX}'
  logging.getLogger('towers').warning(
      '%s. A tower has only its own, so %d parts of a step (towers x micro-batches x workers) do '
      'not equal one. %s towers.check shows by how much they differ.', where, num_parts, fix)


def warn_of_state(batch: Batch, loss: Tensor, update_ops: Sequence[Any], *, num_parts: int) -> None:
  """Warns of a variable that the loss reads, and update ops change by the examples of a batch.

  Moving averages of batch normalisation are a matter of `batch_norm`.

  Args:
    batch: of the first tower.
    loss: of this tower.
    update_ops: what its model added to UPDATE_OPS.
    num_parts: as for `check_coupled`.
  """
  kept = [variable.op for variable in tf.global_variables() + tf.local_variables()
          if not is_moving_average(variable)]
  writes = find_writes(loss.graph, kept) if num_parts > 1 and update_ops else []
  if not writes:
    return
  updating = find_needed([getattr(update, 'op', update) for update in update_ops])
  of_batch = find_dependents([tensor.op for tensor in tf.nest.flatten(batch.tensors)],
                             by_control=False)
  read = find_needed([loss.op])
  for write in writes:
    if write.op in updating and write.op in of_batch and not read.isdisjoint(write.variables):
      logging.getLogger('towers').warning(
          'The loss of the model reads the variable %s, which an op in tf.GraphKeys.UPDATE_OPS '
          'changes by the examples of a batch (%s). Of the %d parts of a step (towers x '
          'micro-batches x workers) only one does so, with its own examples, so they do not equal '
          'one. towers.check shows by how much they differ.', write.variables[0].name,
          format_op(write.op), num_parts)
      return


def check_padded_rows(batch: Batch, loss: Tensor, update_ops: Sequence[Any]) -> None:
  """Refuses what normalises by the moments of a padded batch, updates state from it or reorders it.

  Args:
    batch: of a tower.
    loss: of the tower.
    update_ops: what the model added to UPDATE_OPS.

  Raises:
    UsageError: names the op and the fix.
  """
  if not batch.is_padded:
    return
  of_rows = find_dependents([tensor.op for tensor in tf.nest.flatten(batch.tensors)],
                            by_control=False)
  updates = {getattr(update, 'op', update) for update in update_ops}
  needed = find_needed([loss.op], within=of_rows)
  normalise = {op for op in needed
               if op.type.startswith('FusedBatchNorm') and op.get_attr('is_training')}
  mixed = sorted(of_rows & (updates | normalise), key=lambda op: op._id)
  if mixed:
    raise UsageError(f'last_batch=pad fills batches up with rows that must not count, and '
                     f'{format_op(mixed[0])} is computed from all rows, as batch normalisation '
                     f'is: {_PAD_FIX}.')
  reordered = sorted(_find_reordering(batch, needed, of_rows), key=lambda op: op._id)
  if reordered:
    raise UsageError(f'last_batch=pad fills batches up with rows that must not count, and '
                     f'{format_op(reordered[0])} gives the rows another order, so nobody knows '
                     f'which these are: {_PAD_FIX}.')


def _find_reordering(batch, needed, of_rows):
  """Returns ops that put the rows of a batch into an order that depends on the batch."""
  parts = [op for op in needed if op.type == 'DynamicPartition']
  if any(op.type.endswith('DynamicStitch') for op in needed):
    parts = []  # Which mostly restores the order.
  gathers = [op for op in needed if op.type in ('Gather', 'GatherV2')
             and all(tensor.op in of_rows for tensor in op.inputs[:2])
             and not (op.type == 'GatherV2' and (
                 op.get_attr('batch_dims') or get_constant_array(op.inputs[2]) != 0))]
  values = follow(tf.nest.flatten(batch.tensors), [op.inputs[0] for op in gathers])
  return parts + [op for op, value in zip(gathers, values)
                  if isinstance(value, Rows) and value.axis == 0 and value.fold == 1]
