"""Any Keras model: N towers are one, and what Keras keeps in its layers reaches the step once."""

import os

import numpy as np
import pytest

import towers
from models.keras_model import KerasModel
from tests.harness import small
from tests.harness.processes import output_of
from towers.base.usage_error import UsageError
from towers.data import load_synthetic
from towers.tensorflow_v1 import load_keras, tf
from towers_tools.serving.export import open_export

keras = load_keras()
OUTPUTS = 'outputs'
LOSS = 'sparse_categorical_crossentropy'


def collect_outputs(labels, outputs):
  """A metric that leaves the towers' outputs in a collection."""
  del labels
  tf.add_to_collection(OUTPUTS, outputs)
  return outputs[:, 0]


def make_functional(penalty=None):
  inputs = keras.layers.Input([small.NUM_FEATURES])
  x = keras.layers.Dense(4, activation='tanh', kernel_regularizer=penalty, name='hidden')(inputs)
  return keras.Model(inputs,
                     keras.layers.Dense(small.NUM_CLASSES, activation='softmax', name='logits')(x))


def make_sequential(*layers):
  """A model whose variables are made only when it is called."""
  return lambda: keras.Sequential([layer() for layer in layers] + [
      keras.layers.Dense(small.NUM_CLASSES, activation='softmax', name='logits')], name='net')


def plain_model(batch, is_training):
  """`make_functional` on tf.get_variable, with a penalty of 0.1 times the squares."""
  del is_training
  features, labels = batch
  initializer, zeros = tf.glorot_uniform_initializer(), tf.zeros_initializer()
  kernel = tf.get_variable('hidden/kernel', [small.NUM_FEATURES, 4], initializer=initializer)
  x = tf.tanh(tf.matmul(features, kernel) + tf.get_variable('hidden/bias', [4], initializer=zeros))
  tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 0.1 * tf.reduce_sum(tf.square(kernel)))
  logits = tf.matmul(
      x, tf.get_variable('logits/kernel', [4, small.NUM_CLASSES], initializer=initializer))
  logits += tf.get_variable('logits/bias', [small.NUM_CLASSES], initializer=zeros)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


@pytest.mark.nightly(but='3-host-clone')
@pytest.mark.parametrize('num_towers,placement,build', [
    (3, 'host', 'clone'), (1, 'host', 'reuse'), (3, 'balanced', 'reuse')])
def test_towers_of_a_keras_model_are_one_and_count_penalties_once(num_towers, placement, build):
  model = KerasModel(lambda: make_functional(keras.regularizers.l2(0.1)),
                     metrics={'accuracy': 'sparse_categorical_accuracy'}, loss=LOSS)
  with small.Run(model=model, num_towers=num_towers, placement=placement, tower_build=build,
                 validates=True) as run, \
      small.Run(model=plain_model, num_towers=1, validates=True) as one:
    assert sorted(run.weights()) == ['hidden/bias', 'hidden/kernel', 'logits/bias', 'logits/kernel']
    small.assert_same_weights(run.initial_weights, one.initial_weights, tolerance=0)
    for _ in range(5):
      assert run.train() == pytest.approx(one.train(), abs=1e-5)
    small.assert_same_weights(run.weights(), one.weights())
    means, num_examples = run.validate()
    assert means['loss'] == pytest.approx(one.validate()[0]['loss'], abs=1e-5)
    assert 0 <= means['accuracy'] <= 1 and num_examples == 11
    devices = {variable.device for variable in model.layers.weights}
    assert len(devices) == (3 if placement == 'balanced' else 1)


@pytest.mark.nightly
def test_a_penalty_on_activations_is_a_mean_over_examples():
  def losses(num_towers, penalty=None):
    model = KerasModel(
        make_sequential(lambda: keras.layers.Dense(4, activity_regularizer=penalty, name='hidden')),
        loss=LOSS)
    with small.Run(model=model, num_towers=num_towers) as run:
      return np.array([run.train() for _ in range(3)])  # 8, 5 and 8 examples.

  one = losses(1, 'l2')
  np.testing.assert_allclose(losses(3, 'l2'), one, atol=1e-5)
  assert (one - losses(1) > 0.005).all()


