"""After a run: the best weights, a third split and predictions, the same on any towers."""

import functools
import itertools
import re

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.session import inference
from towers.tensorflow_v1 import load_keras, tf

NUM = 11
FEATURES, LABELS = small.random_examples(NUM, seed=7).arrays
FEATURES[FEATURES < -0.5] = 0.0
NUMBERS = itertools.count()


def sparse(features, labels, name):
  def parse(row, label):
    places = tf.where(tf.not_equal(row, 0))
    return tf.SparseTensor(places, tf.gather_nd(row, places), [small.NUM_FEATURES]), label

  return towers.from_dataset(
      lambda: tf.data.Dataset.from_tensor_slices((features, labels)).map(parse), name=name)


SHAPES = [dict(num_towers=1), dict(num_towers=3, validation_tower=True),
          dict(num_towers=2, variables='replicated', average_weights=0.9),
          dict(num_towers=4, last_batch='drop', input_mode='shard'),
          dict(num_towers=2, tower_build='clone', accumulate=2), dict(validates=False),
          dict(num_towers=3, of=sparse)]


def net(features):
  if isinstance(features, tf.SparseTensor):
    features = tf.sparse.to_dense(features)
  normed = tf.layers.batch_normalization(features, training=False, name='normed')
  return small.dense(normed, small.NUM_CLASSES, 'logits')


def model(batch, is_training):
  features, labels = batch
  logits = net(features)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  weights = tf.cast(labels, tf.float32)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels),
                  'weighted': towers.Weighted(logits[:, 0], weights)}


def build(num_towers=2, validates=True, model=model, of=towers.from_arrays, **settings):
  # The same examples as validation, so that this says what is right.
  validation = of(FEATURES, LABELS, name='validation') if validates else None
  return small.program(model, train=of(*small.random_examples(16).arrays, name='train'),
                       validation=validation, num_towers=num_towers, batch_size=4, **settings)


def given(kind, of=towers.from_arrays):
  if kind == 'from_arrays':
    return of(FEATURES, LABELS, name='third')
  if kind == 'examples':  # Of a function that only TensorFlow can run.
    return small.random_examples(NUM, 'third')._replace(arrays=(FEATURES, LABELS))
  if kind == 'arrays':
    return FEATURES, LABELS
  return iter([(FEATURES[first:last], LABELS[first:last]) for first, last in (
      (0, 1), (1, 8), (8, 11))])


@pytest.mark.parametrize('shape', small.nightly_but(SHAPES[1::5], SHAPES),
                         ids=lambda shape: '-'.join(shape))
def test_a_third_split_is_measured_and_predicted_on_any_towers(shape):
  of = shape.get('of', towers.from_arrays)
  program, plain = build(**shape), build(**dict(shape, of=towers.from_arrays))
  with program.session() as session, plain.session() as expected:
    losses = [session.train() for _ in range(3)]
    for kind, batch_size in (('examples', None), ('examples', 1), ('from_arrays', 3),
                             ('arrays', 100), ('batches', None)):
      found = session.evaluate(given(kind, of), batch_size=batch_size)
      if program.validation is not None:
        assert found == pytest.approx(session.validate(), abs=1e-6)
      outputs = session.predict(given(kind, of), net, batch_size=batch_size)
      assert outputs.shape == (NUM, small.NUM_CLASSES)
      assert found['accuracy'] == pytest.approx(np.mean(np.argmax(outputs, 1) == LABELS))
      np.testing.assert_allclose(found['weighted'], np.average(outputs[:, 0], weights=LABELS),
                                 atol=1e-6)
    named = session.predict(FEATURES, lambda features: {'logits': net(features),
                                                        'twice': 2 * features})
    np.testing.assert_array_equal(named['twice'], 2 * FEATURES)
    np.testing.assert_allclose(named['logits'], outputs, atol=1e-6)
    uneven = session.predict(given('batches'), lambda features, labels:
                             features[:, :1 + tf.reduce_max(labels)])  # As padded sentences are.
    assert len({len(row) for row in uneven}) > 1
    assert [row[0] for row in uneven] == FEATURES[:, 0].tolist()
    # The training has not noticed.
    losses += [session.train() for _ in range(3)]
    assert losses == [expected.train() for _ in range(6)]


