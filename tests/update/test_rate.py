"""The rate: a tensor costs a start no more than a number."""

import functools
import itertools

import pytest

import models
from towers import data
from towers.cli.jobs import build_configured
from towers.settings.config import Config
from towers.tensorflow_v1 import tf

OPTIMIZERS = ('sgd', 'momentum', 'nesterov', 'rmsprop', 'adam', 'adamw', 'lars', 'lamb')
SCHEDULES = [dict(schedule='cosine'), dict(schedule='piecewise', decay_epochs=(1.0, 2.0)),
             dict(schedule='exponential', decay_epochs=(1.0,)),
             dict(schedule='constant', warmup_epochs=1.0)]


def list_ops(**settings):
  """Returns the names of all ops of a program of two towers."""
  data_set = data.load_synthetic(image_shape=(4, 4, 1), num_train=16, num_validation=8)
  with tf.Graph().as_default() as graph:
    build_configured(Config(model='linear', batch_size=8, num_towers=2, device='cpu', **settings),
                     models.build_classifier('linear', num_classes=10), data_set)
    return {op.name for op in graph.get_operations()}


@functools.lru_cache(maxsize=None)
def list_ops_of_constant(optimizer):
  return list_ops(optimizer=optimizer, schedule='constant')


@pytest.mark.nightly(but='momentum-schedule4')
@pytest.mark.parametrize('optimizer, schedule', itertools.product(OPTIMIZERS, SCHEDULES))
def test_a_schedule_adds_only_its_own_ops_none_for_a_variable_or_a_tower(optimizer, schedule):
  names = list_ops(optimizer=optimizer, **schedule)
  added = names - list_ops_of_constant(optimizer)
  assert 1 <= len(added) <= 25
  assert all(name.startswith('learning_rate/') for name in added)
