"""Batches given by hand: one update on any of them, on any towers as on one."""

import threading

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.base.usage_error import UsageError
from towers.placement.counters import get_global_step
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf

BATCH = 8
SIZES = [8, 5, 1, 8, 3, 7]
RANDOM = np.random.RandomState(0)
BATCHES = [(RANDOM.randn(size, small.NUM_FEATURES).astype(np.float32),
            RANDOM.randint(small.NUM_CLASSES, size=size).astype(np.int32)) for size in SIZES]
LIKE = tuple(part[0] for part in BATCHES[0])


def stream():
  return towers.from_stream(like=LIKE)


def build(model=small.model, **settings):
  return small.program(model, **dict(dict(train=stream(), batch_size=BATCH), **settings))


def with_dropout(batch, is_training):
  features, labels = batch
  hidden = tf.nn.dropout(small.dense(features, 3, 'hidden'), rate=0.5)
  return small.classify(hidden, labels)


def train_plainly(batches):
  """Trains the small model by bare TensorFlow from zeros; returns losses and weights."""
  with tf.Graph().as_default(), tf.Session() as session:
    fed = [tf.placeholder(part.dtype, [None, *part.shape[1:]]) for part in BATCHES[0]]
    losses, _ = small.model(fed, True)
    loss, weights = tf.reduce_mean(losses), tf.trainable_variables()
    update = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    session.run(tf.global_variables_initializer())
    for weight in weights:
      weight.load(start_of(weight.shape.as_list()), session)
    found = [session.run([loss, update], dict(zip(fed, batch)))[0] for batch in batches]
    return found, {weight.op.name: session.run(weight) for weight in weights}


def start_of(shape):
  return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def start_alike(session):
  with session.program.graph.as_default():
    for weight in tf.trainable_variables():
      weight.load(start_of(weight.shape.as_list()), session.tf_session)


SHAPES = {'one': dict(num_towers=1), 'split': dict(num_towers=3),
          'replicated': dict(num_towers=4, variables='replicated', validation=None),
          'micro': dict(num_towers=2, accumulate=2, input_mode='next'),
          'cloned': dict(num_towers=2, tower_build='clone')}


@pytest.mark.nightly(but=['split', 'micro'])
@pytest.mark.parametrize('shape', list(SHAPES))
def test_any_towers_do_what_bare_tensorflow_does(shape):
  expected, weights = train_plainly(BATCHES)
  with build(**SHAPES[shape]).session() as session:
    start_alike(session)
    assert session.metrics() == {}
    losses = [session.train(batch) for batch in BATCHES]
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    assert session.step == len(SIZES) and session.examples_seen == sum(SIZES)
    assert session.metrics()['loss'] == pytest.approx(
        np.dot(expected, SIZES) / sum(SIZES), abs=1e-5)
    small.assert_same_weights({name: session.run(name) for name in weights}, weights)
    if session.program.validation is not None:
      session.validate()  # In turn with them.
      assert np.isfinite(session.train(BATCHES[0]))


@pytest.mark.parametrize('shape', ['one', 'split', 'micro'])
def test_a_net_whose_batch_size_is_a_number_takes_full_batches(shape):
  def model(batch, is_training):
    features, labels = batch
    return small.model([tf.reshape(features, [int(features.shape[0]), -1]), labels], is_training)

  full = [batch for batch in BATCHES if len(batch[0]) == BATCH]
  expected, weights = train_plainly(full)
  settings = dict(SHAPES[shape], last_batch='drop', validation=None)
  with build(model, **settings).session() as session:
    start_alike(session)
    with pytest.raises(UsageError, match=r'has \[5\] rows: .* component, batch_size=8\.'):
      session.train(BATCHES[1])
    np.testing.assert_allclose([session.train(batch) for batch in full], expected, atol=1e-5)
    assert session.examples_seen == BATCH * len(full)
    small.assert_same_weights({name: session.run(name) for name in weights}, weights)


@pytest.mark.parametrize('num_towers', [2, 3])
def test_draws_follow_step_and_place(num_towers):
  losses = []
  for towers_ in (1, num_towers):
    with build(with_dropout, num_towers=towers_, validation=None).session() as session:
      losses.append([session.train(batch) for batch in BATCHES])
      assert session.metrics() == {'loss': pytest.approx(np.average(losses[-1], weights=SIZES))}
  np.testing.assert_allclose(losses[1], losses[0], atol=1e-5)
  assert len({round(session_loss, 4) for session_loss in losses[0]}) == len(SIZES)


def test_two_workers_take_their_shares():
  with small.Run(train=stream(), num_towers=1) as alone, \
      InProcessCluster(num_workers=2, train=stream()) as both:
    for batch in BATCHES:
      expected = alone.opened.train(batch)
      for loss in both.each(lambda run, batch=batch: run.opened.train(batch)):
        assert loss == pytest.approx(expected, abs=1e-5)