def drawing(batch, is_training):
  return model((noisy(batch[0]), batch[1]), is_training)


def noisy(features):
  return tf.nn.dropout(features, rate=0.5) + tf.random.normal(tf.shape(features))


def fixed(batch, is_training):
  return model((fixed_noisy(batch[0]), batch[1]), is_training)


def fixed_noisy(features):  # As above, where the number of rows is known.
  return tf.nn.dropout(features, rate=0.5) + tf.random.normal(features.shape)


def looped(batch, is_training):
  return model((looped_noisy(batch[0]), batch[1]), is_training)


def looped_noisy(features):  # As above, of what comes out of a loop, as an RNN's last state.
  return noisy(tf.while_loop(lambda turn, _: turn < 1, lambda turn, x: (turn + 1, x),
                             (0, features))[1])


DRAWING = [dict(num_towers=1), dict(num_towers=1, accumulate=2),
           dict(num_towers=2, accumulate=2, tower_build='clone'),
           dict(num_towers=3, validation_tower=True, accumulate=2),
           dict(num_towers=4, last_batch='drop', input_mode='shard'),
           dict(num_towers=2, last_batch='pad', model=fixed),
           dict(num_towers=2, last_batch='pad', model=fixed, accumulate=2),
           dict(num_towers=3, model=looped)]


@pytest.mark.parametrize('shape', small.nightly_but(DRAWING[2:3], DRAWING),
                         ids=lambda shape: '-'.join(shape))
def test_what_is_drawn_for_a_row_is_that_of_validation_whatever_a_run_takes(
    shape, tmp_path, caplog):
  def open_session(model=drawing, **shape):
    return build(model=model, seed=3, optimizer=tf.train.GradientDescentOptimizer(0.0),
                 **shape).session()

  draw = {fixed: fixed_noisy, looped: looped_noisy}.get(shape.get('model'), noisy)
  kinds = ('from_arrays', 3), ('arrays', 1), ('arrays', 6), ('batches', None)
  with open_session(num_towers=1) as plain:
    plain.train()
    expected = plain.validate()
    outputs = [plain.predict(FEATURES, lambda features: net(noisy(features))) for _ in kinds]
  with open_session(**shape) as session:
    session.train()
    assert session.validate() == pytest.approx(expected, abs=1e-5)
    drawn = functools.partial(session.predict, function=lambda features: net(draw(features)))
    for (kind, size), output in zip(kinds, outputs):
      assert session.evaluate(given(kind), batch_size=size) == pytest.approx(expected, abs=1e-5)
      np.testing.assert_allclose(drawn(given(kind), batch_size=size), output, atol=1e-5)
    saved = session.save(str(tmp_path))
  assert towers.evaluate(saved, drawing, given('batches'), num_towers=2, batch_size=4, seed=3,
                         device='cpu') == pytest.approx(expected, abs=1e-5)
  assert 'neither found nor counted' not in caplog.text


@pytest.mark.parametrize('shape', small.nightly_but([dict(num_towers=2, accumulate=2)], [
    dict(num_towers=1), dict(num_towers=2, accumulate=2),
    dict(num_towers=2, tower_build='clone', input_mode='next'),
    dict(num_towers=3, validation_tower=True, accumulate=2)]), ids=lambda shape: '-'.join(shape))
def test_no_two_rows_of_a_pass_and_no_two_calls_of_predict_draw_the_same(shape):
  def draw(features):
    return tf.random.normal([tf.shape(features)[0]])

  def model(batch, is_training):
    noise = towers.Whole(np.array, [draw(batch[0])])
    return net(batch[0])[:, 0], {'noise': noise}

  with build(model=model, **shape).session() as session:
    session.train()
    assert len(np.unique(session.validate()['noise'])) == len(FEATURES)
    drawn = [session.predict(FEATURES, draw), session.predict(FEATURES[:1], draw),
             session.predict(FEATURES[:1], lambda features: draw(features))]
    assert len(np.unique(np.concatenate(drawn))) == len(FEATURES) + 2
    session.train()
    assert np.isin(session.predict(FEATURES, draw), drawn[0]).sum() == 0


