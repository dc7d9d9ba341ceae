"""XLA: on compiles, off does not, and what is computed is the same."""

import os

import pytest

from tests.harness.processes import output_of
from tests.test_main import result_here, run_with_result
from towers.placement.xla import set_xla
from towers.tensorflow_v1 import tf

# The ops that TensorFlow runs in the end, of a small graph that is worth compiling.
COUNT_COMPILED = '''
import os
from towers.placement.xla import set_xla
set_xla(%r, os.environ)
from towers.tensorflow_v1 import tf
from towers.placement.devices import build_devices, build_session_config
x = tf.placeholder(tf.float32, [8, 8])
y = x
for _ in range(10):
  y = tf.tanh(y * 1.01 + 0.1) * 0.9 + tf.sigmoid(y)
metadata = tf.RunMetadata()
with tf.Session(config=build_session_config(build_devices(2, 'cpu'))) as session:
  session.run(y, {x: [[0.5] * 8] * 8}, tf.RunOptions(output_partition_graphs=True), metadata)
print(sum('Xla' in node.op for graph in metadata.partition_graphs for node in graph.node))
'''


@pytest.mark.parametrize('kind, given, expected', [
    ('auto', None, None),
    ('off', None, '--tf_xla_clustering_fuel=0 --tf_xla_auto_jit=-1'),
    ('on', None, '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit'),
    ('on', '--tf_xla_min_cluster_size=2', '--tf_xla_min_cluster_size=2 --tf_xla_auto_jit=2 '
                                          '--tf_xla_cpu_global_jit'),
    ('off', '--tf_xla_cpu_global_jit', '--tf_xla_cpu_global_jit --tf_xla_auto_jit=-1'),
    # What the user set wins.
    ('auto', '--tf_xla_auto_jit=2', '--tf_xla_auto_jit=2'),
    ('on', '--tf_xla_auto_jit=1', '--tf_xla_auto_jit=1'),
    ('off', '--tf_xla_auto_jit=1', '--tf_xla_auto_jit=1')])
def test_the_environment_says_what_was_asked_for(kind, given, expected):
  environ = {} if given is None else {'TF_XLA_FLAGS': given}
  set_xla(kind, environ)
  assert environ.get('TF_XLA_FLAGS') == expected


@pytest.mark.nightly
@pytest.mark.parametrize('kind, compiles', [('on', True), ('off', False), ('auto', False)])
def test_on_compiles_and_off_does_not(kind, compiles):
  environ = {name: value for name, value in os.environ.items() if name != 'TF_XLA_FLAGS'}
  assert (int(output_of('-c', COUNT_COMPILED % kind, env=environ)) > 0) == compiles


# A run with batch normalisation, and how much is compiled by the end of each epoch.
COUNT_COMPILATIONS = '''
import os, sys
os.environ['TF_XLA_FLAGS'] = '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit'
import numpy as np
import towers
from towers.tensorflow_v1 import compiled_cache, tf
from tests.harness import small
from towers.tower.batch_norm.layer import batch_norm

def model(batch, is_training):
  features, labels = batch
  x = tf.reshape(features, [-1, 5, 1, 1] if layers == 'conv' else [-1, 5])
  for name in ('first', 'second'):
    if layers == 'conv':
      x = tf.nn.conv2d(x, tf.get_variable(name, [3, 3, x.shape[-1], 8]), 1, 'SAME')
    else:
      x @= tf.get_variable(name, [x.shape[-1], 8])
    x = tf.nn.relu(batch_norm(x, is_training, name=name))
  return small.model((tf.reduce_mean(x, [1, 2]) if layers == 'conv' else x, labels), is_training)

counts = []

class Count(towers.Callback):
  def on_step(self, run):
    counts.append(compiled_cache.count_compiled())

num_towers, mode, layers, validates = int(sys.argv[1]), *sys.argv[2:4], sys.argv[4] == 'switch'
program = towers.Program(
    model, train=small.random_examples(53), batch_size=8, num_towers=num_towers, device='cpu',
    validation=small.random_examples(21, 'validation') if validates else None, input_mode=mode,
    optimizer=tf.train.MomentumOptimizer(0.1, 0.9), last_batch='carry', seed=1)
result = towers.train(program, epochs=3, callbacks=[Count()], quiet=True)
print('counts', *counts[7:], result['xla_compilations'])
'''


def count_compilations(cache, *arguments):
  """Returns what is compiled after each step from the second epoch on, and by the end."""
  environ = dict(os.environ, XDG_CACHE_HOME=str(cache))
  stdout = output_of('-c', COUNT_COMPILATIONS, *arguments, env=environ, timeout=200)
  last = stdout.strip().splitlines()[-1].split()
  return list(map(int, last[1:]))


