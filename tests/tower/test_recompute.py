"""Recompute: the same bits from less memory, and nothing runs twice that changes anything."""

import functools
import logging
import os

import numpy as np
import pytest

from tests.harness.processes import run_python
from tests.harness.small import Run, assert_same_weights, classify, dense, model
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.input.batch import Batch
from towers.placement.devices import build_devices, build_session_config
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import tf
from towers.tower.all_towers import SUMS
from towers.tower.batch_norm.layer import batch_norm
from towers.tower.towers import build_towers

NUM_LAYERS = 4


def deep(batch, is_training):
  """Normalised layers with dropout, skips to the next block and one to the end, in branches."""
  features, labels = batch
  x = first = dense(features, 8, 'first')
  for index in range(NUM_LAYERS):
    with tf.variable_scope(f'block_{index}'):
      image = tf.reshape(dense(x, 32, 'dense'), [-1, 2, 2, 8])
      y = tf.nn.relu(batch_norm(image, is_training, name='norm'))
      y = tf.nn.dropout(tf.reduce_max(y, [1, 2]), rate=0.2)
      x = x + tf.cond(is_training, lambda: tf.tanh(y), lambda: y)  # noqa: B023
  return classify(tf.concat([x, first], 1), labels), {}


def train(steps=3, **settings):
  """Returns all that steps leave behind, and the program."""
  with Run(shuffle=True, **settings) as run:
    losses = [run.train() for _ in range(steps)]
    if run.program.validation:
      losses += [mean for _, mean in sorted(run.validate()[0].items())]
    return losses, run.variables(), run.program


def assert_same_bits(recompute, **settings):
  """Asserts that a program with and one without copies agree, and returns the former."""
  [plain, plain_values, _], [losses, values, program] = [
      train(recompute=setting, **settings) for setting in ('none', recompute)]
  assert losses == plain
  assert_same_weights(values, plain_values, tolerance=0)
  return program


def find_copies(program, tower=0):
  scope = program.towers[tower].scope + program.towers[tower].recomputed.scope
  return [op for op in program.graph.get_operations() if op.name.startswith(scope)]


# (recompute, towers, other settings)
POINTS = [
    (3, 1, dict(mode='split')),
    ('auto', 2, dict(mode='next', tower_build='clone', placement='replicated', accumulate=2,
                     batch_norm='sync')),
    ('block_1/,block_2/', 3, dict(mode='shard', placement='balanced', precision='mixed',
                                  batch_norm='mean')),
]


@pytest.mark.nightly
@pytest.mark.parametrize('recompute, num_towers, settings', POINTS)
def test_all_that_steps_leave_behind_has_the_same_bits(recompute, num_towers, settings):
  program = assert_same_bits(recompute, num_towers=num_towers, model=deep, validates=True,
                             **settings)
  for tower in range(num_towers):
    copies = find_copies(program, tower)
    assert {op.type for op in copies} >= {'MatMul', 'GreaterEqual', 'Switch'}
    assert not any(op.op_def.is_stateful for op in copies)


def turn_and_choose(x, labels):
  x = tf.nn.relu(tf.while_loop(lambda turn, _: turn < 3,
                               lambda turn, y: (turn + 1, tf.sin(y) * x), [0, x])[1])
  return tf.cond(
      labels[0] > 0,
      lambda: tf.cond(labels[0] > 1, lambda: tf.square(x), lambda: tf.sin(x)),
      lambda: tf.exp(-x))