def count_calls(monkeypatch, name):
  """Returns a list that grows by the object of each call of a method of `Forward`."""
  calls, method = [], getattr(inference.Forward, name)

  def called(self, *arguments, **settings):
    calls.append(self)
    return method(self, *arguments, **settings)

  monkeypatch.setattr(inference.Forward, name, called)
  return calls


@pytest.mark.parametrize('shape', small.nightly_but(SHAPES[2:3], SHAPES[:5]),
                         ids=lambda shape: '-'.join(shape))
def test_a_kept_function_has_the_weights_of_now(shape, tmp_path, monkeypatch):
  built, loads = count_calls(monkeypatch, '__init__'), count_calls(monkeypatch, 'load')
  program = build(**shape)
  with program.graph.as_default():
    name = 'logits/biases' + '/ExponentialMovingAverage' * (program.averages is not None)
    [variable] = [one for one in tf.global_variables() if one.op.name == name]
    add = variable.assign_add([1.0, 2.0, 3.0])

  def twice(features):
    return 2 * net(features)

  with program.session() as session:
    saved = session.save(str(tmp_path))
    keras = load_keras().backend
    keras.set_session(session.tf_session)
    by_keras = keras.function([], [add])
    handle = session.tf_session.partial_run_setup([add])
    for change in (session.train, session.train, lambda: session.run(add),
                   lambda: session.tf_session.run(add), lambda: by_keras([]),
                   lambda: session.tf_session.partial_run(handle, add),
                   session.tf_session.make_callable(add),
                   lambda: variable.load([7., 8., 9.], session.tf_session),
                   session.validate, lambda: session.restore(saved), session.train):
      change()
      weights = small.read_variables(program, session.tf_session)
      suffix = '/ExponentialMovingAverage' * (program.averages is not None)
      beta, gamma, mean, variance = [
          weights[f'normed/{part}' + suffix * (part in ('beta', 'gamma'))]
          for part in ('beta', 'gamma', 'moving_mean', 'moving_variance')]
      normed = (FEATURES - mean) / np.sqrt(variance + 1e-3) * gamma + beta
      expected = normed @ weights['logits/weights' + suffix] + weights[name]
      outputs = session.predict(FEATURES, net)
      np.testing.assert_allclose(outputs, expected, atol=2e-6)
      np.testing.assert_allclose(session.predict(FEATURES[:1], twice), 2 * expected[:1], atol=4e-6)
      # Nothing has run since, so that no weight is read.
      done = len(loads)
      for _ in range(2):
        np.testing.assert_array_equal(session.predict(FEATURES, net), outputs)
        session.predict(FEATURES[:1], twice)
      assert len(loads) == done
  assert len(built) == 2


def test_batches_of_an_iterator_have_rows_of_any_size_that_the_program_trains_on():
  def model(batch, is_training):
    words, lengths = batch
    values = words * tf.get_variable('w', [], initializer=tf.ones_initializer())
    return towers.Weighted(values, tf.sequence_mask(lengths, tf.shape(words)[1]))

  lengths = [2, 1, 3, 1]
  rows = [np.arange(1.0, size + 1, dtype=np.float32) for size in lengths]
  split = towers.padded(towers.from_arrays(rows, np.int32(lengths)))

  def batches():
    for pair in ((0, 1), (2, 3)):
      width = max(lengths[index] for index in pair)
      yield (np.stack([np.pad(rows[index], [0, width - lengths[index]], 'constant')
                       for index in pair]), np.int32([lengths[index] for index in pair]))

  def summed(words, lengths):
    return tf.reduce_sum(words, 1)

  with small.program(model, train=split, validation=None, batch_size=2).session() as session:
    np.testing.assert_allclose(session.evaluate(batches())['loss'], 11 / 7, rtol=1e-6)
    np.testing.assert_array_equal(session.predict(batches(), summed), [3, 1, 6, 1])
  other = iter([(FEATURES[:2], LABELS[:2]), (FEATURES[:2, :3], LABELS[:2])])
  with build().session() as session, pytest.raises(
      towers.UsageError, match=r'of the shape \[3\], and the first has \[5\]: give batches of one'):
    session.predict(other, lambda features, labels: tf.reduce_sum(features, 1))


