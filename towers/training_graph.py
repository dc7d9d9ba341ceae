"""The training graph: one straight line from the examples to the update.

  examples ──► feed ──► batches ──► towers ──► gradients ──► train_op
                          ▲                                     │
  validation examples ────┘ where is_validating is fed          └──► validation
"""

import dataclasses
import os
import re
import sys
from typing import Any, Dict, List, Optional, Sequence, Union

from towers.base.garbage_collector import uncollected
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.data.augmented import drawn_alike
from towers.data.examples import BY_HAND, ENDLESS, Examples
from towers.graph.walk import find_dependents
from towers.graph.writes import StepWrites, find_left_out, find_step_writes
from towers.input.feed import Feed, build_batches, build_feed, build_switched_batches, check_alike
from towers.input.input_wait import build_input_wait
from towers.input.micro_batches import read_accumulate
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.placement.cluster import read_cluster
from towers.placement.collectives import choose_collective, choose_wire
from towers.placement.counters import get_global_step
from towers.placement.devices import build_devices
from towers.placement.host import HOST
from towers.placement.patterns import shorten
from towers.placement.replicas import build_replicas
from towers.placement.variables import (
  TOWER_SCOPE,
  VariableStore,
  check_made_before,
  choose_placement,
  format_variables,
)
from towers.placement.workers import Workers
from towers.placement.xla import compiles
from towers.reduce.average import average_gradients
from towers.reduce.broadcast import build_broadcast
from towers.reduce.clip import build_gradient_norm, clip_gradients
from towers.reduce.gradients import unscale_gradients
from towers.settings.program_settings import ProgramSettings
from towers.tensorflow_v1 import Tensor, tf
from towers.tower.foreign.calls import IDLE_OPTIMIZERS
from towers.tower.foreign.python_switch import ASKED_IN_PYTHON
from towers.tower.model_call import Model
from towers.tower.precision import build_precision
from towers.tower.towers import build_towers
from towers.update.apply import build_train_op
from towers.update.groups import build_groups, choose_rate, name_optimizer, name_rates
from towers.update.moving_averages import build_averages
from towers.update.summary_tags import read_after
from towers.validation import build_measuring_towers, build_validation, build_validation_tower
from towers.warm_start.first_batch import FirstBatch, find_late
from towers.warm_start.warm_start import WarmStart

_COLLECTION = 'towers/program'


