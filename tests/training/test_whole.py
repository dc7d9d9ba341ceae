"""A metric of a whole split is the function's value of all its examples, on any towers."""

import functools
import json

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

random = np.random.RandomState(0)
FEATURES = random.randn(40, 4).astype(np.float32)
LABELS = (FEATURES[:, 0] + 0.7 * random.randn(40) > 0.3).astype(np.int32)
NUM_TRAIN = 23  # Leaves 17 to validate on: 7, 7 and 3.


def area(numbers, labels, scores):
  """Returns the area under the ROC curve, of examples that must be all, each once, in order."""
  np.testing.assert_array_equal(numbers, np.arange(len(numbers)) + numbers[0])
  gaps = scores[labels == 1][:, None] - scores[labels == 0][None]
  return ((gaps > 0) + 0.5 * (gaps == 0)).mean()


def model(batch, is_training, function=area):
  del is_training
  numbers, features, labels = batch
  scores = small.dense(features, 1, 'logits')[:, 0]
  losses = tf.nn.sigmoid_cross_entropy_with_logits(
      labels=tf.cast(labels, tf.float32), logits=scores)
  return losses, {'mean': scores, 'auc': towers.Whole(function, [numbers, labels, scores])}


def examples(first, last, name):
  return towers.from_arrays(np.arange(first, last), FEATURES[first:last], LABELS[first:last],
                            name=name)


def build(num_towers, model=model, **settings):
  with tf.Graph().as_default():
    return towers.Program(
        model, train=examples(0, NUM_TRAIN, 'train'), validation=examples(NUM_TRAIN, 40, 'val'),
        **dict(dict(batch_size=7, num_towers=num_towers, device='cpu',
                    optimizer=tf.train.AdamOptimizer(0.1)), **settings))


@pytest.mark.nightly(but='3-settings4')
@pytest.mark.parametrize('num_towers, settings', [
    (1, {}), (2, dict(input_mode='next', tower_build='clone', last_batch='pad')),
    (3, dict(input_mode='shard')), (5, dict(variables='replicated', average_weights=0.9)),
    (3, dict(validation_tower=True))])
def test_the_function_gets_all_examples_in_order(num_towers, settings, tmp_path):
  program = build(num_towers, **settings)
  with program.session() as session:
    for _ in range(4):
      session.train()
    weights, biases = [session.run(
        (program.averages.variables if program.averages else names)[f'logits/{name}'])
                       for name in ('weights', 'biases')
                       for names in [{v.op.name: v for v in tf.trainable_variables()}]]
    found = session.validate(), session.validate()
    others = session.evaluate(examples(3, 20, 'test'))
    path = session.save(str(tmp_path))
    assert session.metrics().keys() == {'loss', 'mean'}
  scores = FEATURES.dot(weights)[:, 0] + biases[0]
  expected = area(np.arange(17), LABELS[NUM_TRAIN:], scores[NUM_TRAIN:])
  assert found[0] == found[1] and found[0]['auc'] == pytest.approx(expected, abs=1e-9)
  expected = area(np.arange(17), LABELS[3:20], scores[3:20])
  assert others['auc'] == pytest.approx(expected, abs=1e-9)
  after = towers.evaluate(path, model, examples(3, 20, 'test'), batch_size=6, num_towers=2,
                          device='cpu')
  assert after['auc'] == others['auc']


def test_the_best_weights_are_chosen_by_it(tmp_path):
  values = iter([0.2, 0.7, 0.4])
  program = build(2, model=lambda batch, is_training: model(
      batch, is_training, lambda *rows: next(values)))
  result = towers.train(program, steps=6, validate_every='2', best_metric='auc',
                        checkpoint_dir=str(tmp_path))
  assert result['validation_auc'] == 0.4
  with build(1).session() as session:
    session.restore(str(tmp_path), best=True)
    assert session.step == 4


def confused(numbers, labels, scores):
  """Returns the confusion matrix."""
  area(numbers, labels, scores)
  return np.histogram2d(labels, scores > 0, [[0, 0.5, 1]] * 2)[0]


@pytest.mark.parametrize('num_workers, num_towers, mode', small.nightly_but(
    [(2, 1, 'next')],
    [(2, 2, 'shard'), (2, 3, 'split'), (2, 1, 'next'), (3, 1, 'split'), (3, 2, 'shard')]))