COUNTS = pytest.mark.skipif(tf.__version__.startswith('1.'),
                            reason='1.14 does not count what it compiles')
each_shape = pytest.mark.parametrize('shape', [
    ('1', 'split', 'conv'), ('2', 'shard', 'conv'), ('2', 'next', 'conv'), ('1', 'split', 'dense')],
    ids='-'.join)


@COUNTS
@pytest.mark.nightly(but='1-split-dense')
@each_shape
def test_nothing_is_compiled_after_the_first_epoch(shape, tmp_path):
  counts = count_compilations(tmp_path, *shape, 'switch')
  assert len(set(counts)) == 1 and counts[0] > 0


@COUNTS
@pytest.mark.nightly
@each_shape
def test_validation_at_most_doubles_what_is_compiled_and_a_cache_is_used_unless_damaged(
    shape, tmp_path):
  def count(kind):
    return count_compilations(tmp_path / kind, *shape, kind)[-1]

  cold = count('none')
  assert 0 < cold <= count('switch') <= 2 * cold
  # Warm: nothing, once the cache has both ways in which XLA joins the ops of this one graph.
  assert any(count('none') == 0 for _ in range(3))
  written = {path: path.stat().st_mtime_ns for path in (tmp_path / 'none').rglob('*.pb')}
  program = max(written)
  damaged = program.read_bytes()[:-9]
  program.write_bytes(damaged)
  # Nothing else is compiled again, and nothing is loaded that is damaged.
  count('none')
  assert {path for path, time in written.items()
          if not path.exists() or path.stat().st_mtime_ns != time} == {program}
  assert not program.exists() or program.read_bytes() != damaged


# Programs before the first step, and of a step: CPUs count as GPUs, and keep MatMul as these do.
COUNT_PROGRAMS = '''
import os
os.environ['TF_XLA_FLAGS'] = '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit'
import towers.placement.host
towers.placement.host.is_gpu = lambda device: True
from towers.tensorflow_v1 import compiled_cache, tf
import towers
from tests.harness import small
from towers.tower.batch_norm import layer
layer.compiles = lambda kind, precision: True

def model(batch, is_training):
  kernel = tf.get_variable('kernel', [3, 3, 1, 8])
  x = tf.nn.conv2d(tf.reshape(batch[0], [-1, 5, 1, 1]), kernel, 1, 'SAME')
  x = tf.nn.relu(layer.batch_norm(x, is_training, name='norm'))
  return small.model((tf.reduce_mean(x, [1, 2]), batch[1]), is_training)

def build(num_towers):
  return towers.Program(
      model, train=small.random_examples(53), batch_size=8, num_towers=num_towers, device='cpu',
      optimizer=tf.train.MomentumOptimizer(0.1, 0.9), last_batch='carry')

with tf.Graph().as_default(), build(2).session():
  print('before', compiled_cache.count_compiled())
config, metadata = tf.ConfigProto(), tf.RunMetadata()
config.graph_options.rewrite_options.remapping = 2
program = build(1)
with program.graph.as_default(), tf.Session(config=config) as session:
  session.run(tf.global_variables_initializer())
  program.feed.start(session)
  session.run([program.train_op, program.gradients.metrics], None,
              tf.RunOptions(output_partition_graphs=True), metadata)
print('of a step', sum(
    node.op == '_XlaRun' for graph in metadata.partition_graphs for node in graph.node))
'''


@pytest.mark.nightly
def test_a_step_on_a_gpu_is_one_program_and_nothing_is_compiled_before(tmp_path):
  lines = output_of('-c', COUNT_PROGRAMS, env=dict(os.environ, XDG_CACHE_HOME=str(tmp_path)))
  assert lines.splitlines()[-1] == 'of a step 1'
  assert tf.__version__.startswith('1.') or 'before 0\n' in lines


LINEAR = ['--model=linear', '--batch_size=100', '--steps=20']


@pytest.mark.nightly
@pytest.mark.parametrize('flags', [
    [*LINEAR, '--num_gpus=1'], [*LINEAR, '--num_gpus=2'],
    # A run ends when a copy differs, or when the constants of a tower's dropout land elsewhere.
    ['--model=lenet', '--num_gpus=2', '--steps=3', '--validation=none', '--last_batch=drop',
     '--variables=replicated', '--clip_norm=1', '--weight_decay=0.01']], ids=' '.join)
def test_compiled_towers_compute_the_same(flags, tmp_path):
  off = result_here(tmp_path, '--xla=off', '--noshuffle', *flags)
  on, _ = run_with_result(tmp_path, '--xla=on', '--noshuffle', *flags)
  assert on['first_losses'] == pytest.approx(off['first_losses'], rel=1e-3)
  assert on['train_loss'] == pytest.approx(off['train_loss'], abs=1e-3)
