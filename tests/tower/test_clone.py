"""Clones: a cloned tower is the tower that the model would have built, to the bit, in every graph
it is part of.
"""

import functools
import re

import numpy as np
import pytest

import models
from tensorflow_v1 import tf
from tests.harness import small
from tests.harness.small import Run
from towers.base.usage_error import UsageError
from towers.tower.batch_norm_layer import batch_norm

NUM_STEPS = 3


def rich_model(batch, is_training):
  """Batch norm, dropout, an embedding, a loop, a branch, a penalty, and an op that is kept on the
  host.
  """
  features, labels = batch
  with tf.variable_scope('words',
                         regularizer=lambda weights: 1e-2 * tf.reduce_sum(tf.square(weights))):
    table = tf.get_variable('table', [7, 4])
  with tf.device('/cpu:0'):
    rows = tf.cast(tf.abs(features[:, 0]) * 3, tf.int32, name='rows') % 7
  x = tf.concat([features, tf.nn.embedding_lookup(table, rows)], 1)
  x = tf.nn.relu(batch_norm(small.dense(x, 6, 'hidden'), is_training, name='norm'))
  x = tf.nn.dropout(x, rate=tf.where(is_training, 0.5, 0.0))
  _, x = tf.while_loop(lambda i, _: i < 3, lambda i, x:
                       (i + 1, tf.tanh(x) + tf.cast(i, tf.float32)), (0, x),
                       shape_invariants=(tf.TensorShape([]), x.shape))
  x = tf.cond(tf.reduce_sum(features) > 0, lambda: x * 2, lambda: -x)
  logits = small.dense(x, small.NUM_CLASSES, 'logits')
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  tf.add_to_collection('seen', losses)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}


def outcome(build, **settings):
  """Returns all that a run shows: losses, metrics, weights of all kinds, and the ops of each tower.
  """
  with Run(model=settings.pop('model', rich_model), tower_build=build, **settings) as run:
    losses = [run.train() for _ in range(NUM_STEPS)]
    metrics = run.validate()
    losses += [run.train()]
    with run.graph.as_default():
      variables = {variable.op.name: value for variable, value in
                   zip(tf.global_variables(), run.session.run(tf.global_variables()))}
    return losses, metrics, variables, run.graph


def assert_same(left, right):
  np.testing.assert_array_equal(left[0], right[0])
  assert left[1] == right[1]
  assert list(left[2]) == list(right[2])
  for name, value in left[2].items():
    np.testing.assert_array_equal(value, right[2][name], err_msg=name)


def towers_of(graph, num_towers):
  """Returns for each tower its ops by name, without the tower."""
  return [{op.name.replace(f'tower_{tower}/', ''): op for op in graph.get_operations()
           if op.name.startswith(f'tower_{tower}/')} for tower in range(num_towers)]


GRID = small.covering_grid(small.MODES, small.TOWERS, ('first', 'mean', 'sync'))


def points():
  """The grid: one tower has no clone, and four are as two."""
  for index, point in enumerate(GRID):
    is_quick = point == ('shard', 2, 'first')
    if point[1] in (2, 3, 8):
      yield pytest.param(index, id='-'.join(map(str, point)),
                         marks=[] if is_quick else [pytest.mark.nightly])


@pytest.mark.parametrize('index', points())
def test_clones_are_the_towers_that_the_model_would_build(index):
  mode, num_towers, kind = GRID[index]
  settings = dict(mode=mode, num_towers=num_towers, batch_norm=kind, depth=index % 3,
                  train=small.random_examples(
                      (13, 16, 17)[index % 3]), placement=small.PLACEMENTS[index % 3],
                  accumulate=2 if index % 4 in (1, 2) and num_towers < 8 else 1)
  cloned, built = outcome('clone', **settings), outcome('reuse', **settings)
  assert_same(cloned, built)
  for clones, towers in zip(towers_of(cloned[3], num_towers), towers_of(built[3], num_towers)):
    assert 20 < len(clones) <= len(towers)
    for name, op in clones.items():
      if name not in towers:
        name = re.sub(r'/[0-9]+(/[a-z]+_*)?$', '', name)
        assert op.type in ('Const', 'Shape', 'StridedSlice', 'Pack'), name
        assert towers[name].type in ('Shape', 'ShapeN') and op.device == towers[name].device, name
        continue
      assert (op.type, op.device) == (towers[name].type, towers[name].device), name
  kept = [op for op in cloned[3].get_operations() if op.name.endswith('/rows')]
  assert len(kept) == num_towers
  assert {op.device for op in kept} == {'/device:CPU:0'}
  assert len(cloned[3].get_collection('seen')) == num_towers


