"""The global batch: what the towers of this worker compute on together."""

from typing import Any, List, NamedTuple, Optional, Sequence, Union

from towers.base.usage_error import check_same_number
from towers.graph.ordered_sum import add_all
from towers.input.batch import Batch
from towers.input.row_offsets import build_row_offsets
from towers.placement.counters import get_micro_batch_in_step
from towers.placement.devices import check_devices
from towers.placement.host import HOST
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import Tensor, tf


class GlobalBatch(NamedTuple):
  """The batches of all towers of this worker.

  Attributes:
    batches: for each tower its own, with its place if there are several of any kind.
    num_examples: of all, an int or a scalar int32 tensor on the host.
    divisor: the same as a float or a scalar float32 tensor, but never 0, if all are damaged.
    num_towers: of all workers.
    num_micro_batches: of a full step.
    micro_batch: the number of this one in its step, a scalar int64 tensor; None for only one.
    joins_norms: whether layers of batch normalisation take sums of all towers.
  """
  batches: List[Batch]
  num_examples: Union[int, Tensor]
  divisor: Union[float, Tensor]
  num_towers: int
  num_micro_batches: int = 1
  micro_batch: Optional[Tensor] = None
  joins_norms: bool = False


def join_batches(batches: Sequence[Batch], *, num_workers: int = 1, accumulate: int = 1,
                 micro_batch: Optional[Tensor] = None, batch_norm: str = 'first') -> GlobalBatch:
  """Returns the global batch of this worker's towers; a step has `accumulate` micro-batches, of
  which a `micro_batch` that does not train has a number of its own.
  """
  batches, num_towers = list(batches), len(batches) * num_workers
  joins_norms = batch_norm == 'sync' and num_towers > 1
  if accumulate > 1:
    with tf.device(HOST), tf.name_scope('run/'):
      micro_batch = get_micro_batch_in_step().read_value()
  if num_towers > 1 or micro_batch is not None:
    offsets = build_row_offsets(batches, micro_batch)
    batches = [batch._replace(row_offset=offset) for batch, offset in zip(batches, offsets)]
  counts = [batch.num_examples for batch in batches]
  if all(batch.is_static for batch in batches):
    return GlobalBatch(batches, sum(counts), float(sum(counts)), num_towers, accumulate,
                       micro_batch, joins_norms)
  with tf.device(HOST), tf.name_scope('count_examples'):
    total: Any = add_all(counts)
    divisor = tf.cast(tf.maximum(total, 1), tf.float32)
  return GlobalBatch(batches, total, divisor, num_towers, accumulate, micro_batch, joins_norms)


def check_numbers(batches: Sequence[Batch], devices: Sequence[str], store: VariableStore) -> None:
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
