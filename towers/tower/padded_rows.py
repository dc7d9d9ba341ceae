"""Padded rows: what a model must not do with rows that only fill a batch up.

Losses and metrics leave them out, and with them the gradients. What a model computes from all rows
together does not, such as the moments of batch normalisation.
"""

from typing import Any, Sequence

from tensorflow_v1 import Tensor, tf
from towers.base.usage_error import UsageError
from towers.graph.source import format_op
from towers.graph.walk import find_dependents, find_needed
from towers.input.batch import Batch


def check_padded_rows(batch: Batch, loss: Tensor, update_ops: Sequence[Any]) -> None:
  """Refuses a model that normalises by the moments of a padded batch, or updates state from one.

  Other values of several rows, such as a mean that `tf.reduce_mean` takes, it cannot see.

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
  normalise = {op for op in find_needed([loss.op], within=of_rows)
               if op.type.startswith('FusedBatchNorm') and op.get_attr('is_training')}
  mixed = sorted(of_rows & (updates | normalise), key=lambda op: op._id)
  if mixed:
    raise UsageError(f'last_batch=pad fills batches up with rows that must not count, and '
                     f'{format_op(mixed[0])} is computed from all rows, as batch normalisation '
                     'is: use last_batch=drop, whose batches have one shape too, or keep.')
