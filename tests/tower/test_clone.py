"""Clones: to the bit and on the same devices the towers that the model would build, or why not."""

import re
from typing import Any, Dict, List, NamedTuple

import numpy as np
import pytest

import models
import towers
from tests.coupling.zoo import ZOO
from tests.coupling.zoo.parts import XY
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.data import load_synthetic
from towers.session import engine
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm

IS_1 = tf.__version__.startswith('1.')
NUM_STEPS = 3


def rich_model(batch, is_training):
  """Batch norm, dropout, an embedding, a loop, a branch, a penalty, and an op with a device."""
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


def outcome(build, model=rich_model, **settings):
  """Returns all that a run shows: losses, metrics, variables of all kinds, and the graph."""
  with small.Run(model=model, tower_build=build, validates=True, **settings) as run:
    losses = [run.train() for _ in range(NUM_STEPS)]
    metrics = run.validate()
    losses += [run.train()]
    return losses, metrics, run.variables(), run.graph


def assert_same(left, right):
  np.testing.assert_array_equal(left[0], right[0])
  assert left[1] == right[1]
  assert list(left[2]) == list(right[2])
  small.assert_same_weights(left[2], right[2], tolerance=0)


def towers_of(graph, num_towers):
  """Returns for each tower its ops by name, without the tower."""
  return [{op.name.replace(f'tower_{tower}/', ''): op for op in graph.get_operations()
           if op.name.startswith(f'tower_{tower}/')} for tower in range(num_towers)]


GRID = [point for point in enumerate(small.covering_grid(
    small.MODES, (1, 2, 3, 4, 8), ('first', 'mean', 'sync'))) if point[1][1] in (2, 3, 8)]


@pytest.mark.nightly(but='shard-2-first')
@pytest.mark.parametrize('index, point', GRID, ids=['-'.join(map(str, point)) for _, point in GRID])
def test_clones_are_the_towers_that_the_model_would_build(index, point):
  mode, num_towers, kind = point
  settings = dict(mode=mode, num_towers=num_towers, batch_norm=kind, depth=index % 3,
                  train=small.random_examples((13, 16, 17)[index % 3]),
                  placement=small.PLACEMENTS[index % 3],
                  accumulate=2 if index % 4 in (1, 2) and num_towers < 8 else 1)
  cloned, built = outcome('clone', **settings), outcome('reuse', **settings)
  assert_same(cloned, built)
  for clones, models_own in zip(*[towers_of(graph, num_towers) for *_, graph in (cloned, built)]):
    assert 20 < len(clones) <= len(models_own)
    for name, op in clones.items():
      own = models_own[re.sub('(?<=ShapeN)/[0-9]+$', '', name)]
      is_known = own.type in ('Shape', 'ShapeN') and op.type == 'Const'
      assert op.device == own.device and (is_known or op.type == own.type), name
  kept = [op for op in cloned[3].get_operations() if op.name.endswith('/rows')]
  assert [op.device for op in kept] == [f'/device:CPU:{tower}' for tower in range(num_towers)]
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
  """Towers of 3, 3 and 2 rows, of static shapes: the model is called for the first 3 and the 2."""
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


@pytest.mark.nightly(but='lenet')
@pytest.mark.parametrize('name', ['lenet', 'convnet', 'resnet20'])
def test_models_of_the_project_clone(name):
  data = load_synthetic(num_train=10, num_validation=6)
  clone, built = [outcome(
      build, models.build_classifier(name, num_classes=10), train=data.train, batch_size=4,
      validation=data.validation, learning_rate=0.01) for build in ('clone', 'reuse')]
  assert_same(clone, built)


@pytest.mark.nightly(but='10-1')
@pytest.mark.parametrize('least, num_calls', [(10, 1), (10**6, 3)])
def test_auto_clones_a_tower_of_many_ops(least, num_calls, monkeypatch):
  calls = []

  def model(batch, is_training):
    calls.append(batch)
    return small.model(batch, is_training)

  monkeypatch.setattr('towers.tower.cloning.cloner._OPS_WORTH_CLONING', least)
  with small.Run(model=model, num_towers=3, batch_size=6, tower_build='auto'):
    assert len(calls) == num_calls


def test_an_unknown_build_is_refused():
  with pytest.raises(UsageError, match='tower_build'):
    small.Run(tower_build='copy')


class Computed(NamedTuple):
  """What towers other than the first compute, the ops of all towers, and where they have run."""
  values: List[Any]
  names: List[str]
  devices: Dict[str, str]


def compute(build, model, data, *, prepare=lambda: None, optimizer=None, batch_size=14,
            num_towers=2, **settings):
  with tf.Graph().as_default() as graph:
    prepare()
    program = towers.Program(
        model, train=data(), batch_size=batch_size, num_towers=num_towers, tower_build=build,
        optimizer=(optimizer or (lambda: tf.train.GradientDescentOptimizer(0.1)))(), device='cpu',
        seed=3, **settings)
    scopes = tuple(tower.scope for tower in program.towers)
    fetches = [tensor for tensor in tf.nest.flatten(
        [[tower.loss, tower.sums, tower.gradients] for tower in program.towers[1:]],
        expand_composites=True) if tensor is not None]
    parts, devices = tf.RunMetadata(), {}
    with program.session() as session:
      values = session.tf_session.run(fetches, run_metadata=parts, options=tf.RunOptions(
          output_partition_graphs=True))
    for part in parts.partition_graphs:
      # But for what sends and receives. The names of gradients may hold the scope twice.
      devices.update((re.sub('(?<=/)tower_[0-9]+/', '', node.name), node.device.rpartition('/')[2])
                     for node in part.node
                     if node.name.startswith(scopes[1:]) and '/_' not in node.name)
    return Computed(values, [op.name for op in graph.get_operations()
                             if op.name.startswith(scopes)], devices)