@pytest.mark.parametrize('num_towers', [1, 3])
def test_no_row_has_outputs_of_no_row_in_the_shapes_that_any_have(num_towers):
  def static(features):
    return tf.reshape(net(features), [features.shape.as_list()[0], 3, 1])

  with build(num_towers, validates=False, last_batch='drop').session() as session:
    for examples, compute in (
        (FEATURES, net), ((FEATURES, LABELS), lambda features, labels: {
            'sums': net(features) + tf.cast(labels, tf.float32)[:, None], 'class': labels}),
        ({'text': np.array(['a', 'bcd'])}, lambda text: tf.strings.length(text)),
        (np.array([b'a', b'bcd'], object), tf.strings.length), (FEATURES, static)):
      any_rows = session.predict(examples, compute)
      none, gap = [session.predict(given, compute) for given in (
          tf.nest.map_structure(lambda array: array[:0], examples),
          iter([examples, tf.nest.map_structure(lambda array: array[:0], examples), examples]))]
      for found, twice, expected in zip(*map(tf.nest.flatten, (none, gap, any_rows))):
        assert found.shape == (0, *expected.shape[1:]) and found.dtype == expected.dtype
        np.testing.assert_allclose(twice, np.concatenate([expected, expected]), atol=1e-5)
    with pytest.raises(towers.UsageError, match='has 0 examples'):
      session.evaluate((FEATURES[:0], LABELS[:0]))


@pytest.mark.parametrize('num_towers', [1, 3])
def test_a_net_from_before_the_program_is_measured_and_predicts(num_towers):
  def net(features, reuse=True):
    with tf.variable_scope('net', reuse=reuse):
      return tf.matmul(features, tf.get_variable('weights', [5, 3]))

  def model(batch, is_training):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=net(batch[0]))

  validation, features = small.random_examples(9, 'validation'), np.ones([4, 5], np.float32)
  with tf.Graph().as_default():
    net(tf.zeros([1, 5]), reuse=False)
    program = towers.Program(
        model, train=small.random_examples(13), validation=validation, batch_size=6, device='cpu',
        num_towers=num_towers, optimizer=tf.train.GradientDescentOptimizer(0.1))
    with program.session() as session:
      session.train()
      assert session.evaluate(validation) == pytest.approx(session.validate())
      [weights] = session.run(tf.trainable_variables())
      np.testing.assert_allclose(session.predict(features, net), features @ weights, rtol=1e-5)


def test_a_few_functions_are_kept_and_closed_with_the_session(monkeypatch):
  built, closed = count_calls(monkeypatch, '__init__'), count_calls(monkeypatch, 'close')

  class Owner:
    def predict(self, features):
      return net(features)

  owner = Owner()
  with build().session() as session:
    for _ in range(3):
      session.predict(FEATURES[:1], owner.predict)
      session.evaluate((FEATURES, LABELS))
    assert len(built) == 2 and not closed
    for _ in range(5):
      session.predict(FEATURES[:1], lambda features: net(features))
    assert len(built) == 7 and closed == built[:3]
  assert sorted(map(id, closed)) == sorted(map(id, built))


def test_few_rows_build_no_graph_again(monkeypatch):
  with build().session() as session:
    for kind in ('from_arrays', 'arrays', 'batches'):
      session.predict(given(kind), net)
      session.evaluate(given(kind))
    monkeypatch.setattr(tf, 'Graph', None)
    monkeypatch.setattr(tf, 'Session', None)
    for kind in ('from_arrays', 'arrays', 'batches'):
      assert session.predict(given(kind), net).shape == (NUM, small.NUM_CLASSES)
      assert session.evaluate(given(kind))


