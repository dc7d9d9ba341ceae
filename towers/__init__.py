"""Towers: explicit multi-GPU training for graph-mode TensorFlow.

Data runs through a program in one straight line, and these functions stand in its order:

  data ──► build_inputs ──► build_feed ──► build_batches ──► build_towers ──► average_gradients ──► build_train_op
"""

from data.examples import Examples
from towers.apply import build_train_op, get_examples_seen, get_global_step
from towers.average import average_gradients
from towers.batch import Batch
from towers.check import Report, check
from towers.collectives import Exchange
from towers.devices import Devices, build_devices, build_session_config
from towers.exchange import Agreement
from towers.feed import Feed, build_batches, build_feed, build_switched_batches
from towers.gradients import Averaged, build_gradient_norm, clip_gradients, unscale_gradients
from towers.guard import Diagnosis, build_diagnosis
from towers.input_check import check_inputs
from towers.input_wait import build_input_wait
from towers.inputs import Inputs, build_inputs
from towers.plan import Plan, build_plan
from towers.precision import LossScale, Precision, build_precision
from towers.replicas import Copies, build_copies
from towers.tower import Model, Tower, build_towers
from towers.validation import Validation, build_validation, build_validation_tower
from towers.variables import VariableStore, build_variable_store, format_device_table
from towers.workers import Spread, Workers, build_spread
from usage_error import UsageError

__all__ = [
    'Agreement', 'Averaged', 'Batch', 'Copies', 'Devices', 'Diagnosis', 'Examples', 'Exchange', 'Feed', 'Inputs',
    'LossScale', 'Model', 'Plan', 'Precision', 'Report', 'Spread', 'Tower', 'UsageError', 'Validation',
    'VariableStore', 'Workers', 'average_gradients', 'build_batches', 'build_copies', 'build_devices',
    'build_diagnosis', 'build_feed', 'build_gradient_norm', 'build_input_wait', 'build_inputs', 'build_plan',
    'build_precision', 'build_session_config', 'build_spread', 'build_switched_batches', 'build_towers',
    'build_train_op', 'build_validation', 'build_validation_tower', 'build_variable_store', 'check',
    'check_inputs', 'clip_gradients', 'format_device_table', 'get_examples_seen', 'get_global_step',
    'unscale_gradients',
]
