"""Memory: a step holds what has been estimated before it, within a fifth."""

import numpy as np
import pytest

import models
import towers
from models import nasnet
from tensorflow_v1 import tf
from tests.harness.live_memory import measure_peaks
from tests.harness.small import Run, dense, nightly_but, random_examples
from towers.tower.batch_norm_layer import batch_norm
from towers.training.stepping import memory
from towers.training.stepping.memory import MemoryModel, estimate_memory, format_bytes

BATCH = 192


def classify(features, labels):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=dense(features, 3, 'logits'))


def layers(batch, is_training, num_layers=6):
  """Wide layers, so that neither activations nor weights are all."""
  del is_training
  x, labels = batch
  for index in range(num_layers):
    weights = tf.get_variable(f'weights_{index}', [x.shape[1], 160])
    x = tf.tanh(tf.matmul(x, weights))
  return classify(x, labels), {}


def images(batch, is_training):
  """Convolutions with normalisation, pooling, dropout, a skip and a branch that no step takes."""
  features, labels = batch
  x = tf.reshape(dense(features, 64, 'image'), [-1, 8, 8, 1])
  for index in range(3):
    weights = tf.get_variable(f'kernel_{index}', [3, 3, 1, 64])
    y = tf.nn.relu(batch_norm(tf.nn.conv2d(x, weights, [1, 1, 1, 1], 'SAME'), is_training,
                              name=f'norm_{index}'))
    x = x + tf.nn.max_pool(y, [1, 2, 2, 1], [1, 1, 1, 1], 'SAME')[..., index:index + 1]
  x = tf.concat([tf.reshape(x, [-1, 64]), tf.reduce_mean(y, [1, 2])], 1)
  dropped = tf.nn.dropout(x, rate=0.3)
  if is_training is True:  # Without validation.
    x = dropped
  else:
    x = tf.cond(is_training, lambda: dropped, lambda: tf.tile(x, [1, 256])[:, :128])
  return classify(x, labels), {'norm': tf.reduce_sum(tf.square(x), 1)}


def words(batch, is_training):
  """A large table, of which a batch touches few rows."""
  del is_training
  features, labels = batch
  indices = tf.cast(tf.abs(features) * 1000, tf.int32)
  table = tf.get_variable('table', [5000, 16])
  return classify(tf.reshape(tf.gather(table, indices), [-1, 5 * 16]), labels), {}


# (model, towers, other settings)
POINTS = [
    (layers, 1, {}),
    (layers, 2, dict(placement='replicated', optimizer='adam')),
    (layers, 1, dict(recompute='auto')),
    (layers, 2, dict(accumulate=2, optimizer='adam', depth=0)),
    (layers, 3, dict(placement='balanced', weight_decay=0.1, clip_norm=1.0)),
    (images, 1, {}),
    (images, 2, dict(batch_norm='sync', optimizer='adam')),
    (images, 1, dict(recompute='auto', precision='mixed')),
    (images, 2, dict(accumulate=3, validation_kind='none', placement='first')),
    (words, 1, {}),
    (words, 2, dict(accumulate=2)),
]
FAST = [POINTS[1], POINTS[9]]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
  """Lets a session run one op at a time, so that the same tensors live together each time."""
  build = towers.build_session_config

  def build_alone(*args, **settings):
    config = build(*args, **settings)
    config.inter_op_parallelism_threads = 1
    config.use_per_session_threads = True
    return config

  monkeypatch.setattr(towers, 'build_session_config', build_alone)
  monkeypatch.setattr(memory, 'count_cores_of_each', lambda _: 1)


def measure(run):
  """Returns the peak of a step on the device of each tower."""
  program = run.program
  run.steps.train()
  for _ in range(program.plan.accumulate - 1):
    run.session.run(program.gradients.add_op)
  peaks = measure_peaks(run.session, program.train_op)
  return [peaks[tower.device] for tower in program.towers]


