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

from typing import List, Optional, Sequence, Union

from towers.base import garbage_collector
from towers.base.usage_error import check_choice
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.placement.workers import ALONE, Workers
from towers.tensorflow_v1 import Tensor
from towers.tower import global_batch
from towers.tower.all_towers import join_sums
from towers.tower.batch_norm.layer import BATCH_MOMENTS
from towers.tower.batch_norm.moving_averages import BATCH_NORMS, join_moments, needs_all_moments
from towers.tower.cloning.cloner import Cloner
from towers.tower.drawing.draws import begin_draws, read_pass_shift
from towers.tower.model_call import Model, ModelCall
from towers.tower.precision import Precision, warn_of_float32
from towers.tower.recording import record_tower
from towers.tower.tower import Tower
from towers.tower.training_tower import build_tower


@garbage_collector.uncollected()
def build_towers(model: Model, batches: Sequence[Batch], *, devices: Sequence[str],
                 store: VariableStore, is_training: Union[bool, Tensor] = True,
                 batch_norm: str = 'first', accumulate: int = 1, build: str = 'reuse',
                 precision: Optional[Precision] = None, workers: Workers = ALONE,
                 frozen: Sequence[str] = (), recompute: Union[str, int] = 'none') -> List[Tower]:
  """Builds a tower with gradients for each batch.

  Args:
    model: called once per tower but for clones, under `variable_scope` reuse from the second on.
    batches, devices: for each tower its batch, and its device.
    store: makes the variables.
    is_training: for the model: True, or a scalar bool tensor where the towers also validate.
    batch_norm, accumulate, build, frozen, recompute: as of `towers.Program`; `accumulate` is a
      number.
    precision: for towers that compute in half precision, or None. Their gradients are then those
      of the scaled loss, see `unscale_gradients`.
    workers: whose towers batch normalisation joins; these towers are one worker's.

  Raises:
    UsageError: a loss or metric of the wrong shape, a model without trainable variables or whose
      batch normalisation never updates its averages, towers that do not share, or numbers of
      batches, devices and the store's towers that differ.
  """
  garbage_collector.collect_former()
  global_batch.check_numbers(batches, devices, store)
  check_choice('batch_norm', batch_norm, BATCH_NORMS)
  joined = global_batch.join_batches(
      batches, accumulate=accumulate, num_workers=workers.num_workers, batch_norm=batch_norm)
  draws = begin_draws(
      store.seed, read_shift=None if isinstance(is_training, bool) else read_pass_shift)
  call = ModelCall(model, store, joined, draws, is_training, precision)
  cloner = Cloner(build, store, joined.batches, left_out=() if needs_all_moments(
      batch_norm, joined) else (BATCH_MOMENTS,))

  towers: List[Tower] = []
  for index, device in enumerate(devices):
    tower = cloner.clone(index, device)
    if tower is None:
      recording = record_tower(device)
      tower = build_tower(call, index, recording, frozen=frozen, recompute=recompute)
      cloner.add(index, tower, recording)
    towers.append(tower)
    store.scopes.append(tower.scope)

  if precision is not None:
    warn_of_float32(towers[0].scope, precision.dtype)
  join_moments(batch_norm, towers, workers)
  join_sums(towers, workers=workers)
  return towers
