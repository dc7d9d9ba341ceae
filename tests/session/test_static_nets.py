"""A net that holds the number of rows of its batch measures and predicts at that number."""

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

X = np.random.RandomState(0).randn(24, 3, 4).astype(np.float32)


def net(x):
  size = x.shape.as_list()[0]
  return small.dense(tf.reshape(x, [size, 12]) + tf.zeros([size, 1]), 2, 'layer')


def open_net(x):
  return small.dense(tf.reshape(x, [-1, 12]), 2, 'layer')


def model_of(net):
  return lambda batch, is_training: tf.reduce_mean(tf.square(net(batch[0])), 1)


def build(net, train=X, **settings):
  return small.program(model_of(net), train=towers.from_arrays(train),
                       **dict(dict(batch_size=6, validation=None), **settings))


@pytest.mark.parametrize('settings', small.nightly_but([1], range(3)))
def test_it_is_filled_up_and_cut(settings, tmp_path):
  settings = [dict(num_towers=1), dict(num_towers=2, last_batch='drop', train=X[:22]),
              dict(num_towers=4, last_batch='carry', train=X[:22])][settings]
  static, dynamic = build(net, **settings), build(open_net, **settings)
  with static.session() as found, dynamic.session() as expected:
    for session in (found, expected):
      session.train()
    for num_rows in (1, 6, 23):
      rows = X[:num_rows],
      np.testing.assert_allclose(found.predict(rows, net), expected.predict(rows, open_net), 1e-5)
      assert found.evaluate(rows) == pytest.approx(expected.evaluate(rows), rel=1e-6)
    batches = [(X[:20],), (X[20:],)]
    np.testing.assert_allclose(found.predict(iter(batches), net),
                               expected.predict((X,), open_net), 1e-5)
    found.save(str(tmp_path))
    assert towers.evaluate(str(tmp_path), model_of(net), (X,), num_towers=2, batch_size=7,
                           device='cpu') == pytest.approx(found.evaluate((X,)), rel=1e-6)


def test_a_batch_of_any_size_is_refused_with_the_setting():
  with pytest.raises(UsageError, match=r'an open size of a batch.*\((\?|None), 3, 4\).*'
                                       'or of a placeholder .*last_batch=drop or carry'):
    build(net, train=X[:22])
  with build(open_net, train=X[:22]).session() as session, pytest.raises(
      UsageError, match='last_batch=drop or carry'):
    session.predict((X[:3],), net)


def test_a_mean_is_of_full_batches_alone():
  means = [lambda batch, is_training, net=net: tf.reduce_mean(tf.square(net(batch[0])))
           for net in (net, open_net)]
  static, dynamic = [small.program(mean, train=towers.from_arrays(X), batch_size=6,
                                   validation=None) for mean in means]
  with static.session() as found, dynamic.session() as expected:
    for num_rows in (3, 12, 15):
      rows = X[:num_rows],
      assert found.evaluate(rows) == pytest.approx(expected.evaluate(rows), rel=1e-6)
    with pytest.raises(UsageError, match='batches of 3 rows alone, and its loss is a scalar, the '
                                         'mean over a batch, of which one has 2: give as many'):
      found.evaluate((X[:5],))


def test_a_loss_of_the_rows_of_all_towers_is_of_full_batches_of_all():
  def loss(batch, is_training):
    rows = towers.all_rows(net(batch[0]))
    return tf.reduce_sum(tf.square(rows)) / float(rows.shape.num_elements())

  with small.program(loss, train=towers.from_arrays(X), batch_size=6, last_batch='drop',
                     validation=None).session() as session:
    expected = np.mean(np.square(session.predict((X,), net)))
    assert session.evaluate((X,))['loss'] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(UsageError, match='batches of 6 rows alone, .* of which one has 2'):
      session.evaluate((X[:8],))