def assert_same_values(left, right):
  assert len(left.values) == len(right.values)
  for one, other in zip(left.values, right.values):
    np.testing.assert_array_equal(one, other)


@pytest.fixture(autouse=True)
def unjudged(monkeypatch):
  monkeypatch.setattr(engine, 'has_parts', lambda program: False)


# By what is said of them: they hold or remember something.
REFUSED = {'py_func_per_example': 'PyFunc.*calls a Python function',
           'py_func_over_batch': 'PyFunc.*calls a Python function',
           'python_in_a_function': 'PyFunc.*calls a Python function',
           'lookup_table': 'HashTableV2.*holds what other ops have set',
           'queued': 'FIFOQueueV2.*holds what other ops have set'}
# TensorFlow or the law of variables lets no second tower be, cloned or not.
_ALONE = {'mean_teacher_ema', 'target_network', 'spectral_norm_in_place', 'variable_from_batch',
          'maml_inner_step'}
CLONED = [name for name, case in ZOO.items()
          if name not in _ALONE.union(REFUSED) and (IS_1 or not case.tf1)]
LOOPED = [name for name in CLONED if ZOO[name].model.__module__.endswith('sequences')]
# Where batches are on the host, what unpacks them is too.
POINTS = [(name, 'replicated', 1) for name in CLONED] + [(name, 'host', 0) for name in LOOPED]


@pytest.mark.nightly(but='map_fn-host-0')
@pytest.mark.parametrize('name, variables, depth', POINTS)
def test_each_op_of_a_clone_is_on_its_tower(name, variables, depth):
  case = ZOO[name]
  cloned, built = [compute(build, case.model, case.data, optimizer=case.opt, variables=variables,
                           staging_depth=depth) for build in ('clone', 'reuse')]
  assert_same_values(cloned, built)
  assert len(cloned.names) <= len(built.names)
  assert len(set(cloned.devices).intersection(built.devices)) > 10
  for op, device in cloned.devices.items():
    assert device == built.devices.get(op, device), op
    # Draws are counted on the host, and what is not trained is read and written where it is.
    assert device == 'device:CPU:1' or not depth or re.search(
        '_stateless/|/Read/|/Gather|/ReadVariableOp|/Assign', op), op


def escaping_model(batch, is_training):
  """Has ops outside of its scope, also of rows that it only draws."""
  def getter(get, *args, **settings):
    return tf.nn.dropout(get(*args, **settings), rate=0.5)

  with tf.name_scope(None):
    x = tf.identity(batch['x'], name='escaped')
    noise = tf.random.normal([tf.compat.dimension_value(x.shape[0]) or tf.shape(x)[0], 1])
  with tf.variable_scope(tf.get_variable_scope(), custom_getter=getter):
    return ZOO['layer_norm'].model(dict(batch, x=x + noise), is_training)


@pytest.mark.parametrize('settings', [{}, dict(variables='replicated', last_batch='drop')])
def test_what_is_outside_of_its_scope_is_cloned(settings):
  cloned, built = [compute(build, escaping_model, XY, **settings) for build in ('clone', 'reuse')]
  assert_same_values(cloned, built)


@pytest.mark.nightly(but='python_in_a_function')
@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_be_cloned_is_refused_by_name_and_built_by_default(name, monkeypatch, capsys):
  model, data = ZOO[name].model, XY
  with pytest.raises(UsageError, match=f'tower_build=clone: .* op tower_0/.*{REFUSED[name]}.*'
                     'tower_build=reuse'):
    compute('clone', model, data)
  assert_built_by_the_model(model, data, monkeypatch, capsys)


def assert_built_by_the_model(model, data, monkeypatch, capsys):
  monkeypatch.setattr('towers.tower.cloning.cloner._OPS_WORTH_CLONING', 10)
  capsys.readouterr()
  by_default = compute('auto', model, data)
  [told] = [line for line in capsys.readouterr().err.splitlines() if 'cloned' in line]
  assert told.startswith('tower_build=auto calls the model') and 'Build with' not in told
  built = compute('reuse', model, data)
  assert_same_values(by_default, built)
  assert by_default.names == built.names


def test_what_fails_in_cloning_is_built_by_the_model(monkeypatch, capsys):
  def fail(*_, **__):
    raise ValueError('a node that\nTensorFlow does not take')

  monkeypatch.setattr('towers.tower.cloning.pattern.import_placed', fail)
  model = ZOO['layer_norm'].model
  with pytest.raises(UsageError, match='tower_build=clone: .*a node that'):
    compute('clone', model, XY)
  assert_built_by_the_model(model, XY, monkeypatch, capsys)