def of_each(labels, outputs):
  return keras.losses.sparse_categorical_crossentropy(labels, outputs)


def weighted(labels, outputs):
  return towers.Weighted(of_each(labels, outputs), labels + 1)


PENALISED = {
    'example': of_each, 'weighted': weighted,
    'list': lambda labels, outputs: [of_each(labels, outputs), weighted(labels, outputs)],
    'dict': lambda labels, outputs: {'penalty': of_each(labels, outputs),
                                     'b': weighted(labels, outputs)}}


@pytest.mark.parametrize('kind', small.nightly_but(['weighted', 'dict'], PENALISED))
def test_a_penalty_on_activations_goes_with_any_losses(kind):
  def run(num_towers, penalty):
    model = KerasModel(make_sequential(lambda: keras.layers.Dense(
        4, activity_regularizer=penalty and keras.regularizers.l2(penalty), name='hidden')),
                       loss=PENALISED[kind])
    program = small.program(model, num_towers=num_towers)
    with program.session() as session:
      before = small.read_variables(program, session.tf_session)
      return before, [session.train() for _ in range(3)], session.validate()['loss']

  before, losses, measured = run(3, 0.1)
  _, of_one, measured_by_one = run(1, 0.1)
  np.testing.assert_allclose(losses, of_one, atol=1e-5)
  assert measured == pytest.approx(measured_by_one, abs=1e-5)
  [kernel] = [value for name, value in before.items() if name.endswith('hidden/kernel')]
  hidden = small.random_examples(13).arrays[0][:8] @ kernel
  without = run(1, None)[1][0]
  assert losses[0] == pytest.approx(without + 0.1 * np.sum(hidden ** 2) / 8, abs=1e-5)


@pytest.mark.parametrize('build', ['reuse', 'clone'])
def test_a_stateful_layer_is_refused_on_several_towers(build):
  def make():
    return keras.Sequential([
        keras.layers.Reshape([small.NUM_FEATURES, 1], batch_input_shape=[4, small.NUM_FEATURES]),
        keras.layers.LSTM(4, stateful=True, name='memory'),
        keras.layers.Dense(small.NUM_CLASSES, activation='softmax')])

  settings = dict(train=small.random_examples(8), validation=None, batch_size=8)
  with pytest.raises(towers.UsageError, match='The layer memory is stateful: it keeps a row for '
                     'each example of the batch, of which each of 2 towers has a share, the first '
                     '4 rows: use num_towers=1, or make'):
    small.program(KerasModel(make, loss=LOSS), num_towers=2, tower_build=build, **settings)


def test_batch_norm_updates_once_a_step_by_the_first_tower_and_never_in_validation():
  examples = small.random_examples(8)
  model = KerasModel(
      make_sequential(lambda: keras.layers.BatchNormalization(momentum=0.75, name='norm')),
      loss=LOSS)

  def averages(run):
    with run.graph.as_default():
      return run.session.run(
          [variable for variable in tf.global_variables() if 'moving_mean' in variable.op.name])[0]

  def train():
    with small.Run(model=model, num_towers=2, train=examples, validates=True) as run:
      run.validate()
      assert not averages(run).any()
      run.train()
      after = averages(run)
      run.validate()
      np.testing.assert_array_equal(averages(run), after)
      run.train()
      return after, averages(run)

  once, twice = train()
  features = np.random.RandomState(0).randn(8, small.NUM_FEATURES).astype(np.float32)
  np.testing.assert_allclose(once, 0.25 * features[:4].mean(0), rtol=1e-5)
  np.testing.assert_allclose(twice, 1.75 * once, rtol=1e-5)
  np.testing.assert_array_equal(twice, train()[1])


