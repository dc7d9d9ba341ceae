"""A model of one's own is exported as it trained: same outputs, for any structure of inputs."""

import csv
import functools

import numpy as np
import pytest

import towers
from towers.base.usage_error import UsageError
from towers.cli.command_line import main as command_line
from towers.settings.config import Config
from towers.tensorflow_v1 import tf
from towers_tools.serving.export import open_checkpoint, open_export
from towers_tools.serving.model import build_serving
from towers_tools.trials.fingerprint import fingerprint

RANDOM = np.random.RandomState(0)
X = RANDOM.uniform(size=[23, 4]).astype(np.float32)
IDS = RANDOM.randint(5, size=[23]).astype(np.int32)
LABELS = (X.sum(1) > 2).astype(np.int32)


def net(x, ids):
  """Two outputs, by variables of both kinds, one of them with a name that is used again."""
  with tf.device('/device:CPU:0'):  # Which the export leaves out.
    table = tf.get_variable('table', [5, 4])
    hidden = x + tf.gather(table, ids)
    for _ in range(2):
      hidden = tf.tanh(tf.matmul(hidden, tf.Variable(tf.eye(4), name='square')))
    logits = tf.matmul(hidden, tf.get_variable('weights', [4, 2]))
  return {'logits': logits, 'code': hidden[:, 0]}


def losses(outputs, labels):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs['logits'])


# By structure: examples, what a model takes of a batch, what predict takes, and its inputs.
STRUCTURES = {
    'tuple': (lambda n: towers.from_arrays(X[:n], IDS[:n], LABELS[:n]), lambda batch: batch,
              lambda x, ids: net(x, ids), dict(x=X, ids=IDS)),
    'one': (lambda n: towers.from_arrays(X[:n]),
            lambda batch: (batch[0], tf.zeros_like(batch[0][:, 0], tf.int32),
                           tf.cast(batch[0][:, 1] > 0.5, tf.int32)),
            lambda x: net(x, tf.zeros_like(x[:, 0], tf.int32)), dict(x=X)),
    'dict': (lambda n: towers.from_arrays(dict(x=X[:n], ids=IDS[:n], y=LABELS[:n])),
             lambda batch: (batch['x'], batch['ids'], batch['y']),
             lambda **features: net(features['x'], features['ids']), dict(x=X, ids=IDS)),
    'nested': (lambda n: towers.Examples(
        n, lambda *_: tf.data.Dataset.range(n), arrays=(X[:n], IDS[:n], LABELS[:n]),
        parse_batch=lambda indices, *arrays: (
            dict(zip(('x', 'ids'), [tf.gather(array, indices) for array in arrays])),
            tf.gather(arrays[2], indices))),
               lambda batch: (batch[0]['x'], batch[0]['ids'], batch[1]),
               lambda features: net(features['x'], features['ids']), dict(x=X, ids=IDS))}


def train(structure, folder, **settings):
  """Trains some steps; returns the program, predict, and what the program computes itself."""
  make, unpack, predict, inputs = STRUCTURES[structure]
  outputs = []

  def model(batch, is_training):
    x, ids, labels = unpack(batch)
    outputs.append(net(x, ids))
    return losses(outputs[-1], labels)

  with tf.Graph().as_default():
    program = towers.Program(model, train=make(23), validation=make(23)._replace(name='validation'),
                             batch_size=24, device='cpu', tower_build='reuse',
                             optimizer=tf.train.AdamOptimizer(0.05), **settings)
  first = outputs[:len(program.towers)]  # A validation tower comes later.
  with program.session() as session:
    for _ in range(5):
      session.train()
    session.save(str(folder))
    values = session.run([first, [batch.num_examples for batch in program.batches]],
                         {program.validation.is_validating: True})
  computed = {name: np.concatenate([of_tower[name][:count] for of_tower, count in zip(*values)])
              for name in first[0]}
  return program, predict, inputs, computed


@pytest.mark.nightly(but='tuple')
@pytest.mark.parametrize('structure, settings', [
    ('tuple', dict(num_towers=2)), ('dict', dict(num_towers=1, staging_depth=0)),
    ('nested', dict(num_towers=3, variables='replicated', input_mode='next')),
    ('one', dict(num_towers=2, input_mode='split', staging_depth=2))],
                         ids=['tuple', 'dict', 'nested', 'one'])
