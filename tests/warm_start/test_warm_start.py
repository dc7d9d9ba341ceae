"""Fine-tuning: variables start from a file, to the bit on any towers; a resume never reads it."""

import glob
import os
import re
import shutil

import numpy as np
import pytest

import main
import towers
from tests import test_program
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from tests.test_towers_equal_one import partitioned
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import load_keras, tf
from towers.tower.batch_norm.layer import batch_norm
from towers.warm_start.weights_file import check_weights

keras = load_keras()
SHAPES = {'hidden/weights': (small.NUM_FEATURES, 4), 'hidden/biases': (4,),
          'logits/weights': (4, 3), 'logits/biases': (3,), 'norm/moving_mean': (4,)}
VALUES = {name: np.random.RandomState(index).randn(*shape).astype(np.float32)
          for index, (name, shape) in enumerate(sorted(SHAPES.items()))}
WEIGHTS = {name: value for name, value in VALUES.items() if 'moving' not in name}


def save_checkpoint(path, values, version):
  """Writes a checkpoint of another program: other names, its own slots and counters."""
  with tf.Graph().as_default(), tf.Session() as session:
    for name, value in values.items():
      tf.get_variable(f'net/{name}', initializer=value)
      tf.get_variable(f'net/{name}/Adam', initializer=value)
    tf.get_variable('global_step', initializer=np.int64(70))
    tf.get_variable('examples_seen', initializer=np.int64(700))
    session.run(tf.global_variables_initializer())
    return tf.train.Saver(write_version=version).save(session, str(path))