@pytest.mark.nightly
def test_learning_phase_follows_is_training():
  class Phases(keras.Model):
    """Takes no `training`, and one of its layers reads the learning phase by itself."""

    def __init__(self):
      super().__init__(name='phases')
      self.dense = keras.layers.Dense(small.NUM_CLASSES, activation='softmax')

    def call(self, inputs):
      return self.dense(inputs) + keras.backend.in_train_phase(tf.ones([]), tf.zeros([]))

  class TakesTraining(Phases):
    """Hands on the `training` that it is called with."""

    def call(self, inputs, training=None):
      phase = keras.backend.in_train_phase(tf.ones([]), tf.zeros([]), training=training)
      return self.dense(inputs) + phase

  for make in (Phases, TakesTraining):
    model = KerasModel(make, metrics={'outputs': collect_outputs}, loss=LOSS)
    with small.Run(model=model, num_towers=2, depth=0, validation=small.random_examples(13)) as run:
      for is_validating, expected in ((False, 4), (True, 1)):
        for outputs in run.session.run(run.graph.get_collection(OUTPUTS), {
            run.program.validation.is_validating: is_validating}):
          np.testing.assert_allclose(np.sum(outputs, 1), [expected] * 4, atol=1e-5)


def test_dropout_of_a_functional_model_is_by_place_and_what_nothing_feeds_is_not_named(caplog):
  def make():
    inputs = keras.layers.Input([small.NUM_FEATURES])
    x = keras.layers.Dropout(0.5)(inputs)
    return keras.Model(inputs, keras.layers.Dense(small.NUM_CLASSES, activation='softmax')(x))

  losses = []
  for num_towers in (1, 3):
    with small.Run(model=KerasModel(make, loss=LOSS), num_towers=num_towers) as run:
      losses.append([run.train() for _ in range(3)])
  np.testing.assert_allclose(*losses, rtol=1e-5)
  assert 'neither found nor counted' not in caplog.text


def test_frozen_layers_are_not_trained_and_their_averages_rest():
  def make():
    base = keras.Sequential(
        [keras.layers.Dense(4, name='base'),
         keras.layers.BatchNormalization(name='norm')])
    base.trainable = False
    inputs = keras.layers.Input([small.NUM_FEATURES])
    x = base(inputs, training=False)
    return keras.Model(inputs, keras.layers.Dense(small.NUM_CLASSES, activation='softmax')(x))

  with small.Run(model=KerasModel(make, loss=LOSS), num_towers=2) as run:
    before = run.variables()
    run.train()
    changed = {name.split('/')[-1] for name, value in run.variables().items()
               if (value != before[name]).any()}
    assert len(run.weights()) == 2 and 'moving_mean' not in changed
    assert not any(name.startswith('base/') and 'Momentum' in name for name in before)


def test_weights_can_be_loaded_into_the_session():
  model = KerasModel(make_functional, loss=LOSS)
  with small.Run(model=model, num_towers=2) as run, run.graph.as_default():
    keras.backend.set_session(run.session)
    model.layers.set_weights(
        [np.full(variable.shape.as_list(), 0.5, np.float32) for variable in model.layers.weights])
    assert all((value == 0.5).all() for value in run.weights().values())
    keras.backend.set_session(None)


@pytest.mark.nightly
def test_an_application_trains_and_validates_on_two_towers():
  model = KerasModel(
      lambda: keras.applications.MobileNet(alpha=0.25, weights=None, classes=4, input_shape=(
          32, 32, 3)), metrics={'accuracy': 'sparse_categorical_accuracy'}, loss=LOSS)
  data_set = load_synthetic(image_shape=(32, 32, 3), num_classes=4, num_train=8, num_validation=3)
  with small.Run(model=model, num_towers=2, batch_size=4, train=data_set.train,
                 validation=data_set.validation, learning_rate=1e-3) as run:
    assert len(run.weights()) == len(model.layers.trainable_weights) == 83
    losses = [run.train() for _ in range(2)]
    assert np.isfinite(losses).all() and run.validate()[1] == 3