def test_what_is_exported_computes_what_the_program_did(structure, settings, tmp_path):
  program, predict, inputs, computed = train(structure, tmp_path / 'saved', **settings)
  folder = towers.export(program, str(tmp_path / 'served'), predict=predict,
                         checkpoint_dir=str(tmp_path / 'saved'))
  assert folder == str(tmp_path / 'served' / '5')
  with open_export(folder) as (session, serving, _):
    assert set(serving.inputs) == set(inputs) and set(serving.outputs) == {'logits', 'code'}
    answers = session.run(serving.outputs, {serving.inputs[name]: inputs[name] for name in inputs})
    for op in session.graph.get_operations():
      assert op.device in ('', '/device:CPU:0') if op.name.startswith('save') else op.device == ''
  for name, values in computed.items():
    np.testing.assert_allclose(answers[name], values, atol=1e-6)
  with open_checkpoint(str(tmp_path / 'saved'), predict, program.train_examples) as opened:
    session, serving, step = opened
    again = session.run(serving.outputs, {serving.inputs[name]: inputs[name] for name in inputs})
  assert step == 5
  for name, values in answers.items():
    np.testing.assert_array_equal(again[name], values)


def test_an_input_may_have_the_name_of_a_variable(tmp_path):
  def look_up(city):
    return tf.squeeze(tf.nn.embedding_lookup(tf.get_variable('city', [5, 1]), city), 1)

  with tf.Graph().as_default():
    program = towers.Program(
        lambda batch, is_training: tf.square(look_up(batch['city']) - batch['y']),
        train=towers.from_arrays(dict(city=IDS, y=X[:, 0])), batch_size=8, num_towers=2,
        device='cpu', optimizer=tf.train.GradientDescentOptimizer(0.1))
  with program.session() as session:
    session.train()
    session.save(str(tmp_path / 'saved'))
    expected = session.predict(dict(city=IDS), look_up)
  folder = towers.export(program, str(tmp_path / 'served'), predict=look_up,
                         checkpoint_dir=str(tmp_path / 'saved'))
  with open_export(folder) as (session, serving, _):
    np.testing.assert_allclose(
        session.run(serving.outputs['output'], {serving.inputs['city']: IDS}), expected, atol=1e-6)


def test_a_net_on_arrays_is_served_what_they_are_decoded_from(tmp_path):
  program, predict, inputs, _ = train('tuple', tmp_path / 'saved', num_towers=2)
  images = RANDOM.randint(256, size=[5, 2, 2, 1]).astype(np.uint8)
  with tf.Graph().as_default(), tf.Session() as session:
    encoded = session.run([tf.image.encode_png(image) for image in images])

  def predict_files(pngs, ids):
    decoded = towers.data.decode_images(pngs, image_size=2, channels=1)
    return predict(tf.reshape(decoded / 255, [-1, 4]), ids)

  def export(**own):
    return towers.export(program, str(tmp_path / 'served'), predict=predict_files,
                         checkpoint_dir=str(tmp_path / 'saved'), inputs=own)

  with program.session() as session:
    session.restore(str(tmp_path / 'saved'))
    expected = session.predict((images.reshape(5, 4) / np.float32(255), IDS[:5]), predict)
  folder = export(pngs=tf.TensorSpec([None], tf.string), ids=tf.TensorSpec([None], tf.int32))
  with open_export(folder) as (session, serving, _):
    answers = session.run(serving.outputs, {serving.inputs['pngs']: encoded,
                                            serving.inputs['ids']: IDS[:5]})
  for name, values in expected.items():
    np.testing.assert_allclose(answers[name], values, atol=1e-6)
  for wrong in (tf.string, tf.TensorSpec([], tf.string)):
    with pytest.raises(UsageError, match='for pngs: give the shape of a batch, None for any'):
      export(pngs=wrong, ids=tf.TensorSpec([None], tf.int32))
  with pytest.raises(UsageError, match="takes ids, and a batch is a dict with pngs"):
    export(pngs=tf.TensorSpec([None], tf.string))


def test_no_answer_changes_the_next_one(tmp_path):
  def net(x):
    w = tf.get_variable('w', [4, 3])
    u = tf.get_variable('u', [1, 3], initializer=tf.ones_initializer(), trainable=False)
    v = tf.nn.l2_normalize(tf.matmul(u, w, transpose_b=True))
    new = tf.nn.l2_normalize(tf.matmul(v, w))  # Spectral normalisation moves it in each call.
    with tf.control_dependencies([u.assign(new)]):
      return tf.matmul(x, w) / tf.reduce_sum(tf.matmul(v, w) * new)

  x = RANDOM.randn(8, 4).astype(np.float32)
  with tf.Graph().as_default():
    program = towers.Program(
        lambda batch, _: tf.reduce_sum(tf.square(net(*batch)), 1), train=towers.from_arrays(x),
        batch_size=8, num_towers=2, device='cpu', optimizer=tf.train.AdamOptimizer(0.1))
  with program.session() as session:
    session.train()
    session.save(str(tmp_path / 'saved'))
    expected = session.predict(x, net)
  folder = towers.export(program, str(tmp_path / 'served'), predict=net,
                         checkpoint_dir=str(tmp_path / 'saved'))
  with open_export(folder) as (session, serving, _):
    for _ in range(2):
      np.testing.assert_allclose(session.run(
          serving.outputs['output'], {serving.inputs['x']: x}), expected, atol=1e-6)