def save_keras(path, whole):
  layers = [keras.layers.Dense(4, name='hidden', input_shape=[small.NUM_FEATURES]),
            keras.layers.Dense(3, name='logits')]
  with tf.Graph().as_default(), tf.Session():
    made = keras.Sequential(layers)
    made.set_weights([VALUES[name] for name in (
        'hidden/weights', 'hidden/biases', 'logits/weights', 'logits/biases')])
    (made.save if whole else made.save_weights)(str(path))
  return str(path)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Files of the same weights, by kind."""
  folder = tmp_path_factory.mktemp('files')
  (folder / 'run').mkdir()
  v2 = save_checkpoint(folder / 'run' / 'model', VALUES, tf.train.SaverDef.V2)
  return dict(v1=save_checkpoint(folder / 'v1', VALUES, tf.train.SaverDef.V1), v2=v2,
              folder=os.path.dirname(v2), index=v2 + '.index',
              weights=save_keras(folder / 'weights.h5', False),
              whole=save_keras(folder / 'whole.h5', True))


KERAS_MAP = '(.*)/kernel=\\1/weights,(.*)/bias=\\1/biases'


def model(batch, is_training):
  """Has a frozen batch norm, and starts another variable from a weight, as a slow copy does."""
  features, labels = batch
  del is_training
  hidden = tf.tanh(small.dense(features, 4, 'hidden'))
  hidden = batch_norm(hidden, False, name='norm')
  weights = tf.get_default_graph().get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)[0]
  tf.get_variable('slow', initializer=weights.initial_value, trainable=False)
  logits = small.dense(hidden, small.NUM_CLASSES, 'logits')
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}


@pytest.mark.nightly(but=['index', 'whole'])
@pytest.mark.parametrize('kind', ['v1', 'v2', 'folder', 'index', 'weights', 'whole'])
def test_any_file_starts_the_weights_to_the_bit(files, kind):
  with small.Run(model=small.model, num_towers=1, init_from=files[kind], optimizer='adam',
                 init_map=KERAS_MAP if kind in ('weights', 'whole') else 'net/=') as run:
    small.assert_same_weights(run.weights(), WEIGHTS, tolerance=0)
    assert run.counters() == [0, 0]
    assert re.search(r'matched +4 ', run.table) and re.search(r'new +0\n', run.table)
    others = [value for name, value in run.variables().items() if 'Adam' in name]
    assert len(others) == 8 and not np.any(list(map(np.any, others)))


def test_the_parts_of_a_variable_start_from_a_checkpoint_that_has_it_whole(tmp_path):
  with small.Run(model=partitioned, num_towers=2) as run, run.graph.as_default():
    run.train()
    run.opened.save(str(tmp_path))
    expected = run.weights()
  with small.Run(model=partitioned, num_towers=3, placement='replicated',
                 init_from=str(tmp_path)) as run:
    small.assert_same_weights(run.weights(), expected, tolerance=0)
    assert re.search(r'matched +5 ', run.table)


@pytest.mark.nightly(but='2-balanced-settings1')
@pytest.mark.parametrize('num_towers, placement, settings', [
    (1, 'host', {}), (2, 'balanced', dict(accumulate=2)), (3, 'replicated', {}),
    pytest.param(8, 'host', dict(tower_build='clone'), marks=pytest.mark.nightly)])
def test_all_towers_start_and_train_alike(files, num_towers, placement, settings):
  def train(**settings):
    with small.Run(model=model, init_from=files['v2'], init_map='net/=', **settings) as run:
      started = run.variables()
      for name, value in dict(VALUES, slow=VALUES['hidden/weights']).items():
        assert np.array_equal(started[name], value), name
      if run.program.replicas:
        assert run.session.run(run.program.replicas.same).all()
      run.train(3)
      run.opened.check_replicas()
      found = run.variables()
      assert np.array_equal(found['norm/moving_mean'], VALUES['norm/moving_mean'])
      return run.weights()

  expected = train(num_towers=1)
  trained = train(num_towers=num_towers, placement=placement, **settings)
  small.assert_same_weights(trained, expected)
  norm = {'norm/scale': np.ones(4), 'norm/offset': np.zeros(4)}
  small.assert_moved({**WEIGHTS, **norm}, trained)


@pytest.mark.nightly
def test_of_two_workers_the_chief_reads(files, tmp_path):
  copied = shutil.copytree(files['folder'], str(tmp_path / 'run'))
  with InProcessCluster(num_workers=2, num_towers=2, model=small.model, placement='replicated',
                        init_from=copied, init_map='net/=') as cluster:
    for weights in cluster.each(small.Run.weights):
      small.assert_same_weights(weights, WEIGHTS, tolerance=0)
    assert [bool(run.table) for run in cluster.runs] == [True, False]
    cluster.train()


def test_reinit_starts_anew(files):
  def other_head(batch, is_training):
    features, labels = batch
    del is_training
    logits = small.dense(tf.tanh(small.dense(features, 4, 'hidden')), 4, 'logits')
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

  settings = dict(model=other_head, num_towers=2, init_from=files['v2'], init_map='net/=')
  with pytest.raises(UsageError, match=r'logits/weights \[4, 3\] float32 in the file, \[4, 4\]'):
    small.Run(**settings)
  with small.Run(num_towers=2, model=other_head) as run:
    anew = run.initial_weights
  with small.Run(reinit='logits/', **settings) as run:
    expected = dict(WEIGHTS, **{name: anew[name] for name in anew if 'logits' in name})
    small.assert_same_weights(run.initial_weights, expected, tolerance=0)
    assert 'shape differs      2' in run.table


@pytest.fixture
def trained(tmp_path):
  """A checkpoint of `test_program`'s model, with other weights than its initial ones."""
  program = test_program.build(num_towers=1)
  with program.session() as session:
    for _ in range(3):
      session.train()
    return session.save(str(tmp_path / 'before')), small.read_variables(program, session)


def test_a_session_reads_the_file_unless_it_restores(trained, tmp_path, capsys):
  path, values = trained
  program = test_program.build(variables='replicated', init_from=towers.init_from(path))
  with program.session() as session:
    session.validate()
    assert 'initial weights: ' + path in capsys.readouterr().out
    started = small.read_variables(program, session)
    assert np.array_equal(started['hidden/weights'], values['hidden/weights'])
    assert not started['hidden/weights/Momentum'].any() and started['global_step'] == 0
    session.train()
    session.save(str(tmp_path / 'after'))
    after = small.read_variables(program, session)
  shutil.rmtree(os.path.dirname(path))
  with program.session() as session:
    session.restore(str(tmp_path / 'after'))
    small.assert_same_weights(small.read_variables(program, session), after, tolerance=0)
    session.train()
  with program.session() as session:
    for _ in range(2):  # It does not go on with random weights.
      with pytest.raises(UsageError, match='does not exist'):
        session.train()


