"""Build: a config's program."""

import dataclasses
import inspect
from typing import Sequence, Tuple

import towers
from tensorflow_v1 import tf
from towers.data import DataSet
from towers.input.plan import Plan
from towers.placement.workers import ALONE, Workers
from towers.program import Program, Rate, build_program
from towers.tower.tower import Model
from towers.training.settings.config import Config
from towers.training.settings.learning_rate import build_learning_rate
from towers.training.settings.optimizer import build_optimizer

_SETTINGS = set(inspect.signature(build_program).parameters) & {
    field.name for field in dataclasses.fields(Config)} - {'model', 'optimizer'}


def build_configured(config: Config, model: Model, data_set: DataSet, devices: Sequence[str],
                     workers: Workers = ALONE) -> Program:
  """Returns the program that a config describes, see `towers.program.build_program`."""

  def optimizer(plan: Plan) -> Tuple[tf.train.Optimizer, Rate]:
    total_examples = plan.examples_before(config.count_steps(plan.steps_per_epoch))
    learning_rate = build_learning_rate(
        config.peak_learning_rate(), schedule=config.schedule,
        examples_seen=towers.get_examples_seen(), examples_per_epoch=plan.examples_per_epoch,
        total_examples=total_examples, warmup_epochs=config.warmup_epochs,
        decay_epochs=config.decay_epochs, decay_rate=config.decay_rate,
        can_fall=config.on_nan == 'rollback')
    return (build_optimizer(config.optimizer, learning_rate, momentum=config.momentum),
            learning_rate)

  return build_program(
      model, data_set, devices=devices, optimizer=optimizer, workers=workers,
      shows_gradient_norm=config.keeps_curves,
      **{name: getattr(config, name) for name in _SETTINGS})