def test_it_goes_on_from_a_checkpoint_and_counts_for_schedules(tmp_path):
  def make(num_towers):
    return build(num_towers=num_towers, optimizer=tf.train.GradientDescentOptimizer,
                 learning_rate=lambda plan: tf.train.exponential_decay(
                     0.5, get_global_step(), 1, 0.5))

  with make(1).session() as session:
    expected = [session.train(batch) for batch in BATCHES]
    assert session.learning_rate() == pytest.approx(0.5 ** 7)
  with make(2).session() as session:
    losses = [session.train(batch) for batch in BATCHES[:3]]
    session.save(str(tmp_path))
  with make(3).session() as session:
    session.restore(str(tmp_path))
    assert session.step == 3 and session.examples_seen == sum(SIZES[:3])
    losses += [session.train(batch) for batch in BATCHES[3:]]
    assert session.examples_seen == sum(SIZES)
  np.testing.assert_allclose(losses, expected, atol=1e-5)


def test_a_thread_may_train():
  losses = []
  with build().session() as session:
    thread = threading.Thread(target=lambda: losses.extend(map(session.train, BATCHES)))
    thread.start()
    thread.join()
  with build(num_towers=1).session() as session:
    np.testing.assert_allclose(losses, [session.train(batch) for batch in BATCHES], atol=1e-5)


def test_the_policy_that_makes_a_batch_is_that_of_the_step_before():
  """Each batch is the weight that the session has now, so the loss shows which one that was."""
  def model(batch, is_training):
    weight = tf.get_variable('weight', [], initializer=tf.ones_initializer())
    return tf.square(batch - weight) + 0.5 * weight

  program = build(model, train=towers.from_stream(like=np.float32(0)), validation=None,
                  optimizer=tf.train.GradientDescentOptimizer(0.25))
  with program.session() as session:
    for step in range(5):
      acted = session.predict(np.zeros(4, np.float32), lambda rows: rows + tf.get_variable(
          'weight', []))
      assert session.train(acted) == pytest.approx(0.5 * (1 - 0.125 * step), abs=1e-6)


def test_a_step_that_is_not_finite_is_named_and_counted():
  bad = (np.full_like(BATCHES[1][0], np.nan), BATCHES[1][1])
  with build().session() as session:
    session.train(BATCHES[0])
    before = session.run('hidden/weights')
    with pytest.raises(RunError, match='Step 2 is not finite'):
      session.train(bad)
    np.testing.assert_array_equal(session.run('hidden/weights'), before)
    assert session.step == 2 and session.examples_seen == 13
    assert np.isfinite(session.train(BATCHES[2])) and session.examples_seen == 14


def test_a_model_that_couples_examples_is_measured_at_the_first_batch(caplog):
  def coupled(batch, is_training):
    losses, _ = small.model(batch, is_training)
    return losses * tf.reduce_max(losses)

  with build(coupled).session() as session:
    assert 'depends on other examples' not in caplog.text
    for batch in BATCHES:
      session.train(batch)
  assert caplog.text.count('depends on other examples') == 1


features, labels = BATCHES[0]


@pytest.mark.parametrize('batch, message', [
    ((features,), r"got \('a NumPy array of shape \[8, 5\]',\), and takes arrays in the structure "
     r"\(\('float32', \[5\]\), \('int32', \[\]\)\).*: write session.train\(\(array, array\)\)\."),
    ({'x': features}, r"got {'x': 'a NumPy.*write session.train\(\(array, array\)\)"),
    (7, r'got an int, and takes .*write session.train\(\(array, array\)\)'),
    ((features[:, :3], labels), r'Component 0 .* shape \(8, 3\)'),
    ((features, labels + 0.5), 'Component 1 of the batch is float64'),
    ((features, labels[:4]), r'has \[4, 8\] rows'), ((features[:0], labels[:0]), r'has \[0\] rows'),
    ((np.tile(features, [2, 1]), np.tile(labels, 2)), 'batch_size=8'),
    ((features[0], labels[0]), 'Component 0'), (None, r'write session.train\(batch\)')])
def test_what_is_no_batch_is_refused(batch, message):
  with build().session() as session:
    with pytest.raises(UsageError, match=message):
      session.train(batch)
    assert session.step == 0 and np.isfinite(session.train(BATCHES[0])) and session.step == 1
    with pytest.raises(UsageError, match='by hand'):
      session.train()


def test_a_program_has_batches_of_its_own_or_by_hand():
  with small.program().session() as session, pytest.raises(UsageError, match='from_stream'):
    session.train(BATCHES[0])
  with pytest.raises(UsageError, match='by hand'):
    towers.train(build(), steps=2, quiet=True)
  with build().session() as session, pytest.raises(UsageError, match='by hand'):
    session.run(session.program.gradients.loss)