def test_a_run_resumes_without_the_file(trained, tmp_path, capsys):
  path, values = trained
  folder = str(tmp_path / 'run')

  def train(steps):
    program = test_program.build(init_from=path)
    towers.train(program, steps=steps, checkpoint_dir=folder)
    return capsys.readouterr().out

  assert 'matched            4  hidden/weights, hidden/biases' in train(1)
  saved = small.read_checkpoint(folder)
  assert saved['global_step'] == 1
  assert abs(saved['hidden/weights'] - values['hidden/weights']).max() < 0.1
  shutil.rmtree(os.path.dirname(path))
  assert 'is not read' in train(2)
  shutil.rmtree(folder)
  calls = []
  program = test_program.build(
      model=lambda *given: calls.append(given) or small.model(*given), init_from=path)
  before = len(calls)
  with pytest.raises(UsageError, match='does not exist'):
    towers.train(program, steps=2, checkpoint_dir=folder)
  assert len(calls) == before  # The graph is not built again for it.


def test_what_was_given_is_named_a_flag_or_an_argument(files):
  with pytest.raises(UsageError, match='^init_map=nothing/=x matches no tensor'), \
      small.Run(init_from=files['v2'], init_map='nothing/=x'):
    pass
  program = small.program(init_from=towers.init_from(files['v2'], names={'nothing/': 'x'}))
  with pytest.raises(UsageError, match="^names={'nothing/': 'x'} matches no tensor"), \
      program.session() as session:
    session.train()


def damage(path, tmp_path, kind):
  """Returns the path of a copy without its end, or with noise in its middle."""
  copied = str(tmp_path / os.path.basename(path))
  for source in glob.glob(path + '*'):
    with open(source, 'rb') as file:
      content = file.read()
    if not source.endswith('.index'):
      middle = len(content) // 2
      noise = bytes(255 - byte for byte in content[middle - 100:middle + 100])
      end = b'' if kind == 'short' else noise + content[middle + 100:]
      content = content[:middle - 100] + end
    with open(copied + source[len(path):], 'wb') as file:
      file.write(content)
  return copied


@pytest.mark.parametrize('name, given', [
    ('checkpoint', ''), ('weights.index', 'weights'), ('weights.h5', 'weights.h5')])
def test_what_is_no_file_is_refused(tmp_path, name, given):
  os.mkfifo(str(tmp_path / name))
  with pytest.raises(UsageError, match='is a FIFO, not a file'):
    check_weights(str(tmp_path / given))


# HDF5 has no checksums.
@pytest.mark.parametrize('name, kind', [
    ('v1', 'short'), ('v1', 'noise'), ('v2', 'short'), ('v2', 'noise'), ('weights', 'short')])
def test_a_damaged_file_is_refused(files, tmp_path, name, kind):
  check_weights(files[name])
  with pytest.raises(UsageError, match='cannot be read as weights'):
    check_weights(damage(files[name], tmp_path, kind))


@pytest.mark.parametrize('flags, message', [
    (['--init_from=missing'], 'init_from=missing does not exist'),
    (['--init_from=missing.h5'], 'init_from=missing.h5 does not exist'),
    (['--init_from=README.md'], 'init_from=README.md cannot be read as weights'),
    (['--init_from=docs'], 'init_from=docs is a folder without a checkpoint'),
    (['--init_map=a=b'], 'init_map=a=b has no effect without init_from'),
    (['--init_from=x', '--check'], 'init_from=x has no effect on check')])
def test_mistakes_end_before_the_graph(flags, message, capfd):
  assert main.main(['main.py', '--model=linear', *flags]) == 2
  captured = capfd.readouterr()
  assert message in captured.err and 'building the graph' not in captured.out + captured.err