@pytest.mark.parametrize('model, num_towers, settings', nightly_but(FAST, POINTS))
def test_a_step_holds_what_was_estimated(model, num_towers, settings):
  settings = dict(dict(batch_size=BATCH), **settings)
  with Run(model=model, num_towers=num_towers, train=random_examples(3 * BATCH), **settings) as run:
    estimate = estimate_memory(run.program)
    measured, *_ = measure(run)
  assert not estimate.unknown
  assert 0.8 * measured < estimate.step < 1.2 * measured


# (model, towers, pixels per side, examples per tower)
ZOO = [('lenet', 2, 28, 16), ('alexnet_cifar', 2, 32, 16), ('resnet20', 2, 16, 8),
       ('vgg16', 1, 32, 4), ('nasnet_cifar', 1, 32, 2)]


@pytest.mark.parametrize('model, num_towers, size, rows', nightly_but(ZOO[:1], ZOO))
def test_a_step_of_the_zoo_holds_what_was_estimated(model, num_towers, size, rows, monkeypatch):
  one_cell = nasnet._VARIANTS['cifar']._replace(num_normal=1)
  monkeypatch.setitem(nasnet._VARIANTS, 'cifar', one_cell)
  batch_size = num_towers * rows
  random = np.random.RandomState(0)
  train = towers.from_arrays(
      random.randint(256, size=[2 * batch_size + 1, size, size, 3]).astype(np.uint8),
      random.randint(10, size=2 * batch_size + 1).astype(np.int32))
  classifier = models.build_classifier(model, num_classes=10)
  with Run(model=classifier, num_towers=num_towers, train=train, validation_kind='none',
           batch_size=batch_size, optimizer='momentum') as run:
    estimates = [MemoryModel(run.program, index).estimate(batch_size)
                 for index in range(num_towers)]
    measured = measure(run)
  assert not estimates[0].unknown
  for estimate, peak in zip(estimates, measured):
    assert 0.8 * peak < estimate.step < 1.2 * peak


def test_one_model_of_a_program_estimates_any_batch():
  estimates = []
  for batch_size in (BATCH, 3 * BATCH):
    with Run(model=layers, batch_size=batch_size, train=random_examples(3 * BATCH + 1)) as run:
      found = MemoryModel(run.program)
      estimates.append([found.estimate(size) for size in (BATCH, 3 * BATCH)])
  assert estimates[0] == estimates[1]
  small, large = estimates[0]
  assert small.variables == large.variables
  assert large.batches == 3 * small.batches
  assert small.step < large.step < 3 * small.step


def test_batches_that_wait_and_variables_are_where_they_stand():
  settings = dict(num_towers=2, batch_size=8, train=random_examples(16))
  weights = 4 * (5 * 4 + 4 + 4 * 3 + 3)
  counters = 8 * 2  # Steps and examples.
  example = 4 * (5 + 1)
  for depth, optimizer, slots in [(0, 'sgd', 0), (1, 'momentum', 1), (2, 'sgd', 0)]:
    with Run(depth=depth, optimizer=optimizer, **settings) as run:
      estimate = estimate_memory(run.program)
    assert estimate.batches == (1 + depth) * 4 * example
    assert estimate.variables == weights * (1 + slots) + counters
  with Run(optimizer='sgd', accumulate=2, **settings) as run:
    # Sums of gradients, of the loss and of examples, and which micro-batch it is.
    assert estimate_memory(run.program).variables == 2 * weights + counters + 4 + 4 + 8
  with Run(optimizer='sgd', placement='replicated', **settings) as run:
    assert estimate_memory(run.program).variables >= weights


def test_what_depends_on_values_is_named():
  def loop(batch, is_training):
    del is_training
    features, labels = batch
    x = tf.while_loop(lambda turn, _: turn < 3, lambda turn, x: (turn + 1, tf.tanh(x)),
                      [0, dense(features, 8, 'first')])[1]
    return classify(x, labels), {}

  with Run(model=loop, num_towers=1, tower_build='reuse') as run:
    estimate = estimate_memory(run.program)
  assert estimate.unknown
  assert estimate.describe().startswith('at least ')


def test_bytes_are_readable():
  assert [format_bytes(num_bytes) for num_bytes in (512, 20e3, 3.62e6, 1.25e9)] == [
      '512 bytes', '20 kB', '3.6 MB', '1.25 GB']