def test_mistakes_are_told():
  with tf.Graph().as_default(), pytest.raises(UsageError, match='takes a function that makes the '
                                                                'model'):
    KerasModel(keras.layers.Dense(3))
  with pytest.raises(UsageError, match=r'\(inputs, labels\), and got .* several inputs are one'):
    KerasModel(lambda: 'no model')((1, 2, 3), True)
  with tf.Graph().as_default(), pytest.raises(UsageError, match="'auc' .* keeps totals of its own"):
    KerasModel(make_functional, loss=LOSS, metrics={'auc': keras.metrics.AUC()})
  with pytest.raises(UsageError, match="returned 'no model', which is no model of"):
    small.Run(model=KerasModel(lambda: 'no model'))


@pytest.mark.nightly
@pytest.mark.skipif(int(tf.__version__.split('.')[0]) == 1, reason='TensorFlow 1.14 has Keras 2 '
                                                                   'inside')
def test_keras_3_is_refused_by_name():
  code = ('from models.keras_model import KerasModel\n'
          'try: KerasModel(lambda: None)\n'
          'except ValueError as error: print(error)')
  assert 'pip install tf-keras, and set TF_USE_LEGACY_KERAS=1 before' in output_of(
      '-c', code, env=dict(os.environ, TF_USE_LEGACY_KERAS='0'))


def doubled(labels, outputs):
  return 2 * keras.losses.sparse_categorical_crossentropy(labels, outputs)


def make_compiled(loss=doubled):
  model = make_functional()
  model.compile(optimizer='adam', loss=loss, metrics=['accuracy'])
  return model


def test_a_compiled_model_brings_its_loss():
  with small.Run(model=KerasModel(make_compiled), num_towers=1) as run, \
      small.Run(model=KerasModel(make_functional, loss=doubled), num_towers=1) as same, \
      small.Run(model=KerasModel(make_compiled, loss='sparse_categorical_crossentropy'),
                num_towers=1) as given:
    for _ in range(3):
      loss = run.train()
      assert loss == same.train()
      assert loss != pytest.approx(given.train(), rel=0.1)


def test_a_keras_model_predicts_and_is_exported_as_it_trained(tmp_path):
  model = KerasModel(make_sequential(lambda: keras.layers.Dense(4, name='hidden'),
                                     lambda: keras.layers.BatchNormalization(name='norm'),
                                     lambda: keras.layers.Dropout(0.5)),
                     metrics={'first': collect_outputs}, loss=LOSS)
  examples = small.random_examples(13)
  with tf.Graph().as_default() as graph:
    program = towers.Program(model, train=examples, validation=examples._replace(name='validation'),
                             batch_size=13, num_towers=2, device='cpu', shuffle=False,
                             optimizer=tf.train.GradientDescentOptimizer(0.1))
  with program.session() as session:
    for _ in range(4):
      session.train()
    session.save(str(tmp_path / 'saved'))
    expected = np.concatenate(session.run(graph.get_collection(OUTPUTS),
                                          {program.validation.is_validating: True}))
    predicted = session.predict(examples.arrays[0], model.predict)
  np.testing.assert_allclose(predicted, expected, atol=1e-6)
  towers.export(program, str(tmp_path / 'served'), predict=model.predict,
                checkpoint_dir=str(tmp_path / 'saved'))
  with open_export(str(tmp_path / 'served')) as (session, serving, _):
    answers = session.run(serving.outputs['output'], {serving.inputs['inputs']: examples.arrays[0]})
  np.testing.assert_allclose(answers, expected, atol=1e-6)


WEIGHTS = {'kind': 1.0, 'size': 0.3}
BY_NAME = {'kind': LOSS, 'size': 'mse'}
COMPILED = {'list': dict(loss=[LOSS, 'mse'], loss_weights=[1.0, 0.3]),
            'dict': dict(loss=BY_NAME, loss_weights=WEIGHTS),
            'same for each': dict(loss='mse')}