class TrainingGraph:
  """The graph that trains a model on N towers, built in the default graph.

  Attributes, in the order in which data goes:
    given: the settings that it was built with, and of 'auto' what it has come to.
    model: the model that the towers compute.
    train_examples, validation_examples: the splits; the second may be None.
    graph: the `tf.Graph` that holds all of it.
    sessions: those of its user that are open.
    devices: for each tower its device; with a validation tower, the last one is that tower's.
    placement: where the variables live, and why.
    workers: the workers that train together, and which of them this process is.
    feed: iterators and staging areas of the training split.
    plan: examples, batches and epochs of the training split.
    batches: for each training tower the batch that it computes on.
    towers: the training towers, each with its loss, metrics and gradients.
    warm_start: the file or function that variables start from in place of their initializers, or
      None.
    gradients: the mean loss and gradients over the global batch.
    learning_rate: of the next step, a scalar tensor or a float; NaN where the optimizer hides it.
    learning_rates: the same of each group of variables, by the name of its curve.
    gradient_norm: of the mean gradients before they are clipped, a scalar tensor; None until
      `build_gradient_norm`.
    averages: moving averages of the weights, or None.
    train_op: updates all weights once. Its value is a scalar bool, False for a step that was
      refused because its loss or gradients were not finite.
    validation: what a run on validation batches fetches, or None.
    input_wait: seconds that a run with `train_op` waited for input, a scalar tensor.
    add_wait: with accumulation, the same of a run with `gradients.add_op`; else None.
    replicas: of the variables on every tower, or None where all towers share them.
    precision: the half precision that towers compute in, or None for float32.
    broadcast: how the chief's state becomes that of all workers; None for one worker.
  """

  @uncollected()
  def __init__(self, model: Model, train: Examples, validation: Optional[Examples],
               settings: ProgramSettings, workers: Optional[Workers] = None):
    self.model, self.train_examples, self.validation_examples = model, train, validation
    accumulate = read_accumulate(settings.accumulate)
    self.graph = tf.get_default_graph()
    self.sessions: List[Any] = []
    cluster = read_cluster(os.environ)
    self.workers = workers = workers or Workers(cluster.num_workers, cluster.rank)
    self.devices = devices = build_devices(
        settings.num_towers, settings.device, logical_gpus=settings.logical_gpus,
        gpu_memory=settings.gpu_memory)
    train_devices = devices.names[:-1] if settings.validation_tower else devices.names
    self.placement = choose_placement(settings.variables, train_devices)
    # Only a command knows whether its run is a new one.
    last_batch = 'keep' if settings.last_batch == 'auto' else settings.last_batch
    if train.num_examples == ENDLESS or (train.num_examples, last_batch) == (BY_HAND, 'drop'):
      last_batch = 'carry'  # All batches are full.
    self.given = dataclasses.replace(settings, variables=self.placement.kind, last_batch=last_batch)
    self._check()

    self.feed = self._build_feed(
        train, train_devices, settings.batch_size, shuffle=settings.shuffle,
        last_batch=last_batch, accumulate=accumulate)
    self.plan = self.feed.inputs.plan
    if self.plan.batch_size > train.num_examples and not self.plan.carries:
      write_line(f'WARNING: batch_size={self.plan.batch_size} is more than the '
                 f'{train.num_examples} training examples, all of which every step takes: '
                 f'write batch_size={train.num_examples}, or a smaller one', sys.stderr)
    validation_feed = None
    if validation is not None:
      validation_feed = self._build_feed(
          drawn_alike(validation),
          devices.names[-1:] if settings.validation_tower else devices.names,
          self.plan.micro_batch_size,
          last_batch='pad' if last_batch in ('pad', 'carry') else 'keep')
    self.batches, is_training, is_validating = self._build_batches(validation_feed)

    store = VariableStore(
        devices=train_devices, placement=self.placement.kind, seed=settings.seed, rank=workers.rank)
    self.precision = build_precision(
        settings.precision, devices=train_devices, loss_scale=settings.loss_scale)
    self.towers = build_towers(
        model, self.batches, devices=train_devices, store=store, is_training=is_training,
        batch_norm=settings.batch_norm, accumulate=accumulate, build=settings.tower_build,
        precision=self.precision, workers=workers, frozen=settings.frozen,
        recompute=settings.recompute)
    step = get_global_step()
    self._variables = [  # No slot is made yet.
        variable for variable in tf.global_variables()
        if variable is not step and not variable.op.name.startswith('loss_scale/')]
    self._check_gradients()
    self._name_foreign()
    self.warm_start: Union[FirstBatch, WarmStart, None] = None
    if callable(settings.init_from):
      self.warm_start = FirstBatch(settings.init_from, train, self.plan, settings, devices,
                                   find_late(self.towers[0].batch.tensors))
    elif settings.init_from is not None:
      self.warm_start = WarmStart(settings.init_from, self._variables)

    self._build_gradients()
    self._build_update()
    self.validation = None
    if validation_feed is not None:
      self.validation = self._build_validation(validation_feed, is_validating, store)
    # Those of other towers would come under other names.
    tags, scope = tf.get_collection_ref(tf.GraphKeys.SUMMARIES), self.towers[0].scope
    tags[:] = [tag for tag in tags if tag.op.name.startswith(scope)
               or not re.search(f'(^|/){TOWER_SCOPE}', tag.op.name)]
    if tags:
      read_after([*self.towers[0].find_needed(), self.gradients.loss, self.gradients.metrics,
                  self.train_op], self.summaries)
    self.replicas = build_replicas()
    self.broadcast = None
    if workers.num_workers > 1:
      self.broadcast = build_broadcast(workers, self.towers)

  def _check(self):
    """Refuses what does not go together, before anything is built."""
    given, collective = self.given, self.given.collective
    if tf.get_collection(_COLLECTION):
      raise UsageError('This graph has a program already, or the beginning of one that failed, and '
                       'two would share counters and variables: build the second one in a graph '
                       'of its own, `with tf.Graph().as_default():`.')
    tf.add_to_collection(_COLLECTION, 1)
    check_made_before(tf.global_variables())
    if given.validation_tower and self.validation_examples is None:
      raise UsageError('validation_tower has nothing to measure: give validation examples too.')
    if given.validation_tower and len(self.devices.names) < 2:
      raise UsageError('validation_tower=True takes one tower for itself, and num_towers=1 leaves '
                       'none to train: use num_towers of at least 2, or validation_tower=False.')
    if collective == 'nccl' and self.devices.memory.num_logical:
      raise UsageError('collective=nccl refuses two towers on one GPU, and logical_gpus='
                       f'{self.devices.memory.num_logical} puts all there: use collective=ring.')
    if self.placement.kind != 'replicated' and self.workers.num_workers == 1:
      # Nothing is left to sum, but an elastic run may go on as one worker, or as more again.
      choose_collective(collective, self.devices.names)
    choose_wire(given.wire, num_workers=self.workers.num_workers)

  def _check_gradients(self):
    """Refuses a loss that no variable moves, and names the variables that it leaves as they are."""
    tower = self.towers[0]
    penalties = tower.penalty_gradients or [None] * len(tower.variables)
    left = [variable.op.name for variable, *gradients in zip(
        tower.variables, tower.gradients, penalties)
            if all(gradient is None for gradient in gradients)]
    if len(left) == len(tower.variables):
      raise UsageError(f'The loss has no gradient for any of the {len(left)} variables '
                       f'({shorten(left)}): compute it from them by ops that have gradients, so '
                       'not by tf.argmax, tf.round or tf.stop_gradient.')
    writes = find_step_writes([tower.loss], tower.update_ops) if left else StepWrites([], [])
    written = {variable.name for write in [*writes.early, *writes.late]
               for variable in write.variables}
    moved = [name for name in left if name in written]
    for names, fate in (
        (moved, 'which updates of the model move: make them with trainable=False'),
        ([name for name in left if name not in moved], 'which stay as they start')):
      if names:
        write_line(f'WARNING: the loss has no gradient for {shorten(names)}, {fate}', sys.stderr)

  def _name_foreign(self):
    """Names what the model brings along for another loop, and no step runs."""
    idle = dict.fromkeys(tf.get_collection(IDLE_OPTIMIZERS))
    own = name_optimizer(self.given.optimizer)
    if idle:
      write_line(f"optimizer: the model's own {' and '.join(idle)} is not used; {own} of "
                 'towers.Program trains', sys.stderr)
    tower = self.towers[0]
    left_out = find_left_out(tower.sums.values(), tower.update_ops, self._variables)
    weights = {variable.op.name for variable in tower.variables}
    for names in (weights.intersection(left_out), set(left_out) - weights):
      if names:
        write_line(
            'WARNING: no step runs what the model assigns to '
            f'{shorten(sorted(names, key=left_out.index))}: put updates into UPDATE_OPS, or run '
            f'them by session.run where you mean to; but {own} trains, and average_weights=0.999 '
            'averages', sys.stderr)

  def _build_feed(self, examples: Examples, devices: Sequence[str], batch_size: int, *,
                  shuffle: bool = False, **planned: Any) -> Feed:
    workers = self.workers
    plan = build_plan(
        num_examples=examples.num_examples, batch_size=batch_size, num_towers=len(devices),
        num_workers=workers.num_workers, rank=workers.rank, name=examples.name, **planned)
    inputs = build_inputs(
        examples, plan=plan, mode=self.given.input_mode, shuffle=shuffle, seed=self.given.seed,
        parallel_calls=self.given.input_threads)
    # What is given to a call waits nowhere.
    depth = 0 if self.train_examples.num_examples == BY_HAND else self.given.staging_depth
    return build_feed(inputs, devices=devices, staging_depth=depth)

  def _build_batches(self, validation_feed):
    """Returns the towers' batches, whether they train, and the switch or None without."""
    if not validation_feed or self.given.validation_tower:
      if validation_feed:
        check_alike(self.feed, validation_feed)
      return build_batches(self.feed), True, None
    with tf.device(HOST):  # Kernels of GPUs take predicates from there.
      is_validating = tf.placeholder_with_default(False, [], 'is_validating')
      is_training = tf.logical_not(is_validating)
    batches = build_switched_batches(self.feed, validation_feed, is_validating=is_validating)
    return batches, is_training, is_validating

  def _build_gradients(self):
    given = self.given
    # NCCL refuses two ranks on one GPU.
    shares_gpu = bool(self.devices.memory.num_logical) and given.collective == 'auto'
    mean = average_gradients(
        self.towers, workers=self.workers, collective='ring' if shares_gpu else given.collective,
        fusion_bytes=int(given.fusion_megabytes * 1e6), wire=given.wire)
    if self.precision is not None:
      mean = unscale_gradients(mean, self.precision.loss_scale)
    self._unclipped, self.gradient_norm = mean, None
    self.gradients = clip_gradients(mean, given.clip_norm) if given.clip_norm else mean

  def _build_update(self):
    """Builds the update of all weights, and what it says of its input."""
    given = self.given
    self._groups = build_groups(
        given.optimizer, choose_rate(given.optimizer, given.learning_rate, self.plan),
        [variable.op.name for variable in tf.trainable_variables()],
        rate_factors=given.rate_factors, weight_decay=given.weight_decay)
    self.learning_rates = name_rates(self._groups)
    self.learning_rate = next(iter(self.learning_rates.values()), float('nan'))
    self.averages = None
    if given.average_weights is not None:
      self.averages = build_averages(given.average_weights)
    self.train_op = build_train_op(
        self.gradients, optimizer=self._groups, weight_decay=given.weight_decay,
        is_compiled=compiles(self.devices.kind, given.precision), averages=self.averages,
        seed=given.seed)
    self.input_wait = build_input_wait(self.feed, self.batches, after=self.train_op)
    add_op = self.gradients.add_op
    self.add_wait = None
    if add_op is not None:
      self.add_wait = build_input_wait(self.feed, self.batches, after=add_op)

  def _build_validation(self, feed, is_validating, store):
    """Returns the validation by a tower of its own, or by all towers where there is a switch."""
    if is_validating is None:
      return build_validation_tower(
          self.model, feed, index=len(self.towers), store=store, precision=self.precision,
          workers=self.workers, averages=self.averages, accumulate=self.plan.accumulate)
    towers = build_measuring_towers(
        self.model, self.towers, store=store, precision=self.precision, workers=self.workers
    ) if tf.get_collection(ASKED_IN_PYTHON) else self.towers
    return build_validation(towers, feed=feed, is_validating=is_validating, workers=self.workers)

  def build_again(self, accumulate: int) -> 'TrainingGraph':
    """Returns the program in so many micro-batches: this one, or another in its own graph."""
    if accumulate == self.plan.accumulate:
      return self
    with tf.Graph().as_default():
      return TrainingGraph(self.model, self.train_examples, self.validation_examples,
                           dataclasses.replace(self.given, accumulate=accumulate), self.workers)

  def format_variables(self) -> str:
    """Returns a table of the model's variables: name, shape, dtype and learning rate of each."""
    return format_variables(self._variables, {
        name: group.text for group in self._groups for name in group.names})

  def __repr__(self) -> str:
    num_values = sum(variable.shape.num_elements() or 0 for variable in self._variables)
    return (f"<towers.{type(self).__name__} of {name_model(self.model)}: {len(self.towers)} towers "
            f"on {self.devices.kind}, batch_size={self.plan.batch_size}, "
            f"{self.plan.num_examples:,} examples, {len(self._variables)} variables of "
            f"{num_values:,} values>")

  @property
  def settings(self) -> Dict[str, Any]:
    """The settings by name, for people; of model and optimizer their names."""
    return dict(self.given.describe(), model=name_model(self.model))

  def build_gradient_norm(self) -> None:
    """Builds `gradient_norm`, for a run that shows it; a session that has begun pauses for it."""
    if self.gradient_norm is None:
      with self.graph.as_default():
        self.gradient_norm = build_gradient_norm(self._unclipped)

  @property
  def summaries(self) -> List[Tensor]:
    """What is made by `tf.summary`, of towers in the first: scalar strings, to fetch with a step.

    What needs a placeholder is left to a run that feeds it.
    """
    fed = find_dependents([op for op in self.graph.get_operations() if op.type == 'Placeholder'])
    with self.graph.as_default():
      return [tag for tag in tf.get_collection(tf.GraphKeys.SUMMARIES)
              if tag.op not in fed and self.graph.is_fetchable(tag)]

  @property
  def needs_threads(self) -> bool:
    """Whether the input of any split does, see `towers.Inputs`, or is not staged.

    The towers' ops follow an input that is not staged in its own thread, and the time at which it
    came would be read too late.
    """
    return any(feed.inputs.needs_threads or feed.stage is None for feed in self.feeds)

  @property
  def feeds(self) -> List[Feed]:
    """Those of both splits, or of training alone."""
    return [self.feed] + ([self.validation.feed] if self.validation else [])


def name_model(model: Model) -> str:
  """Returns what a model is called."""
  return getattr(model, '__name__', type(model).__name__)