@pytest.mark.nightly
def test_nothing_runs_twice_that_has_state_and_loops_and_branches_keep_their_bits():
  calls = []

  def remember(values):
    calls.append(len(values))
    return values

  def strange(batch, is_training):
    features, labels = batch
    table = tf.get_variable('table', [7, 16])
    x = tf.gather(table, tf.cast(tf.abs(features[:, 0]) * 2, tf.int32))
    steps = tf.get_variable('steps', [], tf.int32, trainable=False,
                            initializer=tf.zeros_initializer())
    for index in range(4):
      with tf.variable_scope(f'block_{index}'):
        x = turn_and_choose(tf.tanh(dense(x, 16, 'dense')), labels)
        with tf.control_dependencies([steps.assign_add(1)]):
          x = x + tf.reshape(tf.py_func(remember, [dense(x, 16, 'again')], tf.float32), [-1, 16])
    return classify(x, labels), {}

  settings = dict(model=strange, num_towers=1, tower_build='reuse')
  _, values, _ = train(recompute='none', **settings)
  once = len(calls)
  assert values['steps'] == 3 * 4 and once >= 3 * 4
  program = assert_same_bits(4, **settings)
  assert len(calls) == 3 * once
  assert not {op.type for op in find_copies(program)} & {'PyFunc', 'Enter', 'Exit', 'Const'}


def test_the_joined_sums_of_batch_normalisation_have_no_copy():
  with Run(model=deep, num_towers=2, batch_norm='sync', recompute=3, validates=True) as run:
    sums = {tensor.op.name.split('/', 1)[1] for tensor in run.graph.get_collection(SUMS)}
    copies = {op.name.split('/', 3)[3] for op in find_copies(run.program)}
  assert sums and not sums & copies


@pytest.mark.nightly(but='0')
@pytest.mark.parametrize('label', [0, 1])
def test_a_cut_may_be_inside_of_a_branch_that_is_not_taken(label):
  def branch(x):
    for index in range(6):
      with tf.name_scope(f'inside_{index}'):
        x = tf.tanh(tf.square(x) + 0.1)
    return x

  def choose(batch, is_training):
    del is_training
    features, labels = batch
    x = tf.tanh(dense(features, 16, 'first'))
    x = tf.cond(labels[0] > label, lambda: branch(x), lambda: tf.sin(x))  # The labels are 1.
    return classify(tf.tanh(dense(x, 16, 'last')), labels), {}

  values = []
  for setting in ('none', 'cond/inside_1/,cond/inside_3/'):
    with tf.Graph().as_default():
      tower, config = build_tower(choose, setting)
      with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        values.append(session.run(tower.gradients))
  assert tower.recomputed.num_segments == 3 and tower.recomputed.num_ops > 4
  for one, other in zip(*values):
    np.testing.assert_array_equal(one, other)


def chain(batch, is_training, num_layers=50):
  """Layers whose activations are larger than their weights."""
  del is_training
  x, labels = batch
  for index in range(num_layers):
    x = tf.tanh(dense(x, 16, f'layer_{index}'))
  return classify(x, labels), {}


short_chain = functools.partial(chain, num_layers=20)


def normalised(batch, is_training):
  x, labels = batch
  x = tf.reshape(dense(x, 64, 'first'), [-1, 4, 4, 4])
  for index in range(20):
    x = tf.tanh(batch_norm(x, is_training, name=f'layer_{index}'))
  return classify(tf.reshape(x, [-1, 64]), labels), {}


def build_tower(model, recompute, rows=512):
  """Returns a tower of a model in the default graph, on constants; it may validate as well."""
  devices = build_devices(1, 'cpu')
  batch = Batch((tf.ones([rows, 5]), tf.ones([rows], tf.int32)), rows)
  store = VariableStore(devices=devices.names, placement='host', seed=3)
  [tower] = build_towers(model, [batch], devices=devices.names, store=store,
                         is_training=tf.placeholder_with_default(True, []),
                         recompute=recompute)
  return tower, build_session_config(devices)


# TensorFlow's own session merges equal ops, and rewrites graphs.
STEP = """
import sys
import tests
from towers.tensorflow_v1 import tf
from tests.tower.test_recompute import build_tower, chain
tower, config = build_tower(chain, sys.argv[1], rows=1 << 15)
with tf.Session(config=config if sys.argv[2] == 'plain' else None) as session:
  session.run(tf.global_variables_initializer())
  session.run([gradient.op for gradient in tower.gradients])
"""