def make_two_outputs(compiled=None, size=small.NUM_CLASSES):
  inputs = keras.layers.Input([small.NUM_FEATURES], name='features')
  x = keras.layers.Dense(4, activation='tanh', name='hidden')(inputs)
  model = keras.Model(inputs, [
      keras.layers.Dense(size, activation=size > 1 and 'softmax' or None, name='kind')(x),
      keras.layers.Dense(1, name='size')(x)])
  if compiled:
    model.compile(keras.optimizers.SGD(0.1), **compiled)
  return model


def two_outputs(model, num_towers=2):
  features, labels = small.random_examples(13).arrays
  sizes = np.float32(features.sum(1))  # A row each, for an output [n, 1].
  return small.program(
      model, train=towers.from_arrays((features, (labels, sizes))), num_towers=num_towers,
      validation=None, optimizer=tf.train.GradientDescentOptimizer(0.1)), features, labels, sizes


@pytest.mark.nightly(but='list')
@pytest.mark.parametrize('kind', COMPILED)
def test_several_outputs_train_as_in_keras(kind):
  compiled = COMPILED[kind]
  size = 1 if kind == 'same for each' else small.NUM_CLASSES
  program, features, labels, sizes = two_outputs(
      KerasModel(lambda: make_two_outputs(compiled, size)))
  with program.session() as session:
    names = [variable.op.name for variable in program.graph.get_collection('trainable_variables')]
    before = session.run(names)
    losses = [session.train() for _ in range(2)]
    after = session.run(names)
  with tf.Graph().as_default(), tf.Session():
    alone = make_two_outputs(compiled, size)
    alone.set_weights(before)
    expected = [alone.train_on_batch(features[rows], [labels[rows], sizes[rows]])[0]
                for rows in (slice(0, 8), slice(8, 13))]
    assert losses == pytest.approx(expected, abs=1e-5)
    for value, other in zip(after, alone.get_weights()):
      np.testing.assert_allclose(value, other, atol=1e-5)


def test_several_outputs_are_measured_predicted_and_exported_by_name(tmp_path, capfd):
  model = KerasModel(make_two_outputs, loss=[LOSS, 'mse'],
                     metrics={'kind_accuracy': 'sparse_categorical_accuracy'})
  program, features, labels, sizes = two_outputs(model)
  with program.session() as session:
    measured = session.evaluate((features, (labels, sizes)))
    session.save(str(tmp_path / 'saved'))
    found = session.predict((features,), model.predict)
  assert measured['size_loss'] == pytest.approx(np.mean((found['size'][:, 0] - sizes) ** 2), 1e-5)
  assert measured['kind_accuracy'] == pytest.approx(np.mean(found['kind'].argmax(1) == labels))
  capfd.readouterr()
  towers.export(program, str(tmp_path / 'served'), predict=model.predict,
                checkpoint_dir=str(tmp_path / 'saved'))
  assert 'c_api' not in capfd.readouterr().err
  with open_export(str(tmp_path / 'served')) as (session, serving, _):
    answers = session.run(serving.outputs, {serving.inputs['inputs']: features})
  for name in ('kind', 'size'):
    np.testing.assert_allclose(answers[name], found[name], atol=1e-6)


@pytest.mark.parametrize('settings, match', [
    (dict(loss=['mse']), "the outputs kind, size, and its losses are .'mse'.: give them as a list"),
    (dict(loss={'other': 'mse'}), 'its losses are .*or as a dict by these names'),
    (dict(loss=LOSS, metrics={'a': 'sparse_categorical_accuracy'}),
     "metric 'a' of KerasModel, .*has kind, size: .*metrics={'kind_a': 'sparse_categ")])
