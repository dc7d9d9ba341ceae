"""Towers: explicit multi-GPU training for graph-mode TensorFlow.

Data runs through a program in one straight line, and these functions stand in its order:

  data ──► build_inputs ──► build_feed ──► build_batches ──► build_towers
       ──► average_gradients ──► build_train_op

A name's module is imported when the name is first used, so `import towers` itself loads no
TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
  from towers.base.usage_error import UsageError
  from towers.checks.inputs import check_inputs
  from towers.checks.towers import CheckReport, check
  from towers.data.arrays import from_arrays
  from towers.data.datasets import from_dataset
  from towers.data.examples import DataSet, Examples
  from towers.data.folders.tfds_folder import from_tfds
  from towers.data.padding import padded
  from towers.data.records import from_tfrecords
  from towers.input.batch import Batch
  from towers.input.feed import Feed, build_batches, build_feed, build_switched_batches
  from towers.input.pipeline import Inputs, build_inputs
  from towers.input.plan import Plan, build_plan
  from towers.input.wait import build_input_wait
  from towers.placement.collectives import AllReduce
  from towers.placement.counters import get_examples_seen, get_global_step
  from towers.placement.devices import Devices, build_devices, build_session_config
  from towers.placement.replicas import Replicas, build_replicas
  from towers.placement.variables import VariableStore, build_variable_store, format_device_table
  from towers.placement.workers import Workers
  from towers.program import Program
  from towers.reduce.all_reduce import Votes
  from towers.reduce.average import average_gradients
  from towers.reduce.broadcast import Broadcast, build_broadcast
  from towers.reduce.gradients import (
    ReducedGradients,
    build_gradient_norm,
    clip_gradients,
    unscale_gradients,
  )
  from towers.script import main
  from towers.session import Session
  from towers.tower.losses import Weighted
  from towers.tower.precision import LossScale, Precision, build_precision
  from towers.tower.tower import Model, Tower, build_towers
  from towers.training.faults.run_error import OutOfMemory, RunError
  from towers.training.reporting.progress import Callback
  from towers.training.tools.export import export
  from towers.training.train import train
  from towers.update.apply import build_train_op
  from towers.update.guard import Diagnosis, build_diagnosis
  from towers.validation import Validation, build_validation, build_validation_tower
  from towers.warm_start.matching import InitFrom, init_from

__version__ = '0.1.0'

_MODULES = {
    'AllReduce': 'towers.placement.collectives',
    'Batch': 'towers.input.batch',
    'Broadcast': 'towers.reduce.broadcast',
    'Callback': 'towers.training.reporting.progress',
    'CheckReport': 'towers.checks.towers',
    'DataSet': 'towers.data.examples',
    'Devices': 'towers.placement.devices',
    'Diagnosis': 'towers.update.guard',
    'Examples': 'towers.data.examples',
    'Feed': 'towers.input.feed',
    'InitFrom': 'towers.warm_start.matching',
    'Inputs': 'towers.input.pipeline',
    'LossScale': 'towers.tower.precision',
    'Model': 'towers.tower.tower',
    'OutOfMemory': 'towers.training.faults.run_error',
    'Plan': 'towers.input.plan',
    'Precision': 'towers.tower.precision',
    'Program': 'towers.program',
    'ReducedGradients': 'towers.reduce.gradients',
    'Replicas': 'towers.placement.replicas',
    'RunError': 'towers.training.faults.run_error',
    'Session': 'towers.session',
    'Tower': 'towers.tower.tower',
    'UsageError': 'towers.base.usage_error',
    'Validation': 'towers.validation',
    'VariableStore': 'towers.placement.variables',
    'Votes': 'towers.reduce.all_reduce',
    'Weighted': 'towers.tower.losses',
    'Workers': 'towers.placement.workers',
    'average_gradients': 'towers.reduce.average',
    'build_batches': 'towers.input.feed',
    'build_broadcast': 'towers.reduce.broadcast',
    'build_devices': 'towers.placement.devices',
    'build_diagnosis': 'towers.update.guard',
    'build_feed': 'towers.input.feed',
    'build_gradient_norm': 'towers.reduce.gradients',
    'build_input_wait': 'towers.input.wait',
    'build_inputs': 'towers.input.pipeline',
    'build_plan': 'towers.input.plan',
    'build_precision': 'towers.tower.precision',
    'build_replicas': 'towers.placement.replicas',
    'build_session_config': 'towers.placement.devices',
    'build_switched_batches': 'towers.input.feed',
    'build_towers': 'towers.tower.tower',
    'build_train_op': 'towers.update.apply',
    'build_validation': 'towers.validation',
    'build_validation_tower': 'towers.validation',
    'build_variable_store': 'towers.placement.variables',
    'check': 'towers.checks.towers',
    'check_inputs': 'towers.checks.inputs',
    'clip_gradients': 'towers.reduce.gradients',
    'export': 'towers.training.tools.export',
    'format_device_table': 'towers.placement.variables',
    'from_arrays': 'towers.data.arrays',
    'from_dataset': 'towers.data.datasets',
    'from_tfds': 'towers.data.folders.tfds_folder',
    'from_tfrecords': 'towers.data.records',
    'get_examples_seen': 'towers.placement.counters',
    'get_global_step': 'towers.placement.counters',
    'init_from': 'towers.warm_start.matching',
    'main': 'towers.script',
    'padded': 'towers.data.padding',
    'train': 'towers.training.train',
    'unscale_gradients': 'towers.reduce.gradients',
}
__all__ = [
    'AllReduce',
    'Batch',
    'Broadcast',
    'Callback',
    'CheckReport',
    'DataSet',
    'Devices',
    'Diagnosis',
    'Examples',
    'Feed',
    'InitFrom',
    'Inputs',
    'LossScale',
    'Model',
    'OutOfMemory',
    'Plan',
    'Precision',
    'Program',
    'ReducedGradients',
    'Replicas',
    'RunError',
    'Session',
    'Tower',
    'UsageError',
    'Validation',
    'VariableStore',
    'Votes',
    'Weighted',
    'Workers',
    'average_gradients',
    'build_batches',
    'build_broadcast',
    'build_devices',
    'build_diagnosis',
    'build_feed',
    'build_gradient_norm',
    'build_input_wait',
    'build_inputs',
    'build_plan',
    'build_precision',
    'build_replicas',
    'build_session_config',
    'build_switched_batches',
    'build_towers',
    'build_train_op',
    'build_validation',
    'build_validation_tower',
    'build_variable_store',
    'check',
    'check_inputs',
    'clip_gradients',
    'export',
    'format_device_table',
    'from_arrays',
    'from_dataset',
    'from_tfds',
    'from_tfrecords',
    'get_examples_seen',
    'get_global_step',
    'init_from',
    'main',
    'padded',
    'train',
    'unscale_gradients',
]


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  value = getattr(importlib.import_module(_MODULES[name]), name)
  globals()[name] = value
  return value


def __dir__() -> List[str]:
  return sorted({*globals(), *_MODULES})
