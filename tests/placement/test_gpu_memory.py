"""Memory of GPUs: what a session and, on 2.x, eager mode before it ask TensorFlow for."""

import types

import pytest

import towers
from towers.base.usage_error import UsageError
from towers.cli.command_line import main
from towers.placement import devices
from towers.placement.collectives import choose_collective
from towers.placement.devices import build_session_config
from towers.placement.gpu_memory import GpuMemory
from towers.settings.config import Config
from towers.tensorflow_v1 import tf


@pytest.fixture
def asked(monkeypatch):
  """Lets TensorFlow see two GPUs; returns what eager mode is asked for."""
  calls = []
  monkeypatch.setattr(devices, 'count_gpus', lambda: 2)
  monkeypatch.setattr(devices.native, 'set_gpu_memory', lambda **asked: calls.append(asked))
  return calls


def build_config(made, **settings):
  with tf.Graph().as_default():
    return build_session_config(made, **settings)


@pytest.mark.parametrize('text, expected', [
    (None, GpuMemory()), ('growth', GpuMemory(growth=True)), ('0.4', GpuMemory(fraction=0.4)),
    ('1', GpuMemory(fraction=1.0)), ('9000', GpuMemory(megabytes=9000))])
def test_each_text_sets_one_option(asked, text, expected):
  made = devices.build_devices(2, 'gpu', gpu_memory=text)
  assert made.memory == expected
  assert asked == [dict(growth=expected.growth, fraction=expected.fraction,
                        limits=[9000] if text == '9000' else [])]
  options = build_config(made).gpu_options
  assert options.allow_growth == (text == 'growth')
  assert options.per_process_gpu_memory_fraction == (expected.fraction or 0)
  # Batches wait in memory from which a GPU copies at once.
  assert options.force_gpu_compatible


def test_logical_gpus_are_towers_on_one_gpu_with_a_ring(asked):
  made = devices.build_devices(None, 'auto', logical_gpus=8, gpu_memory='9000')
  assert made.kind == 'GPU' and made.names == [f'/device:GPU:{index}' for index in range(8)]
  assert asked[0]['limits'] == [9000] * 8
  config = build_config(made)
  [virtual] = config.gpu_options.experimental.virtual_devices
  assert list(virtual.memory_limit_mb) == [9000] * 8
  assert config.gpu_options.visible_device_list == '0'
  assert not config.experimental.collective_nccl
  assert build_config(devices.build_devices(2, 'gpu')).experimental.collective_nccl
  assert choose_collective('auto', made.names) == 'nccl'
  with pytest.raises(UsageError, match='num_towers=9.*8'):
    devices.build_devices(9, 'gpu', logical_gpus=8, gpu_memory='9000')


@pytest.mark.nightly(but='nccl')
@pytest.mark.parametrize('collective', ['auto', 'ring', 'nccl'])
def test_a_program_on_logical_gpus_sums_by_a_ring(asked, collective):
  from tests.harness import small
  with tf.Graph().as_default() as graph:
    settings = dict(
        train=small.random_examples(8), batch_size=4, variables='replicated', num_towers=2,
        logical_gpus=2, gpu_memory='500', collective=collective,
        optimizer=tf.train.MomentumOptimizer(0.1, 0.9))
    if collective == 'nccl':
      with pytest.raises(UsageError, match='nccl.*logical_gpus=2.*collective=ring'):
        towers.Program(small.model, **settings)
      return
    program = towers.Program(small.model, **settings)
    assert program.gradients.all_reduce.kind == 'ring'
    assert any(op.type == 'CollectiveReduce' for op in graph.get_operations())


def test_logical_gpus_without_a_gpu_are_refused(monkeypatch, capsys):
  monkeypatch.setattr(devices, 'count_gpus', lambda: 0)
  assert main(['main.py', '--logical_gpus=8', '--gpu_memory=900']) == 2
  assert 'logical_gpus=8 divides a GPU' in capsys.readouterr().err
  for wrong, message in (
      (dict(logical_gpus=8), 'needs the megabytes of each.*gpu_memory=9000'),
      (dict(logical_gpus=8, gpu_memory='0.1'), 'logical_gpus=8 needs.*0.1'),
      (dict(logical_gpus=0, gpu_memory='9'), 'at least 1'),
      (dict(gpu_memory='much'), "gpu_memory=much.*'growth'"),
      (dict(gpu_memory='-1'), 'gpu_memory=-1'), (dict(gpu_memory='nan'), 'gpu_memory=nan')):
    with pytest.raises(UsageError, match=message):
      devices.build_devices(None, **wrong)


def test_memory_that_is_taken_otherwise_is_refused(monkeypatch):
  def fail(**_):
    raise RuntimeError('Virtual devices cannot be modified after being initialized')

  monkeypatch.setattr(devices, 'count_gpus', lambda: 1)
  monkeypatch.setattr(devices.native, 'set_gpu_memory', fail)
  with pytest.raises(UsageError, match='too late.*cannot be modified.*process of its own'):
    devices.build_devices(1, 'gpu', gpu_memory='growth')


@pytest.mark.skipif(tf.__version__ < '2', reason='1.14 has only the memory of sessions')
@pytest.mark.parametrize('asked_for, expected', [
    (dict(), []), (dict(growth=True), [('a', True), ('b', True)]),
    (dict(limits=[7, 7]), [(['a'], 'GPU'), ('a', [7, 7])]), (dict(fraction=0.25), [0.25])])
def test_eager_mode_is_asked_before_it_makes_its_devices(asked_for, expected, monkeypatch):
  from tensorflow.python.eager import context
  calls, public = [], tf.config.experimental
  eager = types.SimpleNamespace(_initialized=False, _config=None)
  monkeypatch.setattr(context, 'context', lambda: eager)
  monkeypatch.setattr(public, 'list_physical_devices', lambda kind: ['a', 'b'])
  monkeypatch.setattr(public, 'set_visible_devices', lambda *given: calls.append(given))
  monkeypatch.setattr(public, 'set_memory_growth', lambda *given: calls.append(given))
  monkeypatch.setattr(public, 'set_virtual_device_configuration', lambda gpu, limits: calls.append(
      (gpu, [limit.memory_limit for limit in limits])))
  devices.native.set_gpu_memory(**{**dict(growth=False, fraction=None, limits=[]), **asked_for})
  if eager._config:
    calls.append(eager._config.gpu_options.per_process_gpu_memory_fraction)
  assert calls == expected


@pytest.mark.parametrize('tf32', ['on', 'off'])
def test_tf32_is_what_the_flag_says(tf32, monkeypatch):
  from towers.cli import jobs
  allowed = []
  monkeypatch.setattr(jobs, 'use_tf32', allowed.append)
  jobs._build_devices(Config(tf32=tf32, device='cpu'))
  assert allowed == [tf32 == 'on']