def test_what_does_not_fit_several_outputs_is_named(settings, match):
  with pytest.raises(UsageError, match=match):
    two_outputs(KerasModel(make_two_outputs, **settings))


def test_labels_that_do_not_fit_several_outputs_are_named():
  with pytest.raises(UsageError, match='the outputs kind, size, and its labels are <tf.Tensor'):
    small.program(KerasModel(make_two_outputs, loss=BY_NAME))


def test_a_dict_of_inputs_is_predicted_as_one_part():
  def make():
    inputs = {'features': keras.layers.Input([small.NUM_FEATURES], name='features')}
    return keras.Model(inputs, keras.layers.Dense(3, activation='softmax')(inputs['features']))

  features, labels = small.random_examples(13).arrays
  model = KerasModel(make, loss=LOSS)
  program = small.program(model, train=towers.from_arrays(({'features': features}, labels)),
                          validation=None)
  with program.session() as session:
    for batch in ({'features': features}, ({'features': features},)):
      assert session.predict(batch, model.predict).shape == (13, 3)


def make_of_two_inputs():
  words, numbers = [keras.layers.Input([1], name=name) for name in ('words', 'numbers')]
  joined = keras.layers.Lambda(lambda parts: 10 * parts[0] + parts[1])([words, numbers])
  dense = keras.layers.Dense(1, use_bias=False, kernel_initializer='ones')
  return keras.Model([words, numbers], dense(joined))


def test_several_inputs_go_by_their_names_and_in_the_shape_that_fit_gives_them():
  words, numbers = np.float32([[1], [2]]), np.float32([[5], [7]])
  for inputs in ({'words': words, 'numbers': numbers}, (words, numbers),
                 {'words': words[:, 0], 'numbers': numbers}, (words, numbers[:, 0])):
    model = KerasModel(make_of_two_inputs, loss='mse')
    with tf.Graph().as_default(), towers.Program(
        model, train=towers.from_arrays((inputs, words)), batch_size=2, device='cpu',
        num_towers=1, optimizer=tf.train.GradientDescentOptimizer(0.0)).session() as session:
      np.testing.assert_allclose(session.predict((inputs, words), model.predict), [[15], [27]])
      assert session.train() == np.mean(np.square([15 - 1, 27 - 2]))
  with tf.Graph().as_default(), pytest.raises(
      UsageError, match='inputs words, numbers, and the batch has words, number:'):
    towers.Program(
        KerasModel(make_of_two_inputs, loss='mse'), batch_size=2, device='cpu',
        train=towers.from_arrays(({'words': words, 'number': numbers}, words)),
        optimizer=tf.train.GradientDescentOptimizer(0.0))


@pytest.mark.parametrize('loss', ['mse', None])
def test_labels_of_an_output_of_one_number_have_its_shape(loss):
  def make():
    made = keras.Sequential([keras.layers.Dense(1, name='size')])
    made.compile('sgd', loss='mse')
    return made

  features = small.random_examples(13).arrays[0]
  sizes = np.float32(features.sum(1))
  model = KerasModel(make, loss=loss, metrics={'distance': 'mae'})
  program = small.program(model, train=towers.from_arrays((features, sizes)), validation=None)
  with program.session() as session:
    measured = session.evaluate((features, sizes))
    away = session.predict((features,), model.predict)[:, 0] - sizes
  assert measured['loss'] == pytest.approx(np.mean(away ** 2), 1e-5)
  assert measured['distance'] == pytest.approx(np.mean(np.abs(away)), 1e-5)


def far(labels, outputs):  # Of labels [n] and outputs [n, 1], as Keras's fit never gives them.
  return tf.reduce_mean(tf.abs(labels - outputs), 1)


@pytest.mark.parametrize('settings', [dict(loss=far), dict(loss='mse', metrics={'far': far})])
def test_pairs_of_labels_and_outputs_of_one_number_are_refused(settings):
  features = small.random_examples(13).arrays[0]
  with pytest.raises(UsageError, match=r'pairs of all labels, .* in tower_0/sub: take '
                                       r'outputs\[:, 0\]'):
    small.program(KerasModel(lambda: keras.layers.Dense(1), **settings), num_towers=1,
                  train=towers.from_arrays((features, features[:, 0])), validation=None)


