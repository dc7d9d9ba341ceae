"""The training graph: one straight line from the examples to the update.

  examples ──► feed ──► batches ──► towers ──► gradients ──► train_op
                          ▲                                     │
  validation examples ────┘ where is_validating is fed          └──► validation
"""

import os
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from tensorflow_v1 import tf
from towers.base.collector import uncollected
from towers.base.usage_error import UsageError
from towers.data.examples import Examples
from towers.input.feed import Feed, build_batches, build_feed, build_switched_batches
from towers.input.micro_batches import read_accumulate
from towers.input.pipeline import build_inputs
from towers.input.plan import Plan, build_plan
from towers.input.wait import build_input_wait
from towers.placement.cluster import read_cluster
from towers.placement.collectives import choose_collective, choose_wire
from towers.placement.devices import build_devices
from towers.placement.host import HOST
from towers.placement.replicas import build_replicas
from towers.placement.variables import build_variable_store
from towers.placement.workers import Workers
from towers.reduce.average import average_gradients
from towers.reduce.broadcast import build_broadcast
from towers.reduce.gradients import build_gradient_norm, clip_gradients, unscale_gradients
from towers.tower.precision import build_precision
from towers.tower.tower import Model, build_towers
from towers.update.apply import build_train_op
from towers.update.average_decay import check_decay
from towers.update.averages import build_averages
from towers.update.groups import Optimizers, Rate, build_groups, name_optimizer
from towers.update.rate import choose_rate
from towers.validation import build_validation, build_validation_tower
from towers.warm_start.matching import InitFrom
from towers.warm_start.warm_start import build_warm_start

_COLLECTION = 'towers/program'
# What is kept as `settings`.
_SETTINGS = (
    'model', 'optimizer', 'learning_rate', 'batch_size', 'accumulate', 'last_batch',
    'num_towers', 'device', 'logical_gpus', 'gpu_memory', 'input_mode', 'input_threads',
    'staging_depth', 'shuffle', 'seed', 'validation_tower', 'variables', 'tower_build',
    'batch_norm', 'precision', 'loss_scale', 'recompute', 'collective', 'fusion_megabytes', 'wire',
    'clip_norm', 'weight_decay', 'average_weights', 'frozen', 'rate_factors', 'init_from')