def test_a_value_of_any_shape_is_the_same_on_any_workers(num_workers, num_towers, mode):
  settings = dict(model=functools.partial(model, function=confused), mode=mode, batch_size=7,
                  train=examples(0, NUM_TRAIN, 'train'), validation=examples(NUM_TRAIN, 40, 'val'))
  with small.Run(num_towers=1, **settings) as one, InProcessCluster(
      num_workers=num_workers, num_towers=num_towers, **settings) as cluster:
    expected, found = one.validate()[0], [means for means, _ in cluster.each(small.Run.validate)]
  matrix = expected.pop('auc')
  assert matrix.shape == (2, 2) and matrix.sum() == 17 and matrix.min() > 0
  for means in found:
    np.testing.assert_array_equal(means.pop('auc'), matrix)
    assert means == pytest.approx(expected, abs=1e-6)


def test_a_matrix_is_in_the_result_and_no_curve(tmp_path):
  program = build(2, model=functools.partial(model, function=confused))
  folder = str(tmp_path / 'checkpoints')
  result = towers.train(program, steps=2, validate_every='1', checkpoint_dir=folder,
                        result_file=str(tmp_path / 'result.json'), summary_dir=str(tmp_path / 'of'))
  with build(1, model=functools.partial(model, function=confused)).session() as session:
    session.restore(folder)
    assert session.validate()['auc'].tolist() == result['validation_auc']
  assert json.loads((tmp_path / 'result.json').read_text()) == result


@pytest.mark.nightly(but='settings1')
@pytest.mark.parametrize('settings', [{}, dict(input_mode='shard')])
def test_rows_of_sizes_that_differ_are_a_list(settings):
  lengths = [3, 1, 7, 2, 6, 4, 5]
  def measure(rows):
    assert isinstance(rows, list) and [row[0] for row in rows] == list(range(7))
    return len(rows)

  def padded_model(batch, is_training):
    del is_training
    tokens, _ = batch
    losses = tf.reduce_sum(tf.cast(tokens, tf.float32), 1) * tf.get_variable('w', [])
    return losses, {'count': towers.Whole(measure, [tokens])}

  def read(name):
    rows = np.empty(7, object)
    rows[:] = [np.full([length], number) for number, length in enumerate(lengths)]
    return towers.padded(towers.from_arrays(rows, np.arange(7), name=name), bucket_by=lengths)

  with tf.Graph().as_default():
    program = towers.Program(padded_model, train=read('train'), validation=read('val'),
                             batch_size=4, num_towers=2, device='cpu', **settings,
                             optimizer=tf.train.GradientDescentOptimizer(0.01))
    with program.session() as session:
      assert session.validate()['count'] == session.evaluate(read('test'))['count'] == 7
      predicted = session.predict(read('test'), lambda tokens, numbers: numbers)
      np.testing.assert_array_equal(predicted, np.arange(7))


def test_mistakes_name_the_metric():
  def of(function, change=lambda rows: rows):
    def changed(batch, is_training):
      losses, metrics = model(batch, is_training, function)
      return losses, dict(auc=towers.Whole(function, change(metrics['auc'].rows)))
    return changed

  with pytest.raises(UsageError, match='The metric auc .* a row for each example'):
    build(1, model=of(area, lambda rows: [*rows[:2], tf.reduce_mean(rows[2])]))
  for function, rows in (([], area), (area, area), ('auc', [])):
    with pytest.raises(UsageError, match=r'auc is towers.Whole\((list|function|str), .*\): give it '
                                         r'a function, and a list of its tensors, as towers.Whole'):
      build(1, model=of(function, lambda _, rows=rows: rows))
  with pytest.raises(UsageError, match=r'The metric auc: its function takes \(a\), and is called '
                                       r'with \(array, array, array\): give it a parameter for'):
    build(1, model=of(lambda a: 0.5))
  with build(1, model=of(lambda *rows: 'good')).session() as session, pytest.raises(
      UsageError, match="metric 'auc' returned <U4: let it return a number"):
    session.validate()
  with pytest.raises(UsageError, match=r'best_metric=auc is an array of the shape \[2, 2\]: choo'):
    towers.train(build(1, model=of(lambda *rows: np.eye(2))), steps=1, best_metric='auc')