# By tf.squeeze a row alone loses its axis.
@pytest.mark.parametrize('compute', [
    net, lambda features: tf.squeeze(net(features)[:, None]),
    lambda features: tf.squeeze(net(features)[:, :1]),
    lambda features: tf.squeeze(tf.strings.as_string(tf.argmax(net(features), 1))[:, None])],
                         ids=['net', 'squeezed', 'to numbers', 'to texts'])
def test_of_few_rows_only_the_towers_with_one_compute(compute, monkeypatch):
  fetched, run = [], tf.Session.run
  monkeypatch.setattr(tf.Session, 'run', lambda self, fetches, *feeds, **options: (
      fetched.append((fetches, feeds)), run(self, fetches, *feeds, **options))[1])
  with build(num_towers=4).session() as session:
    outputs = np.float64(session.predict(FEATURES, compute))
    for size in (1, 2, 3, 4, 5):
      fetched.clear()
      found = np.float64(session.predict(FEATURES[:size], compute))
      np.testing.assert_allclose(found, outputs[:size], atol=1e-6)
      assert len(fetched[0][0]) == min(size, 4) == len(fetched[0][1][0])


def net_of(left, right):
  return net(tf.concat([left, right], 1))


@pytest.mark.nightly(but='keys')
@pytest.mark.parametrize('compute', [
    net_of, lambda features: net_of(**features), lambda **features: net_of(**features)],
                         ids=['keys', 'whole', 'all'])
def test_a_dict_of_features_is_taken_by_its_keys_or_whole(compute):
  features = dict(left=FEATURES[:, :2], right=FEATURES[:, 2:])
  program = build(
      of=lambda x, y, name: towers.from_arrays((dict(left=x[:, :2], right=x[:, 2:]), y), name=name),
      model=lambda batch, is_training: model(
          (tf.concat([batch[0]['left'], batch[0]['right']], 1), batch[1]), is_training))
  with program.session() as session:
    expected = session.predict((features, LABELS), lambda given, labels: net_of(**given))
    for batch in (features, (features,), (features, LABELS)):
      np.testing.assert_array_equal(session.predict(batch, compute), expected)
    with pytest.raises(towers.UsageError, match='takes other, and a batch has 2 parts, the first a '
                       r'dict with left, right: write predict\(left, right\) with the keys'):
      session.predict((features, LABELS), lambda left, other: left)


@pytest.fixture(scope='module')
def session():
  """A session that only refuses."""
  with build().session() as session:
    yield session


MIXED = {
    'softmax': lambda features: tf.nn.softmax(net(features), axis=0),
    'mean': lambda features: net(features - tf.reduce_mean(features, 0)),
    'batch norm': lambda features: small.dense(tf.layers.batch_normalization(
        features, training=True, name='normed'), small.NUM_CLASSES, 'logits'),
    'thousandths': lambda features: {'text': tf.as_string(features), 'thousandths': tf.cast(
        1000 * tf.nn.softmax(net(features), axis=0), tf.int32)}}
OWN = {
    'net': net,
    'dropout': lambda features: tf.nn.dropout(net(features), rate=0.5),
    'noise of all': lambda features: net(features) + tf.random_normal([small.NUM_CLASSES]),
    'shuffled': lambda features: tf.random_shuffle(tf.transpose(net(features)))[0],
    'python': lambda features: tf.numpy_function(
        lambda rows: rows + np.float32(next(NUMBERS)), [features], tf.float32),
    'sum of large': lambda features: tf.reduce_sum(features * 1e8 - 1e8 * features + features, 1),
    'check': lambda features: tf.check_numerics(net(features) + 0 / (tf.reduce_sum(
        tf.math.reduce_std(features, 0)) + tf.cast(tf.shape(features)[0] < 2, tf.float32)), 'fine'),
    'half': lambda features: tf.cast(tf.nn.softmax(net(features)), tf.float16),
    'text': lambda features: tf.as_string(net(features))}