@pytest.mark.parametrize('placement', small.nightly_but(
    ['replicated'], ['host', 'first', 'replicated']))
def test_clones_leave_out_repeated_ops(placement):
  settings = dict(num_towers=2, placement=placement, train=small.random_examples(16),
                  validation=small.random_examples(8))
  clone, built = [towers_of(outcome(build, **settings)[3], 2)[1] for build in ('clone', 'reuse')]
  # Six weights and two moving averages, which stand once wherever the weights are.
  reads = [sum(op.type == 'ReadVariableOp' for op in tower.values()) for tower in (built, clone)]
  assert reads == [8, 6 if placement == 'replicated' else 0]
  # But for those of loops and branches, and those that stand where another op does.
  built, constants = [[op for op in tower.values() if op.type == 'Const' and not op.control_inputs
                       and '_class' not in op.node_def.attr] for tower in (built, clone)]
  values = {(op.device, op.node_def.attr['value'].SerializeToString(deterministic=True))
            for op in constants}
  assert 5 < len(values) == len(constants) < len(built)
  # The first tower's moments alone move the averages, as all sizes are equal.
  assert not [name for name in clone if name.endswith('batch_mean')]


@pytest.mark.nightly
def test_a_tower_is_cloned_from_one_of_its_own_sizes():
  """8 over 3 towers is 3, 3 and 2, and shapes are static: the model is called for the first 3 and
  for the 2.
  """
  calls = []

  def model(batch, is_training):
    calls.append((tf.get_default_graph(), batch[0].shape.as_list()[0]))
    return rich_model(batch, is_training)

  settings = dict(num_towers=3, train=small.random_examples(16),
                  validation=small.random_examples(8))
  cloned = outcome('clone', model=model, **settings)
  # Graphs beside have calls too, for draws and for the judge.
  assert [size for graph, size in calls if graph is calls[0][0]] == [3, 2]
  assert_same(cloned, outcome('reuse', **settings))


@functools.lru_cache(maxsize=None)
def image_run(name, build):
  from towers.data import load_synthetic
  data_set = load_synthetic(num_train=10, num_validation=6)
  return Run(model=models.build_classifier(name, num_classes=10), num_towers=2,
             train=data_set.train, batch_size=4, validation=data_set.validation,
             tower_build=build, learning_rate=0.01)


def image_outcome(name, build):
  with image_run(name, build) as run:
    losses = [run.train() for _ in range(3)]
    return losses, run.validate(), run.weights()


def count_ops(name, build):
  run = image_run(name, build)
  run.session.close()
  return len(run.graph.get_operations())


@pytest.mark.nightly(but='lenet')
@pytest.mark.parametrize('name', [
    'lenet', 'convnet', pytest.param('resnet20', marks=pytest.mark.nightly)])
def test_models_of_the_project_clone(name):
  assert_same(image_outcome(name, 'clone'), image_outcome(name, 'reuse'))
  clone, built = [towers_of(image_run(name, build).graph, 2)[1] for build in ('clone', 'reuse')]
  shapes = [sum(op.type in ('Shape', 'ShapeN') for op in tower.values())
            for tower in (clone, built)]
  # Those in the gradients of the sum over examples and, on 1.14, of dropout; layers ask for more.
  assert shapes[0] <= 3 and shapes[0] < shapes[1]


@pytest.mark.nightly
def test_auto_clones_deep_models_alone():
  assert count_ops('resnet20', 'auto') == count_ops('resnet20', 'clone') < count_ops(
      'resnet20', 'reuse')
  assert count_ops('lenet', 'auto') == count_ops('lenet', 'reuse')