@pytest.mark.nightly
@pytest.mark.parametrize('kind', ['plain', 'rewritten'])
def test_a_step_of_50_layers_takes_half_of_the_memory(kind):
  def fits(recompute, megabytes):
    environ = dict(os.environ, TF_CPU_ALLOCATOR_USE_BFC='1',
                   TF_CPU_BFC_MEM_LIMIT_IN_MB=str(megabytes))
    done = run_python('-c', STEP, recompute, kind, env=environ)
    assert not done.returncode or 'OOM' in done.stderr or 'allocator' in done.stderr, done.stderr
    return not done.returncode

  assert not fits('none', megabytes=100) and fits('auto', megabytes=50)


def branches(batch, is_training):
  del is_training
  x, labels = batch
  for index in range(20):
    x = tf.tanh(dense(x, 16, f'layer_{index}'))
    x = tf.cond(labels[0] > 0, lambda: tf.square(x), lambda: tf.sin(x))  # noqa: B023
  return classify(x, labels), {}


@pytest.mark.nightly(but='branches')
@pytest.mark.parametrize('model', [short_chain, branches, normalised],
                         ids=['chain', 'branches', 'normalised'])
def test_copies_begin_one_segment_after_the_other_once_the_loss_is_there(model):
  with tf.Graph().as_default() as graph:
    tower, _ = build_tower(model, 5)
    copies = [op for op in graph.get_operations() if '/recompute/' in op.name]
    assert find_needed([tower.loss.op, tower.sums['loss'].op]).isdisjoint(copies)
    assert tower.recomputed.num_segments == 5
    assert tower.recomputed.num_ops == len(copies) - 4  # Each segment has an op that begins it.

    def segment_of(op):
      return int(op.name.split('/recompute/segment_')[1].split('/')[0])

    assert {segment_of(op) for op in copies} == {0, 1, 2, 3}
    for op in copies:
      needed = find_needed([op])
      assert tower.sums['loss'].op in needed
      behind = {copy for copy in copies if segment_of(copy) == segment_of(op) + 1}
      assert needed >= behind
    # The copied layers, but neither the last segment nor what the cuts keep.
    assert sum(op.type == 'Tanh' for op in copies) <= 20 * 4 / 5


def test_a_cut_is_where_a_name_says():
  with tf.Graph().as_default() as graph:
    tower, _ = build_tower(short_chain, 'layer_4/,layer_12/')
    assert tower.recomputed.num_segments == 3
    names = {op.name.split('/')[-2] for op in graph.get_operations()
             if '/recompute/' in op.name and op.type == 'MatMul'}
    assert {'layer_5', 'layer_11'} <= names
    assert not names & {'layer_4', 'layer_12', 'layer_13', 'layer_19'}


@pytest.mark.nightly(but='layer_7/,stem/-words0')
@pytest.mark.parametrize('setting, words', [
    ('layer_7/,stem/', ['recompute=stem/', 'a tower has layer_0/, ', ' more']),
    (60, ['recompute=60', 'only 2', 'at most 2', 'auto']),
    ('1', ['recompute=1', 'saves nothing', 'at least 2']),
    ('-3', ['recompute=-3', 'at least 2']),
    ('a,', ['recompute=a,', 'auto', 'block_1/']),
    (True, ['recompute=True', 'auto'])])
def test_what_makes_no_sense_is_refused_by_name(setting, words):
  with tf.Graph().as_default(), pytest.raises(UsageError) as error:
    build_tower(short_chain, setting, rows=4)
  for word in words:
    assert word in str(error.value)


def test_a_model_with_nothing_to_gain_says_so_in_one_line(caplog):
  with caplog.at_level(logging.WARNING, 'towers'), Run(
      model=model, num_towers=2, recompute='auto', tower_build='reuse') as run:
    assert all(tower.recomputed is None for tower in run.program.towers)
  [record] = [record for record in caplog.records if 'recompute' in record.getMessage()]
  assert record.getMessage().startswith('recompute=auto changes nothing: ')