@pytest.mark.parametrize('num_towers, batch_size', [(1, 4), (3, 7)])
def test_a_function_that_mixes_rows_is_named_once_and_no_other(num_towers, batch_size, capsys):
  with build(num_towers=num_towers).session() as session:
    session.train()
    for name, compute in [*MIXED.items(), *OWN.items()]:
      capsys.readouterr()
      if name != 'check':  # Of rows that are the same, nothing can be said.
        session.predict(FEATURES[[3, 3, 3]], compute)
      assert 'WARNING' not in capsys.readouterr().out, name
      for _ in range(2):
        session.predict(FEATURES, compute, batch_size=batch_size)
      found = re.findall("WARNING: the predict function <lambda> computes '(.*)' of a row from the "
                         'rows beside it', capsys.readouterr().out)
      assert found == [name if name == 'thousandths' else 'output'] * (name in MIXED), name


@pytest.mark.nightly(but='a pair')
@pytest.mark.parametrize('compute, message', [
    (lambda features: (features, 2 * features),
     r'returns \(.*\) as output: return a tensor, or a dict of tensors by name'),
    (lambda features: small.dense(features, 2, 'other'), 'other/.* is no variable of the program'),
    (lambda features, labels, more: features, 'takes more, and a batch has 2 parts'),
    (lambda **features: features, r'takes \*\*features, and a batch has 2 parts: give it a param')],
                         ids=['a pair', 'another variable', 'another part', 'keys'])
def test_what_does_not_fit_is_refused(compute, message, session):
  with pytest.raises(towers.UsageError, match=message):
    session.predict((FEATURES, LABELS), compute)
  with pytest.raises(towers.UsageError, match='has no batch'):
    session.predict(iter([]), net)


def of_any_rank(features):
  return net(features) if features.shape.ndims == 2 else features


@pytest.mark.parametrize('call, examples, words', [
    ('evaluate', FEATURES, 'the parts 0: float32 [?, 5], and those that the program trains on '
     '0: float32 [?, 5], 1: int32 [?]: give the same structure, dtypes and shapes, as (array, '
     'array). It fails'),
    ('evaluate', (FEATURES[:, :3], LABELS), 'the parts 0: float32 [?, 3], 1: int32 [?], and'),
    ('evaluate', dict(images=FEATURES, labels=LABELS), 'images: float32 [?, 5], labels: int32 [?]'),
    ('evaluate', (FEATURES, LABELS[:, None]), '1: int32 [?, 1], and those'),
    ('evaluate', (FEATURES.astype(np.float64), LABELS), 'are 0: float64, 1: int32: cast'),
    ('evaluate', (FEATURES[0], LABELS[:5]), 'have the shape [5], as one of the program has'),
    ('predict', FEATURES[0], 'a batch axis: give [1, 5], x[:1] in place of x[0].'),
    ('predict', (FEATURES[0].tolist(),), 'give [1, 5]'), ('predict', iter([FEATURES[0]]), '[1, 5]'),
    ('predict', FEATURES[:, :3], 'the parts 0: float32 [?, 3], and those'),
    ('predict', FEATURES[:, :3], 'as (array, array), the last of which may be missing where'),
    ('predict', FEATURES.astype(np.float64), '0: float64')])
def test_examples_unlike_those_of_the_program_are_told_apart(call, examples, words, session):
  with pytest.raises(towers.UsageError) as caught:
    getattr(session, call)(examples, *([of_any_rank] if call == 'predict' else []))
  assert words in str(caught.value)