def escaping_model(batch, is_training):
  with tf.name_scope(None):
    features = tf.identity(batch[0], name='escaped')
  return small.model((features, batch[1]), is_training)


def test_what_stands_outside_of_the_scope_is_refused_rather_than_shared():
  with pytest.raises(UsageError, match='escaped outside of the name scope.*tower_build=reuse'):
    Run(model=escaping_model, num_towers=2, tower_build='clone')


def test_auto_calls_a_model_that_cannot_be_cloned(monkeypatch):
  monkeypatch.setattr('towers.tower.cloning.cloner._OPS_WORTH_CLONING', 10)
  assert_same(outcome('auto', model=escaping_model, num_towers=3),
              outcome('reuse', model=escaping_model, num_towers=3))


@pytest.mark.nightly(but='10-1')
@pytest.mark.parametrize('least, num_calls', [(10, 1), (10**6, 3)])
def test_auto_clones_a_tower_of_many_ops(least, num_calls, monkeypatch):
  calls = []

  def model(batch, is_training):
    calls.append(batch)
    return small.model(batch, is_training)

  monkeypatch.setattr('towers.tower.cloning.cloner._OPS_WORTH_CLONING', least)
  with Run(model=model, num_towers=3, batch_size=6, tower_build='auto'):
    assert len(calls) == num_calls


def test_an_unknown_build_is_refused():
  with pytest.raises(UsageError, match='tower_build'):
    Run(tower_build='copy')


def squares(weights):
  return lambda row: tf.reduce_sum(tf.square(tf.tensordot(row, weights, 1)))


def in_array(batch, weights):
  array = tf.TensorArray(tf.float32, tf.shape(batch)[0]).unstack(batch)
  return array.stack()[:, 0] * tf.reduce_sum(weights)


def in_turns(batch, weights):
  return tf.while_loop(lambda turn, _: turn < 3, lambda turn, x: (
      turn + 1, tf.tanh(tf.matmul(x, weights))), (0, batch))[1][:, 0]


def recurrent(batch, weights):
  steps = tf.reshape(tf.matmul(batch, weights), [-1, small.NUM_FEATURES, 1])
  return tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(2), steps, dtype=tf.float32)[0][:, -1, 0]


LOOPS = {
    'map_fn': lambda batch, weights: tf.map_fn(squares(weights), batch),
    'map_fn of an identity': lambda batch, weights: tf.map_fn(squares(weights), tf.identity(batch)),
    'scan': lambda batch, weights: tf.scan(
        lambda _, row: squares(weights)(row), batch, tf.constant(0.0)),
    'array': in_array, 'while_loop': in_turns, 'dynamic_rnn': recurrent,
}


@pytest.mark.nightly(but='while_loop-1')
@pytest.mark.nightly(but=['while_loop-1', 'map_fn-0'])
@pytest.mark.parametrize('depth', [0, 1])
@pytest.mark.parametrize('loop', LOOPS)
def test_loops_of_clones_run_where_the_models_own_would(loop, depth):
  def model(batch, is_training):
    weights = tf.get_variable('weights', [small.NUM_FEATURES] * 2)
    return tf.square(LOOPS[loop](batch[0], weights))

  def place(build):
    """Returns the devices of the second tower's ops in the graph that TensorFlow has placed."""
    with Run(model=model, tower_build=build, depth=depth, placement='replicated') as run:
      steps, found = tf.RunMetadata(), {}
      options = tf.RunOptions(output_partition_graphs=True)
      loss = run.session.run(run.program.towers[1].loss, options=options, run_metadata=steps)
      for part in steps.partition_graphs:
        found.update((node.name, node.device[-5:]) for node in part.node
                     if node.name.startswith('tower_1/') and node.op != 'Const')
      return loss, found

  loss, cloned = place('clone')
  expected, built = place('reuse')
  assert loss == expected
  assert len(cloned) > 10
  assert not [name for name in cloned if built.get(name, cloned[name]) != cloned[name]]
  assert set(cloned.values()) == set(built.values())