def test_a_net_that_needs_a_number_of_rows_is_served_so_many(tmp_path, capsys):
  def logits(x):
    return tf.layers.dense(tf.reshape(x, [int(x.shape[0]), 4]), 3)

  def predict(x):
    return tf.argmax(logits(x), 1)

  x, labels = RANDOM.randn(11, 4).astype(np.float32), RANDOM.randint(3, size=11)
  with tf.Graph().as_default():
    program = towers.Program(
        lambda batch, _: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=batch[1], logits=logits(batch[0])), train=towers.from_arrays(x, labels),
        batch_size=8, last_batch='drop', num_towers=2, device='cpu',
        optimizer=tf.train.AdamOptimizer(0.1))
  with program.session() as session:
    session.train()
    session.save(str(tmp_path / 'saved'))
    expected = session.predict(x, predict)
  export = functools.partial(towers.export, program, str(tmp_path / 'served'), predict=predict,
                             checkpoint_dir=str(tmp_path / 'saved'))
  with pytest.raises(UsageError, match=r'needs a number of rows .* tf.TensorSpec\(\[8, 28, 28\]'):
    export()
  export(inputs=dict(x=tf.TensorSpec([4, 4], tf.float32)))
  np.save(str(tmp_path / 'x.npy'), x)
  assert command_line(['main.py', f"--predict={tmp_path / 'x.npy'}",
                    f"--export_dir={tmp_path / 'served'}"]) == 0
  answers = [line.split(',')[1] for line in capsys.readouterr().out.splitlines()[1:]]
  assert list(map(int, answers)) == expected.tolist()


NETS = """
import numpy as np
import towers
from towers.tensorflow_v1 import tf
x = np.random.RandomState(0).uniform(size=[60, 4]).astype(np.float32)
labels = (x.sum(1) > 2).astype(np.int32)

def load():
  return towers.from_arrays(x, labels), towers.from_arrays(x, labels, name='validation')

def net(x):
  return tf.matmul(x, tf.get_variable('weights', [4, 2]))

def model(batch, is_training):
  x, y = batch
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=net(x))

def predict(x):
  logits = net(x)
  return {'probabilities': tf.nn.softmax(logits), 'class': tf.argmax(logits, 1)}
"""
QUICK = ['--steps=4', '--batch_size=10', '--device=cpu', '--num_gpus=2',
         '--checkpoint_dir=saved']


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder with a model of one's own and its inputs, which the process is in."""
  (tmp_path / 'nets.py').write_text(NETS)
  np.save(str(tmp_path / 'x.npy'), X)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def run(*flags, **given):
  with tf.Graph().as_default():
    return command_line(['main.py', *flags], **given)


def test_the_command_line_exports_and_predicts_a_model_of_ones_own(folder, capsys):
  flags = ['--model=nets.py:model', '--data=nets.py:load', *QUICK]
  assert run(*flags, '--export_dir=served', '--report=run.html') == 0
  assert 'exported to served/4' in capsys.readouterr().out
  tables = []
  assert run('--predict=x.npy', '--export_dir=served') == 0
  tables.append(capsys.readouterr().out)
  assert run('--predict=x.npy', '--checkpoint_dir=saved', '--batch_size=7', *flags[:2]) == 0
  tables.append(capsys.readouterr().out)
  lines = tables[0].splitlines()
  assert lines[0] == 'example,class,probability' and len(lines) == 24 and tables[0] == tables[1]
  with open_export('served') as (session, serving, _):
    expected = session.run(serving.outputs['class'], {serving.inputs['x']: X})
  assert [int(line.split(',')[1]) for line in lines[1:]] == list(expected)


