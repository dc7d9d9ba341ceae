"""A class with placeholders, and an optimizer of its own, trains as what is written on tensors."""

import itertools
import operator
import threading
import time
from unittest import mock

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm
from towers.tower.foreign.placeholders import shaped_as_fed

X = np.random.RandomState(0).randn(13, small.NUM_FEATURES).astype(np.float32)
LABELS = np.random.RandomState(1).randint(small.NUM_CLASSES, size=13)  # int64.
TRAIN = towers.from_arrays(X, LABELS)
VALIDATION = towers.from_arrays(X[:11], LABELS[:11], name='validation')


def compute(x, labels, keep_prob, is_training):
  """A net with draws, a branch, a loop and a gradient; returns its losses and logits."""
  x = batch_norm(small.dense(x, 4, 'hidden'), is_training, name='norm')
  x = tf.cond(is_training, lambda: x * (keep_prob + 0.6), lambda: x + 0.5)
  x = tf.nn.dropout(x, rate=1 - keep_prob)
  inner = tf.get_variable('inner', [4, 4])
  _, x = tf.while_loop(lambda i, _: i < 2,
                       lambda i, x: (i + 1, tf.tanh(tf.matmul(x, inner)) * keep_prob), (0, x))
  logits = small.dense(x, small.NUM_CLASSES, 'logits')
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  [gradient] = tf.gradients(tf.square(logits), x)
  return losses + tf.reduce_sum(tf.square(gradient), 1), logits


class Net:
  """Makes all in `__init__`, as in a program with one loop that feeds it."""

  def __init__(self, rows=None, keep_prob=None):
    self.x = tf.placeholder(tf.float32, [rows, small.NUM_FEATURES])
    self.labels = tf.placeholder(tf.int32, [rows])
    self.keep_prob = tf.placeholder_with_default(1.0, []) if keep_prob is None else keep_prob
    self.is_training = tf.placeholder(tf.bool)
    self.rate = tf.placeholder(tf.float32, [], 'rate')
    with tf.control_dependencies([self.x]):
      self.steps = tf.Variable(0, trainable=False, name='steps')
      self.global_step = tf.Variable(0, trainable=False, name='global_step')
    self.losses, self.logits = compute(self.x, self.labels, self.keep_prob, self.is_training)
    loss = tf.reduce_mean(self.losses)
    adam = tf.train.AdamOptimizer(self.rate)
    pairs = [(tf.clip_by_norm(gradient, 1.0), variable)
             for gradient, variable in adam.compute_gradients(loss)]
    self.train_op = adam.apply_gradients(pairs, global_step=self.steps)
    self.other_op = tf.train.MomentumOptimizer(self.rate, 0.9).minimize(
        loss, global_step=self.global_step)
    tf.summary.scalar('loss', loss)
    tf.summary.scalar('rate', self.rate)
    self.summaries = tf.summary.merge_all()
    self.saver = tf.train.Saver()

  def feed(self, x, labels, keep_prob, is_training):
    return {self.x: x, self.labels: labels, self.keep_prob: keep_prob,
            self.is_training: is_training}


def model(batch, is_training):
  net = Net()
  return towers.fed(net.feed(*batch, 0.9, is_training), net.losses)


def on_tensors(batch, is_training):
  return compute(batch[0], tf.cast(batch[1], tf.int32), tf.constant(0.9),
                 tf.convert_to_tensor(is_training))[0]


def predict(x):
  net = Net()
  return towers.fed({net.x: x, net.is_training: False}, {'logits': net.logits})


def build(model, train=TRAIN, **settings):
  return small.program(model, train=train, **dict(dict(validation=VALIDATION), **settings))


def read(model, **settings):
  """Returns losses, validations and all variables of some steps."""
  program = build(model, **settings)
  with program.session() as session:
    numbers = [session.train() for _ in range(3)]
    numbers += session.validate().values()
    numbers += session.evaluate((X[:5], LABELS[:5])).values()
    return numbers, small.read_variables(program, session)


POINTS = [(1, 'reuse', 'split'), (2, 'reuse', 'next'), (3, 'clone', 'split'), (3, 'clone', 'shard'),
          (2, 'clone', 'next'), (3, 'reuse', 'shard')]


