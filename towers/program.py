"""Program: the graph from the data set to the update, which everything after it runs.

  data set ──► inputs ──► staging ──► switch ──► towers ──► mean gradients ──► guarded update
"""

from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple, Union

import towers
from tensorflow_v1 import tf
from towers.base.collector import uncollected
from towers.base.usage_error import UsageError
from towers.data.examples import DataSet, Examples
from towers.input.feed import Feed
from towers.input.plan import Plan
from towers.placement.replicas import Replicas
from towers.placement.workers import ALONE, Workers
from towers.reduce.broadcast import Broadcast
from towers.reduce.gradients import ReducedGradients
from towers.tower.precision import Precision
from towers.tower.tower import Model
from towers.validation import Validation

VALIDATION_KINDS = ('switch', 'tower', 'none')
# A learning rate that never changes is a float.
Rate = Union[float, tf.Tensor]


class Program(NamedTuple):
  """The graph, from its feeds to the update: what a loop runs, and what a reader may want to look
  at.

  Attributes:
    train: the feed of the training split.
    reduced: the towers, and their mean loss and gradients over the global batch.
    learning_rate: of the next step, a scalar tensor or a float.
    train_op: updates all weights once; with a guard, a scalar bool that says whether it did.
    validation: what a run on validation batches fetches, or None.
    input_wait: seconds that a run with `train_op` waited for input, a scalar tensor.
    add_wait: with accumulation, the same of a run with `reduced.add_op`.
    gradient_norm: global, of the averaged gradients before they are clipped; None where nobody
      asks.
    replicas: of the variables on every tower, or None where all towers share them.
    precision: that towers compute in, or None for float32.
    broadcast: how the chief's state becomes that of all workers; None for one worker.
  """
  train: Feed
  reduced: ReducedGradients
  learning_rate: Any
  train_op: Any
  validation: Optional[Validation] = None
  input_wait: Any = None
  add_wait: Any = None
  gradient_norm: Any = None
  replicas: Optional[Replicas] = None
  precision: Optional[Precision] = None
  broadcast: Optional[Broadcast] = None

  @property
  def needs_threads(self) -> bool:
    """Whether the input of any split does, see `towers.Inputs`, or is not staged.

    What is not staged is followed by the towers' ops in one thread, and the time that it came at
    would be told late.
    """
    feeds = [self.train] if self.validation is None else [self.train, self.validation.feed]
    return any(feed.inputs.needs_threads or feed.stage is None for feed in feeds)


@uncollected()
def build_program(model: Model, data_set: DataSet, *, devices: Sequence[str],
                  optimizer: Callable[[Plan], Tuple[tf.train.Optimizer, Rate]],
                  batch_size: int, accumulate: int = 1, drop_remainder: bool = False,
                  input_mode: str = 'split', input_threads: Optional[int] = None,
                  staging_depth: int = 1, shuffle: bool = True, seed: int = 0,
                  validation: str = 'switch', variables: str = 'host', tower_build: str = 'auto',
                  batch_norm: str = 'first', precision: str = 'float32',
                  loss_scale: Optional[float] = None, collective: str = 'auto',
                  fusion_megabytes: float = 4.0, clip_norm: Optional[float] = None,
                  weight_decay: float = 0.0, shows_gradient_norm: bool = False,
                  workers: Workers = ALONE) -> Program:
  """Builds the graph; the keyword arguments are those flags of main.py that have the same names.

  Args:
    model: a function from a batch to one loss per example, and metrics.
    data_set: the splits.
    devices: for each tower its device; with `validation='tower'` the last one validates.
    optimizer: from the plan of the training split to an optimizer and its learning rate.
    shows_gradient_norm: whether the program has a `gradient_norm`.
    workers: that train together, of which this is one.

  Raises:
    UsageError: settings that do not go together, or a model that several towers would compute
      otherwise than one.
  """
  has_validation_tower = validation == 'tower'
  if has_validation_tower and len(devices) < 2:
    raise UsageError('validation=tower takes one tower for itself, and num_gpus=1 leaves none to '
                     'train: use num_gpus of at least 2, or validation=switch.')
  if collective != 'auto' and variables != 'replicated' and workers.num_workers == 1:
    raise UsageError(f'collective={collective} has no meaning with variables={variables}, which '
                     'are shared, and one worker: use variables=replicated.')
  train_devices = devices[:-1] if has_validation_tower else devices
  validation_devices = devices[-1:] if has_validation_tower else devices

  def feed(examples: Examples, devices: Sequence[str], batch_size: int, *, shuffle: bool = False,
           **planned: Any) -> Feed:
    plan = towers.build_plan(
        num_examples=examples.num_examples, batch_size=batch_size, num_towers=len(devices),
        num_workers=workers.num_workers, rank=workers.rank, name=examples.name, **planned)
    inputs = towers.build_inputs(examples, plan=plan, mode=input_mode, shuffle=shuffle, seed=seed,
                                 parallel_calls=input_threads)
    return towers.build_feed(inputs, devices=devices, staging_depth=staging_depth)

  train = feed(data_set.train, train_devices, batch_size, shuffle=shuffle,
               drop_remainder=drop_remainder, accumulate=accumulate)
  plan = train.inputs.plan
  if validation != 'none':
    validate = feed(data_set.validation, validation_devices, plan.micro_batch_size)

  is_training: Any = True
  if validation == 'switch':
    is_validating = tf.placeholder_with_default(False, [], 'is_validating')
    is_training = tf.logical_not(is_validating)
    batches = towers.build_switched_batches(train, validate, is_validating=is_validating)
  else:
    batches = towers.build_batches(train)

  store = towers.build_variable_store(
      devices=train_devices, placement=variables, seed=seed, rank=workers.rank)
  numbers = towers.build_precision(precision, devices=train_devices, loss_scale=loss_scale)
  all_towers = towers.build_towers(
      model, batches, devices=train_devices, store=store, is_training=is_training,
      batch_norm=batch_norm, accumulate=accumulate, build=tower_build, precision=numbers,
      workers=workers)

  reduced = towers.average_gradients(
      all_towers, accumulate=accumulate, workers=workers, collective=collective,
      fusion_bytes=int(fusion_megabytes * 1e6))
  if numbers is not None:
    reduced = towers.unscale_gradients(reduced, numbers.loss_scale)
  gradient_norm = towers.build_gradient_norm(reduced) if shows_gradient_norm else None
  if clip_norm:
    reduced = towers.clip_gradients(reduced, clip_norm)

  built_optimizer, learning_rate = optimizer(plan)
  train_op = towers.build_train_op(reduced, optimizer=built_optimizer, weight_decay=weight_decay)
  input_wait = towers.build_input_wait(train, batches, after=train_op)
  add_wait = reduced.add_op and towers.build_input_wait(train, batches, after=reduced.add_op)

  measured = None
  if validation == 'switch':
    measured = towers.build_validation(
        all_towers, feed=validate, is_validating=is_validating, workers=workers)
  elif has_validation_tower:
    measured = towers.build_validation_tower(
        model, validate, number=len(train_devices), store=store, precision=numbers,
        workers=workers)
  return Program(
      train=train, reduced=reduced, learning_rate=learning_rate, train_op=train_op,
      validation=measured, input_wait=input_wait, add_wait=add_wait, gradient_norm=gradient_norm,
      replicas=towers.build_replicas(), precision=numbers,
      broadcast=towers.build_broadcast(workers) if workers.num_workers > 1 else None)
