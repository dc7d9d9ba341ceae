"""Validation: every metric as a sum and a count over all towers, with equal weight per example.

With the switch, the training towers measure while `is_validating` is fed True. With a tower of its
own, the last tower measures in the same run in which the others train, on a snapshot of all
variables from the beginning of the pass over the validation split. So both ways measure the same
weights on the same examples, with the same result. These weights are the averages, if there are any
(see `towers.update.moving_averages`); variables that are not trained are as they are.
"""

import functools
import sys
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.output import write_line
from towers.base.short_repr import short_repr
from towers.base.usage_error import UsageError, check_same_number
from towers.graph.ordered_sum import add_all
from towers.graph.walk import find_needed
from towers.graph.writes import check_measuring, find_writes
from towers.input.feed import Feed, build_batches
from towers.placement.counters import counted_by, get_global_step
from towers.placement.host import HOST
from towers.placement.patterns import shorten
from towers.placement.variables import VariableStore, check_shared
from towers.placement.workers import ALONE, Workers, build_gather, build_sum_of_numbers
from towers.staging import run_beside
from towers.tensorflow_v1 import Operation, Session, Tensor, Variable, tf
from towers.tower.all_towers import join_sums
from towers.tower.drawing.draws import PASS_SHIFTS, begin_draws, read_pass_shift
from towers.tower.forward_pass import build_forward
from towers.tower.global_batch import join_batches
from towers.tower.model_call import Model, ModelCall
from towers.tower.precision import Precision
from towers.tower.recording import record_tower
from towers.tower.tower import Tower
from towers.update.moving_averages import Averages
from towers.whole import WholeRows, flatten_rows


class Validation(NamedTuple):
  """What a run on validation batches feeds and fetches.

  Attributes:
    feed: of the validation split.
    towers: that measure.
    sums: float32 vector, those of `stack_sums` over the global batch. A run that needs them also
      puts the next validation batch of every tower.
    is_validating: the switch to feed True in such a run; None if a tower of its own validates.
    snapshot_op: copies the variables before a pass begins; None if they are read directly.
    sum_workers: `(session, sums, rows)` to the sums of all workers, whose rows it adds, once each
      has measured its part of the split; None for one worker.
    numbers: pairs of a name and a tensor to feed, on which a run's draws depend: 'micro_batch' is
      the number of its batch in a global batch, 'shift' as of `shift_of` this one's in the pass.
  """
  feed: Feed
  towers: Sequence[Tower]
  sums: Tensor
  is_validating: Optional[Tensor] = None
  snapshot_op: Optional[Operation] = None
  sum_workers: Optional[Callable[[Session, np.ndarray, WholeRows], np.ndarray]] = None
  numbers: Sequence[Tuple[str, Tensor]] = ()

  def __repr__(self) -> str:
    return short_repr(self)

  @property
  def has_tower(self) -> bool:
    """Whether a tower of its own measures while the others train."""
    return self.is_validating is None

  @property
  def names(self) -> List[str]:
    """What it measures: 'loss', and the model's metrics."""
    return [*self.towers[0].sums, *self.towers[0].wholes]


def build_validation(towers: Sequence[Tower], *, feed: Feed, is_validating: Optional[Tensor],
                     workers: Workers = ALONE) -> Validation:
  """Sums the metrics of towers that train and validate in turn.

  Args:
    feed: of the validation split, and of several workers one's part of it.
    is_validating: the switch of their batches, a bool placeholder; None if they only validate.

  Raises:
    UsageError: the feed is for another number of towers or of workers, or the model changes a
      variable whenever its loss is computed.
  """
  split, plan = feed.inputs.name, feed.inputs.plan
  check_same_number(len(towers), 'towers', len(feed.devices), f'towers of the feed of {split}',
                    fix='build both for the same devices.')
  check_same_number(plan.num_workers, f'workers in the plan of {split}', workers.num_workers,
                    'workers', fix='give the plan the same num_workers.')
  # A tower of its own may change the snapshot that its loss reads.
  check_measuring([value for tower in towers for name, value in tower.sums.items()
                   if name != 'loss' or is_validating is not None], is_validating)

  vectors = []
  for index, tower in enumerate(towers):
    with tf.device(tower.device), tf.name_scope('measure'):
      vector = stack_sums(tower)
      if feed.stage is not None:
        vector = run_beside(vector, feed.stage.put_ops[index])
      vectors.append(vector)
  with tf.device(HOST), tf.name_scope('validation'):
    sums = add_all(vectors)
    sum_workers = None
    if workers.num_workers > 1:
      sum_workers = _build_sum_of_workers(sums.shape.num_elements(), workers)
  needed = find_needed([value.op for value in fetch_measured(sums, towers)])
  numbers = [('micro_batch', towers[0].global_batch.micro_batch),
             *(('shift', shift) for shift in tf.get_collection(PASS_SHIFTS))]
  return Validation(feed, towers, sums, is_validating, sum_workers=sum_workers, numbers=[
      (name, number) for name, number in numbers if number is not None and number.op in needed])


def _build_sum_of_workers(size, workers):
  """Returns `Validation.sum_workers`, of `[size]` sums."""
  add_up, gather = build_sum_of_numbers(size, workers), build_gather(workers)

  def sum_workers(session, sums, rows):
    rows.join(functools.partial(gather, session))
    return add_up(session, sums)

  return sum_workers


