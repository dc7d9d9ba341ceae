"""Defaults by device: what a program chooses where nobody has, and that it says so."""

import os
import subprocess
import sys

import pytest

import towers
from tests import ROOT
from tests.harness import small
from towers.placement import devices
from towers.placement.devices import build_session_config
from towers.tensorflow_v1 import load, tf
from towers.tensorflow_v1.devices import uses_persistent_batch_norm
from towers.training.reporting.describe import describe_run

SETTINGS = dict(batch_size=8, optimizer=tf.train.GradientDescentOptimizer(0.1))


def build(num_gpus, **settings):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(devices, 'count_gpus', lambda: num_gpus)
    return towers.Program(small.model, train=small.random_examples(16), **SETTINGS, **settings)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize('num_gpus, settings, kind, told', [
    (1, {}, 'first', 'variables: first, the only GPU'),
    (4, {}, 'replicated', 'variables: replicated, so that each GPU has its own'),
    (1, dict(logical_gpus=2, gpu_memory='1000'), 'replicated', '(ring'),
    (2, dict(validation_tower=True, validation=small.random_examples(4, 'validation')), 'first',
     'variables: first, the only GPU'),
    (4, dict(variables='balanced'), 'balanced', 'variables: balanced, as asked for'),
    (0, dict(num_towers=3), 'host', 'variables: host, whose memory CPU devices share')])
def test_variables_live_where_the_towers_stand(num_gpus, settings, kind, told, monkeypatch):
  monkeypatch.setattr('towers.tensorflow_v1.devices.set_gpu_memory', lambda **_: None)
  with tf.Graph().as_default():
    program = build(num_gpus, **settings)
    assert program.settings['variables'] == kind
    assert bool(program.replicas) == (kind == 'replicated')
    assert told in describe_run(program)


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('num_gpus, precision, flags, compiles', [
    (1, 'mixed', None, True), (1, 'float32', None, False), (0, 'mixed', None, False),
    (1, 'mixed', '--tf_xla_auto_jit=-1', False), (1, 'mixed', '--tf_xla_min_cluster_size=2', True)])
def test_xla_compiles_mixed_precision_on_gpus(num_gpus, precision, flags, compiles, monkeypatch):
  monkeypatch.delenv('TF_XLA_FLAGS', raising=False)
  if flags:
    monkeypatch.setenv('TF_XLA_FLAGS', flags)
  with tf.Graph().as_default():
    program = build(num_gpus, precision=precision)
    config = build_session_config(program.devices, precision=precision)
    assert (config.graph_options.optimizer_options.global_jit_level ==
            tf.OptimizerOptions.ON_2) == compiles
    assert ('compiled by XLA' in describe_run(program)) == compiles


NAME = 'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT'


@pytest.mark.nightly(but='None-use_deterministic_kernels()-0')
@pytest.mark.parametrize('given, call, expected', [
    (None, '', '1'), ('0', '', '0'), (None, 'use_deterministic_kernels()', '0'),
    ('1', 'use_deterministic_kernels()', '1')])
def test_batches_are_normalised_by_the_fast_kernels_unless_bits_must_repeat(given, call, expected):
  environ = {name: value for name, value in os.environ.items() if name != NAME}
  done = subprocess.run(
      [sys.executable, '-c', f'''
import os
from towers.tensorflow_v1.devices import use_deterministic_kernels, uses_persistent_batch_norm
{call}
print(os.environ[{NAME!r}], uses_persistent_batch_norm())
'''], cwd=ROOT, env=dict(environ, **{NAME: given} if given else {}), capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == [expected, str(expected == '1')]


@pytest.mark.skipif(not load.CHOOSES_BATCH_NORM, reason='the environment has chosen')
def test_batches_are_normalised_by_the_fast_kernels_by_default():
  assert uses_persistent_batch_norm()
