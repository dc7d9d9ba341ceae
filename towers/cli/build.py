"""Build: a config's program."""

from typing import Dict, Optional

from towers.base.usage_error import UsageError
from towers.data import DataSet
from towers.optimizers.optimizer import DECAYING, build_optimizer
from towers.placement.counters import get_examples_seen
from towers.placement.patterns import parse_pairs
from towers.placement.workers import Workers
from towers.program import Program
from towers.settings.config import Config
from towers.settings.table import arguments_of
from towers.tower.model_call import Model
from towers.update.learning_rate import build_learning_rate
from towers.warm_start.matching import init_from


def _parse_factors(text: Optional[str]) -> Dict[str, float]:
  pairs = parse_pairs('rate_factors', text, like='encoder/=0.1')
  try:
    return {pattern: float(factor) for pattern, factor in pairs.items()}
  except ValueError as error:
    raise UsageError(f'rate_factors={text}: {error}. Give numbers, as encoder/=0.1.') from None


def build_configured(config: Config, model: Model, data_set: DataSet,
                     workers: Optional[Workers] = None) -> Program:
  """Returns the program that a config describes; the `workers` that TF_CONFIG says if None."""
  settings = {name: getattr(config, name) for name in arguments_of('program')}
  if config.optimizer in DECAYING:
    settings['weight_decay'] = 0.0
  started = None
  if config.init_from is not None:
    names = parse_pairs('init_map', config.init_map, like='resnet/=model/')
    started = init_from(config.init_from, names=names, reinit=config.reinit or ())
  return Program(
      model, train=data_set.train,
      validation=None if config.validation == 'none' else data_set.validation,
      learning_rate=lambda plan: build_learning_rate(config, plan, get_examples_seen()),
      optimizer=lambda rate: build_optimizer(config, rate), frozen=config.frozen or (),
      rate_factors=_parse_factors(config.rate_factors), init_from=started,
      workers=workers, **settings)