def stack_sums(tower: Tower) -> Tensor:
  """Returns a tower's sums, those of the weights that it has, and its number of examples."""
  return tf.stack([*tower.sums.values(), *tower.weights.values(),
                   tf.cast(tower.num_examples, tf.float32)])


def fetch_measured(sums: Tensor, towers: Sequence[Tower]) -> List[Tensor]:
  """Returns what a run that measures fetches: sums of all towers, and rows for `WholeRows`."""
  return [sums, *flatten_rows([tower.wholes for tower in towers])]


def find_means(tower: Tower, sums: np.ndarray) -> Dict[str, float]:
  """Returns the means of `stack_sums`, by name; a metric whose weights are all 0 has none."""
  weights = dict(zip(tower.weights, sums[len(tower.sums):]))
  means = {name: float(total / weights.get(name, sums[-1]))
           for name, total in zip(tower.sums, sums) if weights.get(name, 1)}
  if set(tower.losses) & set(weights):  # Each is a mean by weights of its own, as no sum is.
    means['loss'] = sum(means.get(name, 0.0) for name in tower.losses)
  return means


def build_measuring_towers(model: Model, towers: Sequence[Tower], *, store: VariableStore,
                           precision: Optional[Precision] = None,
                           workers: Workers = ALONE) -> Sequence[Tower]:
  """Builds beside each training tower what its model makes with `is_training` False.

  They compute on the same switched batches and variables, for a model that decides in Python. A
  variable of False alone is a UsageError.
  """
  call = ModelCall(model, store, towers[0].global_batch,
                   begin_draws(store.seed, read_shift=read_pass_shift), precision=precision)
  before, measuring = tf.global_variables(), []
  for index, tower in enumerate(towers):
    recording, replicas = record_tower(tower.device), store.replicas.get(index, {})
    measuring.append(build_forward(call, tower.batch, recording, index=len(towers) + index,
                                   instead=replicas))
    store.scopes.append(measuring[-1].scope)
    check_shared(before, tf.global_variables(), tower='With is_training False the model')
  join_sums(measuring, workers=workers)
  needed = measuring[0].find_needed()
  others = [variable.op.name for variable in tf.trainable_variables()
            if variable.handle.op not in needed]
  write_line('validation: the model decides by is_training in Python, and is called again with '
             f'False; in training alone: {shorten(others)}', sys.stderr)
  return measuring


def build_validation_tower(model: Model, feed: Feed, *, index: int, store: VariableStore,
                           precision: Optional[Precision] = None, workers: Workers = ALONE,
                           averages: Optional[Averages] = None,
                           accumulate: int = 1) -> Validation:
  """Builds a tower that only validates, on a snapshot of the variables that `store` has made.

  Args:
    feed: of the validation split, for one device, that of the tower and the snapshot.
    index: of the tower, which no training tower has.
    averages: to measure in place of their weights; or None.
    accumulate: micro-batches of a full step, of which each run measures one.

  Raises:
    UsageError: the feed is for several towers, or the tower reads a variable, not its snapshot.
  """
  check_same_number(len(feed.devices), f'towers of the feed of {feed.inputs.name}', 1,
                    'validation tower',
                    fix='build its plan with num_towers=1, and its feed with one device.')
  [batch], [device] = build_batches(feed), feed.devices

  step = get_global_step()
  variables = {**store.made, step.op.name: step}
  snapshots: Dict[str, Variable] = {}
  with tf.device(device), tf.name_scope('snapshot'):
    for name, variable in variables.items():
      zeros = tf.zeros(variable.shape, variable.dtype.base_dtype)
      snapshots[name] = tf.Variable(zeros, name=name, trainable=False, use_resource=True,
                                    collections=[tf.GraphKeys.LOCAL_VARIABLES])
    measured = {**variables, **(averages.variables if averages else {})}
    snapshot_op = tf.group(*[snapshots[name].assign(measured[name].read_value(), read_value=False)
                             for name in snapshots], name='take')

  recording = record_tower(device)
  number = None
  if accumulate > 1:
    with tf.device(HOST):
      number = tf.placeholder_with_default(np.int64(0), [], 'micro_batch_in_validation')
  whole = join_batches([batch], micro_batch=number)
  [batch] = whole.batches
  call = ModelCall(model, store, whole, begin_draws(store.seed, read_shift=read_pass_shift),
                   precision=precision)
  with counted_by(snapshots[step.op.name]):
    tower = build_forward(call, batch, recording, index=index, instead=snapshots)
  ops = tower.find_needed().intersection(recording.list_ops())
  _check_read_inside(variables, ops)
  validation = build_validation([tower], feed=feed, is_validating=None, workers=workers)
  return validation._replace(snapshot_op=snapshot_op)


def _check_read_inside(variables, ops):
  """Refuses a tower that needs, besides its own ops, others that read what training changes.

  The `variables`, by name, have snapshots; others were made before the program.
  """
  # A module may have computed something of its variables before the program too.
  needed = find_needed(ops)
  others = [variable for variable in tf.global_variables() if variable.op.name not in variables
            and not needed.isdisjoint(variable.handle.consumers())]
  changed = [variable for variable in others if any(
      write.op is not variable.initializer
      for write in find_writes(variable.graph, [variable.handle.op]))]
  for variable in [*variables.values(), *changed]:
    for op in needed.intersection(variable.handle.consumers()):
      raise UsageError(f'The op {op.name} reads the variable {variable.op.name}, of which the '
                       'validation tower has no snapshot, while steps change it: make the variable '
                       'in the model function, or use validation_tower=False.')