class TrainingGraph:
  """The graph that trains a model on N towers, built in the default graph.

  Attributes, in the order in which data goes:
    settings: the arguments that it was built with, by name; of model and optimizer their names.
    train_examples, validation_examples: the splits; the second may be None.
    graph: that holds it, a `tf.Graph`.
    devices: for each tower its device; with a validation tower, the last one is that tower's.
    workers: that train together, of which this process is one.
    feed: of the training split: iterators and staging areas.
    plan: of the training split: examples, batches and epochs.
    batches: for each training tower the batch that it computes on.
    towers: the training towers, each with its loss, metrics and gradients.
    warm_start: what starts the variables beside their initializers, or None.
    gradients: the mean loss and gradients over the global batch.
    learning_rate: of the next step, a scalar tensor or a float; NaN where the optimizer hides it.
    gradient_norm: of the mean gradients before they are clipped, a scalar tensor; None until
      `build_gradient_norm`.
    averages: moving averages of the weights, or None.
    train_op: updates all weights once. Its value is a scalar bool, False for a step that was
      refused because its loss or gradients were not finite.
    validation: what a run on validation batches fetches, or None.
    input_wait: seconds that a run with `train_op` waited for input, a scalar tensor.
    add_wait: with accumulation, the same of a run with `gradients.add_op`; else None.
    replicas: of the variables on every tower, or None where all towers share them.
    precision: that towers compute in, or None for float32.
    broadcast: how the chief's state becomes that of all workers; None for one worker.
  """

  @uncollected()
  def __init__(self, model: Model, *, train: Examples, validation: Optional[Examples] = None,
               optimizer: Optimizers,
               learning_rate: Union[float, Callable[[Plan], Rate], None] = None,
               batch_size: int, accumulate: Union[int, str] = 1, last_batch: str = 'keep',
               num_towers: Optional[int] = None, device: str = 'auto',
               workers: Optional[Workers] = None, input_mode: str = 'split',
               input_threads: Optional[int] = None, staging_depth: int = 1, shuffle: bool = True,
               seed: int = 0, validation_tower: bool = False, variables: str = 'host',
               tower_build: str = 'auto', batch_norm: str = 'first', precision: str = 'float32',
               loss_scale: Optional[float] = None, recompute: Union[str, int] = 'none',
               collective: str = 'auto',
               fusion_megabytes: float = 4.0, wire: str = 'float32',
               clip_norm: Optional[float] = None,
               weight_decay: float = 0.0, average_weights: Optional[float] = None,
               frozen: Sequence[str] = (),
               rate_factors: Optional[Mapping[str, float]] = None,
               init_from: Union[str, InitFrom, None] = None,
               logical_gpus: Optional[int] = None, gpu_memory: Optional[str] = None):
    """Builds the line from its first op to its last; see `towers.Program` for the arguments."""
    self._arguments = {name: value for name, value in locals().items() if name != 'self'}
    given = dict(self._arguments, model=getattr(model, '__name__', type(model).__name__),
                 optimizer=name_optimizer(optimizer),
                 init_from=init_from.path if isinstance(init_from, InitFrom) else init_from)
    self.settings = {name: given[name] for name in _SETTINGS}
    accumulate = read_accumulate(accumulate)
    self.train_examples, self.validation_examples = train, validation
    self.graph = tf.get_default_graph()
    cluster = read_cluster(os.environ)
    self.workers = workers = workers or Workers(cluster.num_workers, cluster.rank)
    self.devices = devices = build_devices(
        num_towers, device, logical_gpus=logical_gpus, gpu_memory=gpu_memory)
    self._check(validation, validation_tower, collective, variables)
    if average_weights is not None:
      check_decay(average_weights)
    if devices.memory.num_logical and collective == 'auto':
      # NCCL refuses two ranks on one GPU.
      collective = 'ring'
    train_devices = devices.names[:-1] if validation_tower else devices.names

    self.feed = self._build_feed(train, train_devices, batch_size, shuffle=shuffle,
                                 last_batch=last_batch, accumulate=accumulate)
    self.plan = self.feed.inputs.plan
    validation_feed = validation and self._build_feed(
        validation, devices.names[-1:] if validation_tower else devices.names,
        self.plan.micro_batch_size, last_batch='pad' if last_batch == 'pad' else 'keep')
    is_validating: Any = None
    is_training: Any = True
    if validation_feed and not validation_tower:
      # Kernels of GPUs take predicates from the host.
      with tf.device(HOST):
        is_validating = tf.placeholder_with_default(False, [], 'is_validating')
        is_training = tf.logical_not(is_validating)
      self.batches = build_switched_batches(
          self.feed, validation_feed, is_validating=is_validating)
    else:
      self.batches = build_batches(self.feed)

    store = build_variable_store(
        devices=train_devices, placement=variables, seed=seed, rank=workers.rank)
    self.precision = build_precision(precision, devices=train_devices, loss_scale=loss_scale)
    self.towers = build_towers(
        model, self.batches, devices=train_devices, store=store, is_training=is_training,
        batch_norm=batch_norm, accumulate=accumulate, build=tower_build, precision=self.precision,
        workers=workers, frozen=frozen, recompute=recompute)
    self.warm_start = build_warm_start(init_from, _find_model_variables()) if init_from else None

    mean = average_gradients(
        self.towers, accumulate=accumulate, workers=workers, collective=collective,
        fusion_bytes=int(fusion_megabytes * 1e6), wire=wire)
    if self.precision is not None:
      mean = unscale_gradients(mean, self.precision.loss_scale)
    self._unclipped, self.gradient_norm = mean, None
    self.gradients = clip_gradients(mean, clip_norm) if clip_norm else mean

    self._build_update(optimizer, learning_rate)
    self.validation = validation_feed and self._build_validation(
        model, validation_feed, is_validating, store)
    self.replicas = build_replicas()
    self.broadcast = None
    if workers.num_workers > 1:
      self.broadcast = build_broadcast(workers, self.towers)

  def _check(self, validation, validation_tower, collective, variables):
    """Refuses what does not go together, before anything is built."""
    if tf.get_collection(_COLLECTION):
      raise UsageError('This graph has a program already, or the beginning of one that failed, and '
                       'two would share counters and variables: build the second one in a graph '
                       'of its own, `with tf.Graph().as_default():`.')
    tf.add_to_collection(_COLLECTION, True)
    if validation_tower and validation is None:
      raise UsageError('validation_tower has nothing to measure: give validation examples too.')
    if validation_tower and len(self.devices.names) < 2:
      raise UsageError('validation=tower takes one tower for itself, and num_gpus=1 leaves none to '
                       'train: use num_gpus of at least 2, or validation=switch.')
    if collective == 'nccl' and self.devices.memory.num_logical:
      raise UsageError('collective=nccl refuses two towers on one GPU, and logical_gpus='
                       f'{self.devices.memory.num_logical} puts all there: use collective=ring.')
    if variables != 'replicated' and self.workers.num_workers == 1:
      # Nothing is left to sum, but an elastic run may go on as one worker, or as more again.
      choose_collective(collective, self.devices.names)
    choose_wire(self.settings['wire'], num_workers=self.workers.num_workers)

  def _build_feed(self, examples: Examples, devices: Sequence[str], batch_size: int, *,
                  shuffle: bool = False, **planned: Any) -> Feed:
    """Returns the feed of a split."""
    workers = self.workers
    plan = build_plan(
        num_examples=examples.num_examples, batch_size=batch_size, num_towers=len(devices),
        num_workers=workers.num_workers, rank=workers.rank, name=examples.name, **planned)
    inputs = build_inputs(
        examples, plan=plan, mode=self.settings['input_mode'], shuffle=shuffle,
        seed=self.settings['seed'], parallel_calls=self.settings['input_threads'])
    return build_feed(inputs, devices=devices, staging_depth=self.settings['staging_depth'])

  def _build_update(self, optimizer, learning_rate):
    """Builds the update of all weights, and what it says of its input."""
    settings = self.settings
    self.learning_rate = choose_rate(optimizer, learning_rate, self.plan)
    groups = build_groups(
        optimizer, self.learning_rate, [variable.op.name for variable in tf.trainable_variables()],
        rate_factors=settings['rate_factors'])
    decay = settings['average_weights']
    self.averages = None if decay is None else build_averages(decay)
    self.train_op = build_train_op(
        self.gradients, optimizer=groups, weight_decay=settings['weight_decay'],
        averages=self.averages)
    self.input_wait = build_input_wait(self.feed, self.batches, after=self.train_op)
    add_op = self.gradients.add_op
    self.add_wait = add_op and build_input_wait(self.feed, self.batches, after=add_op)

  def _build_validation(self, model, feed, is_validating, store):
    """Returns the validation by a tower of its own, or by all towers where there is a switch."""
    if is_validating is None:
      return build_validation_tower(
          model, feed, index=len(self.towers), store=store, precision=self.precision,
          workers=self.workers, averages=self.averages)
    return build_validation(
        self.towers, feed=feed, is_validating=is_validating, workers=self.workers)

  def build_again(self, accumulate: int) -> 'TrainingGraph':
    """Builds the same program in so many micro-batches, in a graph of its own."""
    with tf.Graph().as_default():
      return TrainingGraph(**dict(self._arguments, accumulate=accumulate))

  def build_gradient_norm(self) -> None:
    """Builds `gradient_norm`, for a run that shows it; a session that has begun pauses for it."""
    if self.gradient_norm is None:
      with self.graph.as_default():
        self.gradient_norm = build_gradient_norm(self._unclipped)

  @property
  def needs_threads(self) -> bool:
    """Whether the input of any split does, see `towers.Inputs`, or is not staged.

    The towers' ops follow an input that is not staged in its own thread, and the time at which it
    came would be read too late.
    """
    feeds = [self.feed] + ([self.validation.feed] if self.validation else [])
    return any(feed.inputs.needs_threads or feed.stage is None for feed in feeds)


def _find_model_variables():
  """Returns all global variables but the loss scale, before any slot is made."""
  return [variable for variable in tf.global_variables()
          if not variable.op.name.startswith('loss_scale/')]