def test_a_function_that_fails_by_itself_is_not_blamed_on_its_examples(session):
  with pytest.raises(ZeroDivisionError):
    session.predict(FEATURES, lambda features: features / (1 // 0))


def test_a_prediction_that_fails_is_called_one():
  with build().session() as session:
    session.train()
    with pytest.raises(towers.RunError, match=r'Tower \d failed in predict, after 1 steps'):
      session.predict(given('arrays'), lambda features: tf.gather(
          net(features), tf.fill([tf.shape(features)[0]], 99)))
    session.train()


@pytest.mark.nightly(but='0.5')
@pytest.mark.parametrize('average_weights', [None, 0.5])
def test_the_best_of_a_run_is_restored_by_name_and_measured_without_training(
    average_weights, tmp_path):
  folder, settings = str(tmp_path), dict(average_weights=average_weights)
  recorder = small.Recorder()
  result = towers.train(build(**settings), steps=12, validate_every='2steps', checkpoint_dir=folder,
                        best_metric='accuracy', quiet=True, callbacks=[recorder])
  best = max((metrics['accuracy'], -step) for step, metrics in recorder.validations)
  with build(**settings).session() as session:
    assert session.restore(folder, best=True, best_metric='accuracy').endswith(f'{best[1]}')
    assert session.step == -best[1] and session.validate()['accuracy'] == pytest.approx(best[0])
    session.save(str(tmp_path / 'bare'))
    with pytest.raises(towers.UsageError, match='bare has no best checkpoint: no validation of on'):
      session.restore(str(tmp_path / 'bare'), best=True)
    newest = session.restore(folder)
    assert session.step == 12 and session.restore(newest) == newest
    assert session.validate()['loss'] == pytest.approx(result['validation_loss'])
    with pytest.raises(towers.UsageError, match='no checkpoint'):
      session.restore(str(tmp_path / 'none'))
    with pytest.raises(towers.UsageError, match='best_metric=f1: validation measures accuracy, lo'):
      session.restore(folder, best=True, best_metric='f1')
  found = towers.evaluate(folder, model, (FEATURES, LABELS), num_towers=3, batch_size=5,
                          device='cpu')
  assert found['accuracy'] == pytest.approx(best[0])
  found = towers.evaluate(newest, model, given('batches'), num_towers=1, device='cpu')
  assert found['loss'] == pytest.approx(result['validation_loss'], abs=1e-6)
  assert found == pytest.approx(towers.evaluate(
      folder, model, given('examples'), num_towers=2, device='cpu', best=False), abs=1e-6)
  with pytest.raises(towers.UsageError, match="model is 'linear': give a function of a batch"):
    towers.evaluate(folder, 'linear', given('examples'))


def test_the_direction_of_the_best_is_the_same_wherever_it_is_said(tmp_path, capsys):
  def distant(batch, is_training):
    losses, _ = small.model(batch, is_training)
    return losses, {'distance': losses * 2}

  program = small.program(distant, optimizer=tf.train.GradientDescentOptimizer(0.5))
  folder, recorder = str(tmp_path), small.Recorder()
  towers.train(program, steps=8, validate_every='1steps', checkpoint_every='100steps',
               checkpoint_dir=folder, best_metric='max:distance', keep_checkpoints=3,
               callbacks=[recorder])
  assert 'best validation: the largest distance\n' in capsys.readouterr().out
  found = {step: metrics['distance'] for step, metrics in recorder.validations}
  kept = [int(path.name[len('model.ckpt-'):-len('.index')]) for path in tmp_path.glob('*.index')]
  largest, smallest = [choose(kept, key=found.get) for choose in (max, min)]
  assert largest == max(found, key=found.get) != smallest
  with program.session() as session:
    for best_metric, step in ((None, largest), ('max:distance', largest), ('min:loss', smallest),
                              ('loss', smallest), ('min:distance', smallest)):
      assert session.restore(folder, best=True, best_metric=best_metric).endswith(f'-{step}')
    [line] = [line for line in capsys.readouterr().out.splitlines() if 'smallest distance' in line]
    assert 'was the largest distance, and is the smallest distance now' in line
    for ask in (lambda: session.restore(folder, best=True, best_metric='distance'),
                lambda: towers.train(program, steps=1, best_metric='distance')):
      with pytest.raises(towers.UsageError, match='best_metric=min:distance or'):
        ask()
  for best_metric, step in ((None, largest), ('min:distance', smallest)):
    assert towers.evaluate(folder, distant, small.random_examples(11, seed=1), device='cpu',
                           best_metric=best_metric)['distance'] == pytest.approx(found[step])
  capsys.readouterr()
  for path in tmp_path.glob(f'model.ckpt-{largest}.*'):
    path.unlink()
  second = max(set(kept) - {largest}, key=found.get)
  with program.session() as session:
    assert session.restore(folder, best=True).endswith(f'-{second}')
  said = capsys.readouterr().err
  assert f'best validation any more, distance {found[largest]:.4f} after step {largest}: ' in said
  assert f'that of step {second} is the best that is kept' in said