@pytest.mark.parametrize('num_towers, tower_build, mode', small.nightly_but(POINTS[1:3], POINTS))
def test_a_class_with_placeholders_trains_as_on_tensors(num_towers, tower_build, mode, capsys):
  settings = dict(num_towers=num_towers, tower_build=tower_build, input_mode=mode)
  numbers, variables = read(model, **settings)
  told = capsys.readouterr().err
  expected_numbers, expected = read(on_tensors, **settings)
  assert numbers == pytest.approx(expected_numbers, rel=1e-6)
  assert variables.pop('steps') == variables.pop('global_step_int32') == 3
  assert variables['global_step'] == 3
  assert sorted(variables) == sorted(expected)
  for name, value in expected.items():
    np.testing.assert_allclose(variables[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
  assert told.count("the model's own AdamOptimizer and MomentumOptimizer is not used; momentum of "
                    'towers.Program trains') == 1
  assert 'no step runs' not in told


@pytest.mark.parametrize('settings', small.nightly_but([1], [0, 1, 2]))
def test_its_other_settings(settings):
  settings = [dict(accumulate=2, batch_size=6), dict(variables='replicated', batch_norm='sync'),
              dict(num_towers=3, average_weights=0.9)][settings]
  numbers, variables = read(model, **settings)
  expected_numbers, expected = read(on_tensors, **settings)
  assert numbers == pytest.approx(expected_numbers, rel=1e-6)
  assert set(variables) - set(expected) <= {'steps', 'global_step_int32'}


@pytest.mark.parametrize('settings', small.nightly_but([0], [0, 1, 2]))
def test_a_variable_that_is_fed_is_read_so_everywhere(settings):
  settings = [dict(num_towers=2, tower_build='reuse'), dict(num_towers=3, tower_build='clone'),
              dict(num_towers=2, variables='replicated')][settings]

  def of_variables(batch, is_training):
    keep_prob = tf.Variable(1.0, trainable=False, name='keep_prob')
    table = tf.get_variable('table', [small.NUM_CLASSES], trainable=False)
    net = Net(keep_prob=keep_prob)
    losses = net.losses + tf.gather(table, net.labels) * tf.gather_nd(table, [[1]])
    return towers.fed({**net.feed(*batch, 0.9, is_training), table: [1.0, 2.0, 3.0]}, losses)

  def plain(batch, is_training):
    return on_tensors(batch, is_training) + tf.gather([2.0, 4.0, 6.0], batch[1])

  numbers, variables = read(of_variables, **settings)
  expected_numbers, expected = read(plain, **settings)
  assert numbers == pytest.approx(expected_numbers, rel=1e-6)
  assert variables['keep_prob'] == 1
  for name, value in expected.items():
    np.testing.assert_allclose(variables[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def in_a_loop(is_turned):
  """A model that drops out in the turns of a loop over time, of placeholders of any number of rows,
  with the rows on the first axis or on the last."""
  turn = tf.transpose if is_turned else tf.identity

  def model(batch, is_training):
    del is_training
    x, labels = tf.placeholder(tf.float32, [None, small.NUM_FEATURES]), tf.placeholder(tf.int32)
    steps = tf.TensorArray(tf.float32, 3).unstack(tf.stack([x, 2 * x, -x]))
    weight = tf.get_variable('weight', [small.NUM_FEATURES, small.NUM_CLASSES])

    def step(time, state):
      dropped = turn(tf.nn.dropout(turn(steps.read(time)), rate=0.5))
      return time + 1, tf.tanh(tf.matmul(dropped, weight) + state)

    _, logits = tf.while_loop(lambda time, _: time < 3, step, (0, tf.matmul(x, weight)))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return towers.fed({x: batch[0], labels: batch[1]}, losses)

  return model


@pytest.mark.parametrize('is_turned', [False, True], ids=['rows first', 'rows last'])
def test_draws_in_a_loop_over_what_is_fed_are_found(is_turned, caplog):
  model = in_a_loop(is_turned)
  losses, variables = read(model, num_towers=3)
  expected_losses, expected = read(model, num_towers=1)
  assert not caplog.records
  assert losses == pytest.approx(expected_losses, rel=1e-5)
  small.assert_same_weights(variables, expected)


def test_shapes_are_noted_of_one_graph_alone():
  shapes = {'x': tf.TensorShape([7])}
  with tf.Graph().as_default(), shaped_as_fed(shapes):
    own = tf.placeholder(tf.float32, [None], 'x')
    with tf.Graph().as_default():  # As of another thread.
      other, y = [tf.placeholder(tf.float32, [None], name) for name in 'xy']
      towers.fed({y: tf.zeros([5])}, y)
  assert own.shape.as_list() == [7] and other.shape.as_list() == [None]
  assert list(shapes) == ['x']


def test_it_predicts_and_is_exported(tmp_path):
  program = build(model, num_towers=3, tower_build='clone')
  with program.session() as session:
    session.train()
    expected = session.predict((X,), predict)['logits']
    np.testing.assert_allclose(session.predict((X[:1],), predict)['logits'], expected[:1], 1e-5)
    [summary] = session.run(program.summaries)  # The one of `rate`, which nothing feeds, is not.
    assert b'loss' in summary
    session.save(str(tmp_path / 'saved'))
  folder = towers.export(program, str(tmp_path / 'served'), predict=predict,
                         checkpoint_dir=str(tmp_path / 'saved'))
  with tf.Session(graph=tf.Graph()) as session:
    signature = tf.saved_model.load(session, ['serve'], folder).signature_def['serving_default']
    found = session.run(signature.outputs['logits'].name, {signature.inputs['x'].name: X})
  np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


def test_a_number_of_rows_is_the_towers_own():
  with pytest.raises(UsageError, match=r'placeholder .*tower_0/Placeholder.*\(4, 5\).*, made in '
                                       r'.*gets .*: give it such.*\[0\] rows, .*last_batch=drop'):
    build(lambda batch, is_training: towers.fed({Net(4).x: batch[0]}, batch[0][:, 0]))

  def of_batch(batch, is_training):
    net = Net(batch[0].shape.as_list()[0])
    assert net.losses.shape.as_list() == [4]
    return towers.fed(net.feed(*batch, 0.9, is_training), net.losses)

  settings = dict(last_batch='drop', validation=None)
  with build(of_batch, **settings).session() as found, build(
      on_tensors, **settings).session() as expected:
    assert [found.train() for _ in range(2)] == pytest.approx(
        [expected.train() for _ in range(2)], rel=1e-6)


def sparse(is_fed):
  def model(batch, is_training):
    places = tf.where(tf.not_equal(batch[0], 0))
    of_batch = tf.SparseTensor(places, tf.gather_nd(batch[0], places),
                               tf.shape(batch[0], out_type=tf.int64))
    x = tf.sparse_placeholder(tf.float32) if is_fed else of_batch
    weights = tf.get_variable('weights', [small.NUM_FEATURES, 1])
    losses = tf.square(tf.sparse_tensor_dense_matmul(x, weights)[:, 0])
    return towers.fed({x: of_batch}, losses) if is_fed else losses

  return model


def test_a_sparse_placeholder():
  assert read(sparse(True))[0] == read(sparse(False))[0]


SESSIONS = {'plain': tf.Session, 'interactive': tf.InteractiveSession,
            'soft': lambda: tf.Session(config=tf.ConfigProto(allow_soft_placement=True))}
# How a class gives a weight a value in its own session.
SETS = {'': lambda *_: None,
        'assign': lambda session, weight, values, _: session.run(weight.assign(values)),
        'load': lambda session, weight, values, _: weight.load(values, session),
        'restore': lambda session, weight, _, path: tf.train.Saver([weight]).restore(session, path)}


@pytest.mark.parametrize('kind, way, num_towers', small.nightly_but(
    [('plain', 'restore', 3), ('plain', '', 2)],
    [(kind, way, num_towers) for kind in SESSIONS for way in SETS for num_towers in (1, 2, 3)]))
def test_a_session_inside_runs_and_what_it_sets_is_where_all_towers_start(
    kind, way, num_towers, tmp_path):
  values = np.arange(4 * small.NUM_FEATURES, dtype=np.float32).reshape(-1, 4) / 10
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable('hidden/weights', initializer=values)
    session.run(tf.global_variables_initializer())
    path = tf.train.Saver().save(session, str(tmp_path / 'saved'))

  def opens(batch, is_training):
    net = Net()
    weights = tf.trainable_variables()
    net.averages = tf.train.ExponentialMovingAverage(0.9).apply(weights)
    session = SESSIONS[kind]()
    session.run(tf.global_variables_initializer())
    SETS[way](session, *[weight for weight in weights if weight.op.name == 'hidden/weights'],
              values, path)
    session.close()
    return towers.fed(net.feed(*batch, 0.9, is_training), net.losses)

  settings = dict(num_towers=num_towers, tower_build='reuse', validation=None)
  with build(opens, **settings).session() as found, build(model, **settings).session() as plain:
    expected = small.read_variables(plain.program, plain)
    if way:
      expected['hidden/weights'] = values
    started = small.read_variables(found.program, found)
    for name, value in expected.items():
      np.testing.assert_array_equal(started[name], value, err_msg=name)
    if not way:
      assert found.train() == plain.train()


def test_a_batch_in_a_session_inside_is_refused():
  def runs(batch, is_training):
    tf.Session().run(batch[0])
    return on_tensors(batch, is_training)

  with pytest.raises(UsageError, match='a session of its own.*no batch'):
    build(runs)


def adam(weight, gradient):
  """An optimizer that is a function, and keeps its moments by itself."""
  m = tf.get_variable(weight.op.name + '/adam_m', weight.shape, trainable=False,
                      initializer=tf.zeros_initializer())
  return tf.group(m.assign(0.9 * m + 0.1 * gradient), weight.assign_sub(0.1 * m))


def test_an_optimizer_that_is_a_function_or_averages_are_named(capsys):
  def makes(batch, is_training):
    net = Net()
    weights = tf.trainable_variables()
    gradients = tf.gradients(tf.reduce_mean(net.losses), weights)
    net.train_op = [adam(*pair) for pair in zip(weights, gradients)]
    net.averages = tf.train.ExponentialMovingAverage(0.9).apply(weights[:1])
    return towers.fed(net.feed(*batch, 0.9, is_training), net.losses)

  assert read(makes)[0] == pytest.approx(read(model)[0], rel=1e-6)
  [line] = [line for line in capsys.readouterr().err.splitlines() if 'no step runs' in line]
  assert '/adam_m' in line
  assert 'momentum trains, and average_weights=0.999 averages' in line


OPERATORS = ('add', 'sub', 'mul', 'truediv', 'pow')


@pytest.mark.parametrize('num_towers', small.nightly_but([2], [1, 2]))
def test_what_a_ref_variable_is_to_python_a_models_own_is(num_towers):
  def build(prefix):
    def plain(batch, is_training):
      x, labels = batch
      logits = small.dense(x, small.NUM_CLASSES, 'logits')
      bias = tf.get_variable('bias', [small.NUM_CLASSES], initializer=tf.ones_initializer())
      for name in OPERATORS if bias else ():
        logits += getattr(operator, prefix + name)(bias, 2.0)
      return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return plain

  numbers, variables = read(build('i'), num_towers=num_towers)
  expected_numbers, expected = read(build(''), num_towers=num_towers)
  assert numbers == expected_numbers and np.ptp(variables['bias'])
  np.testing.assert_array_equal(variables['bias'], expected['bias'])


MADE = {
    'int64': lambda: tf.get_variable('global_step', [], tf.int64, trainable=False),
    'int32': lambda: tf.get_variable('global_step', initializer=0, trainable=False),
    'float32': lambda: tf.get_variable('global_step', [], trainable=False,
                                       initializer=tf.zeros_initializer()),
    'Variable': lambda: tf.Variable(0, trainable=False, name='global_step')}


@pytest.mark.parametrize('how, num_towers', small.nightly_but(
    [('found', 2), ('int32', 2), ('float32', 2), ('Variable', 2)],
    itertools.product(['found', *MADE], [1, 2])))
def test_a_step_that_a_model_makes_or_asks_for_is_the_programs(how, num_towers):
  def counts(batch, is_training):
    with tf.variable_scope('net'):
      step = tf.train.get_global_step()
    if how in MADE:
      step = MADE[how]()
    later = step + tf.ones([], 'int32' if how == 'Variable' else step.dtype.base_dtype)
    losses = model(batch, is_training)
    tf.train.AdamOptimizer(1 / tf.cast(later, tf.float32)).minimize(
        tf.reduce_mean(losses), global_step=step)
    return losses * tf.cast(later, tf.float32)

  def grows(batch, is_training):
    return model(batch, is_training) * tf.cast(tf.train.get_global_step() + 1, tf.float32)

  numbers, variables = read(counts, num_towers=num_towers)
  assert numbers == read(grows, num_towers=num_towers)[0]
  assert variables['global_step'] == variables['steps'] == 3
  assert variables.get({'Variable': 'global_step_int32'}.get(how, f'global_step_{how}'), 3) == 3


def waits(net):
  with tf.control_dependencies([net.train_op]):
    return tf.identity(net.losses)


def of_batch(batch):
  return tf.reduce_sum(batch[0], 1) * tf.get_variable('w', [])


def read_by_queue():
  queue = tf.train.string_input_producer(['file'])
  return tf.strings.length(tf.TextLineReader().read(queue)[1])


@pytest.mark.parametrize('returned, match', [
    (lambda net, batch: of_batch(batch) * tf.to_float(read_by_queue()),
     r'needs tower_0/ReaderReadV2, made in .*, line \d+, which takes examples by itself.*from_tfr'),
    (lambda net, batch: of_batch(batch) * tf.to_float(tf.train.range_input_producer(9).dequeue()),
     'needs tower_0/input_producer.*Dequeue, .* takes examples by itself'),
    (lambda net, batch: of_batch(batch) * tf.to_float(tf.data.make_one_shot_iterator(
        tf.data.Dataset.range(9)).get_next()), 'needs tower_0/IteratorGetNext, .* by itself'),
    (lambda net, batch: net.losses, r'needs the placeholder tower_0/Placeholder.*, made in .*'
                                    r'test_placeholders.py, line \d+, which nothing feeds: return '
                                    r'towers.fed\(\{placeholder: batch\[0\], …\}, losses\)'),
    (lambda net, batch: waits(net), 'waits for an update by its own AdamOptimizer.*towers.Program'),
    (lambda net, batch: towers.fed({'x': batch[0]}, net.losses), "the key 'x': give the placehold"),
    (lambda net, batch: towers.fed({net.x: 'x'}, net.losses), "float32.* gets 'x' from tow"),
    (lambda net, batch: towers.fed({net.x: batch[1]}, net.losses), 'float32.* gets .*int64'),
    (lambda net, batch: towers.fed({tf.sparse_placeholder(tf.float32): 1.0}, net.losses),
     'SparseTensor.* gets 1.0 from towers.fed')])
def test_what_does_not_fit_is_refused(returned, match):
  with pytest.raises(UsageError, match=match):
    build(lambda batch, is_training: returned(Net(), batch), validation=None)


def test_a_class_made_outside_is_refused():
  with tf.Graph().as_default(), pytest.raises(UsageError, match='none of this call of the model'):
    net = Net()
    towers.Program(lambda batch, is_training: towers.fed({net.x: batch[0]}, net.losses),
                   train=TRAIN, batch_size=8, num_towers=2, optimizer=tf.train.AdamOptimizer())


class OwnGraph:
  """Makes a graph for itself, and a session in which its variables start."""

  def __init__(self):
    self.graph = tf.Graph()
    with self.graph.as_default():
      self.net = Net()
      self.session = tf.Session()
      self.session.run(tf.global_variables_initializer())


@pytest.mark.parametrize('num_towers', [1, 2])
def test_a_class_that_makes_a_graph_for_itself_is_refused_with_what_takes_it(num_towers):
  def own(batch, is_training):
    net = OwnGraph().net
    return towers.fed(net.feed(*batch, 0.9, is_training), net.losses)

  def joined(batch, is_training):
    with mock.patch.object(tf, 'Graph', tf.get_default_graph):
      return own(batch, is_training)

  for mistaken in (own, lambda batch, is_training: OwnGraph().net.losses):
    with pytest.raises(UsageError, match=r"for itself within unittest.mock.patch\('tensorflow.Gr"):
      build(mistaken, num_towers=num_towers)
  expected, variables = read(model, num_towers=num_towers)
  numbers, others = read(joined, num_towers=num_towers)
  assert numbers == expected
  small.assert_same_weights(others, variables, tolerance=0)


def test_a_saver_of_the_class_reads_no_replica():
  def saving(batch, is_training):
    losses = on_tensors(batch, is_training)
    tf.train.Saver()
    return losses

  settings = dict(num_towers=2, variables='replicated', tower_build='reuse')
  numbers, variables = read(saving, **settings)
  expected_numbers, expected = read(on_tensors, **settings)
  assert numbers == expected_numbers
  small.assert_same_weights(variables, expected, tolerance=0)


def test_a_predict_function_whose_placeholder_is_left_over_is_refused():
  with build(model).session() as session, pytest.raises(
      UsageError, match='needs the placeholder .*which nothing feeds'):
    session.predict((X,), lambda x: Net().logits)


def test_programs_that_threads_build_at_once_leave_each_others_optimizers_idle():
  """The one that is begun first ends first, while the other is in its model."""
  own, programs = tf.train.Optimizer.apply_gradients, []

  def build(seconds):
    def model(batch, is_training):
      time.sleep(seconds)
      net = Net()
      return towers.fed(net.feed(*batch, 0.9, is_training), net.losses)

    programs.append(small.program(model=model, train=TRAIN, validation=None))

  threads = [threading.Thread(target=build, args=[seconds]) for seconds in (0.3, 0.6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert tf.train.Optimizer.apply_gradients is own and len(programs) == 2
  for program in programs:
    assert not [op for op in program.graph.get_operations() if op.type == 'ResourceApplyAdam']