def test_a_loss_of_keras_takes_labels_as_fit_gives_them():
  features = small.random_examples(13).arrays[0]
  for loss in (keras.losses.Huber(), keras.losses.mean_absolute_error):
    model = KerasModel(lambda: keras.layers.Dense(1, kernel_initializer='ones'), loss=loss)
    with tf.Graph().as_default(), small.program(
        model, train=towers.from_arrays((features, features.sum(1))), validation=None
    ).session() as session:
      assert session.train() == pytest.approx(0.0, abs=1e-5)


def first(labels, outputs):
  return outputs[:, 0]


def test_rows_of_bytes_are_no_images_and_a_list_names_metrics():
  words, labels = np.uint8([[3, 1], [2, 0]]), np.int32([1, 0])
  model = KerasModel(lambda: keras.Sequential([
      keras.layers.Embedding(4, 3, input_length=2), keras.layers.Flatten(), keras.layers.Dense(2)]),
      loss=LOSS, metrics=[LOSS, first])
  with small.program(model, train=towers.from_arrays((words, labels)), batch_size=2, num_towers=1,
                     validation=None).session() as session:
    assert set(session.evaluate((words, labels))) == {'loss', LOSS, 'first'}
    table, kernel, bias = session.run(tf.trainable_variables())
    expected = table[words].reshape(2, -1) @ kernel + bias
    np.testing.assert_allclose(session.predict((words,), model.predict), expected, rtol=1e-5)


@pytest.mark.parametrize('settings', [
    dict(validation_tower=True, num_towers=3), dict(placement='replicated', num_towers=2)], ids=str)
def test_a_table_is_looked_up_where_its_tower_reads_it(settings):
  words, labels = np.int32([[3, 1], [2, 0], [1, 1]]), np.int32([1, 0, 1])
  found = []
  for each in (dict(num_towers=1), settings):
    model = KerasModel(lambda: keras.Sequential([
        keras.layers.Embedding(4, 3, input_length=2), keras.layers.Flatten(),
        keras.layers.Dense(2)]), loss=LOSS)
    with small.Run(model=model, train=towers.from_arrays((words, labels)), batch_size=2,
                   validation=towers.from_arrays((words, labels), name='validation'),
                   **each) as run:
      found.append([run.train(), run.train(), run.validate()[0]['loss']])
  assert found[0] == pytest.approx(found[1], abs=1e-6)


ACCURACIES = {'binary': (1, lambda kinds: np.int32(kinds > 0)),
              'sparse': (3, lambda kinds: kinds), 'column': (3, lambda kinds: kinds[:, None]),
              'one-hot': (3, lambda kinds: np.eye(3, dtype=np.float32)[kinds])}


@pytest.mark.parametrize('kind', small.nightly_but(['binary', 'one-hot'], ACCURACIES))
def test_accuracy_is_the_one_that_fits_the_output(kind):
  number, label = ACCURACIES[kind]
  features, kinds = small.random_examples(13).arrays
  labels = label(kinds % 3)
  model = KerasModel(lambda: keras.layers.Dense(number, activation='sigmoid'),
                     loss='mse' if kind in ('binary', 'one-hot') else LOSS,
                     metrics={'accuracy': 'accuracy'})
  with small.program(model, train=towers.from_arrays((features, labels)), validation=None
                     ).session() as session:
    outputs = session.predict((features,), model.predict)
    found = outputs[:, 0] > 0.5 if number == 1 else outputs.argmax(1)
    expected = labels.argmax(1) if kind == 'one-hot' else labels.reshape(-1)
    assert session.evaluate((features, labels))['accuracy'] == pytest.approx(
        np.mean(found == expected))