def test_a_script_exports_what_it_gives_and_other_outputs_are_columns(folder, capsys):
  inputs = dict(a=X, b=IDS.reshape(-1, 1))

  def load():
    return towers.from_arrays(inputs['a'], inputs['b'])

  def model(batch, is_training):
    return tf.reduce_sum(tf.matmul(batch[0], tf.get_variable('w', [4, 1])), 1)

  def predict(a, b, scale=2):
    product = tf.matmul(a, tf.get_variable('w', [4, 1]))[:, 0]
    return {'pair': tf.stack([product, scale * product], 1), 'id, of b': tf.identity(b[:, 0])}

  assert run(*QUICK, '--export_dir=served', model=model, data=load, predict=predict) == 0
  np.savez('both.npz', **inputs)
  capsys.readouterr()
  assert run('--predict=both.npz', '--export_dir=served', '--result_file=answers.csv') == 0
  rows = list(csv.reader((folder / 'answers.csv').read_text().splitlines()))
  assert rows[0] == ['example', 'id, of b', 'pair_0', 'pair_1'] and len(rows) == 24
  numbers = np.array([[float(cell) for cell in row] for row in rows[1:]])
  np.testing.assert_array_equal(numbers[:, 1], IDS)
  np.testing.assert_allclose(numbers[:, 3], 2 * numbers[:, 2], rtol=1e-6)
  for wrong, message in ((dict(a=X), 'holds a, and the model takes a, b'),
                         (dict(a=X, b=IDS[:3].reshape(-1, 1)), 'arrays of different lengths'),
                         (dict(a=X[:, :3], b=inputs['b']), 'float32 of shape [n, 4]')):
    np.savez('wrong.npz', **wrong)
    assert run('--predict=wrong.npz', '--export_dir=served') == 2
    assert message in capsys.readouterr().err
  (folder / 'damaged.npz').write_bytes(b'PK no archive')
  assert run('--predict=damaged.npz', '--export_dir=served') == 2
  assert 'damaged.npz cannot be read' in capsys.readouterr().err


def test_a_model_without_a_prediction_is_refused_before_it_trains(folder, capsys):
  (folder / 'nets.py').write_text(NETS.replace('def predict(x)', 'def other(x)'))
  flags = ['--data=nets.py:load', *QUICK, '--export_dir=served']
  assert run('--model=nets.py:model', *flags) == 2
  assert 'write one beside the model' in capsys.readouterr().err
  assert not list(folder.glob('served/*')) and not list(folder.glob('saved/*.index'))

  def model(batch, is_training):
    raise AssertionError('the model is called')

  assert run(*flags, model=model) == 2
  assert 'give it to towers.main beside the model' in capsys.readouterr().err


@pytest.mark.parametrize('structure', ['dict', 'nested'])
@pytest.mark.parametrize('predict', [
    lambda x, ids: net(x, ids), lambda features: net(features['x'], features['ids']),
    lambda **features: net(features['x'], features['ids'])], ids=['keys', 'whole', 'all'])
def test_a_dict_of_features_is_served_by_its_keys_or_whole(structure, predict):
  with tf.Graph().as_default():
    assert set(build_serving(predict, STRUCTURES[structure][0](23)).inputs) == {'x', 'ids'}


@pytest.mark.parametrize('structure, predict, message', [
    ('tuple', lambda x, ids, y, more: x, 'takes more, and a batch has 3 parts'),
    ('one', lambda x, y: x, 'takes y, and a batch has 1 part:'),
    ('one', lambda *, x: x, 'takes x, and a batch has 1 part:'),
    ('one', lambda **features: features, r'takes \*\*features, and a batch has 1 part: give it a '),
    ('dict', lambda x, user: x, 'takes user, and a batch is a dict with '),
    ('nested', lambda x, y: x, 'takes y, and a batch has 2 parts, the first a dict with x, ids: '),
    ('dict', lambda inputs: inputs.shape, 'cannot be built on its inputs, x float32 '),
    ('one', lambda x: tf.reduce_sum(x), r'returns output of shape \[\]'),
    ('one', lambda x: {'x': object()}, 'as x: return a tensor'),
    ('one', lambda x: tf.constant([1.0]), r'depends on none of its inputs \(x\)')])
def test_functions_that_do_not_fit_are_refused_by_name(structure, predict, message):
  examples = STRUCTURES[structure][0](23)
  with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
    build_serving(predict, examples)


def test_autotune_starts_over_where_a_model_of_ones_own_has_changed(folder):
  config = Config(model='nets.py:model', data='nets.py:load')
  before = fingerprint(config)
  assert fingerprint(config) == before
  assert fingerprint(config, ['train.py', '--width=3']) != before
  (folder / 'nets.py').write_text(NETS + '\n# changed\n')
  assert fingerprint(config) != before
