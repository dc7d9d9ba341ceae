"""A copied variable is the one that TensorFlow would have made, to the last attribute."""

import contextlib

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tensorflow_v1.variable_copies import _Original
from towers.graph.source import find_line

INITIALIZERS = {
    'default': None,
    'zeros': tf.zeros_initializer(),
    'ones': tf.ones_initializer(),
    'constant': tf.constant_initializer(-0.0),
    'list': tf.constant_initializer([1.0, 2.0, 3.0, 4.0]),
    'array': tf.constant_initializer(np.arange(4.0)),
    'scaled': tf.variance_scaling_initializer(2.0, 'fan_out', 'uniform'),
    'normal': tf.truncated_normal_initializer(stddev=0.1, seed=3),
    'orthogonal': tf.orthogonal_initializer(),
    'own': lambda shape, dtype, partition_info=None: tf.random_normal(shape, dtype=dtype),
    'tensor': lambda: tf.ones([2, 2]),
}
NOT_COPIED = ('array', 'own', 'tensor')


def other_creator(next_creator, **settings):
  return next_creator(**dict(settings, name='other/' + settings['name']))


@contextlib.contextmanager
def names_taken():
  """As before: the graph has an op where a scope of the second variable would be."""
  tf.constant(0, name='layer_1/weights/Assign')
  yield


# What a user may put around a variable: (name, context, whether TensorFlow is to make it).
AROUND = {
    'nothing': (contextlib.nullcontext, False),
    'scope': (lambda: tf.variable_scope('outer'), False),
    'device': (lambda: tf.device('/device:CPU:1'), False),
    'device function': (lambda: tf.device(lambda op: '/device:CPU:1'), True),
    'colocation': (lambda: tf.colocate_with(tf.get_default_graph().get_tensor_by_name('one:0')),
                   True),
    'attribute': (lambda: tf.get_default_graph()._attr_scope({'_mine': tf.AttrValue(i=1)}), True),
    'XLA': (lambda: tf.xla.experimental.jit_scope(compile_ops=True), True),
    'gradient': (lambda: tf.get_default_graph().gradient_override_map({'Add': 'Mul'}), True),
    'container': (lambda: tf.container('mine'), True),
    'control input': (lambda: tf.control_dependencies([tf.no_op('first')]), False),
    'regularizer': (lambda: tf.variable_scope('', regularizer=tf.nn.l2_loss), False),
    'partitioner': (lambda: tf.variable_scope('', partitioner=tf.fixed_size_partitioner(2)), True),
    'constraint': (lambda: tf.variable_scope('', constraint=tf.identity), True),
    'cached': (lambda: tf.variable_scope('', caching_device='/device:CPU:0'), True),
    'custom getter': (lambda: tf.variable_scope('', custom_getter=lambda getter, *args, **kwargs: (
        tf.identity(getter(*args, **kwargs)))), False),
    'another creator': (lambda: tf.variable_creator_scope(other_creator), False),
    'taken names': (names_taken, False),
}


@pytest.fixture
def copied(monkeypatch):
  """The names of all copies."""
  names = []
  is_free = _Original.is_free

  def note(self, graph, name):
    free = is_free(self, graph, name)
    names.extend([name] * free)
    return free

  monkeypatch.setattr(_Original, 'is_free', note)
  return names


def build(make_variables, is_copied, monkeypatch, placement='host'):
  """Returns all that a graph says of the variables of a function, made for the first tower."""
  with monkeypatch.context() as patched, tf.Graph().as_default() as graph:
    if not is_copied:
      patched.setattr('tensorflow_v1.variable_copies._describe', lambda *args: None)
    store = towers.build_variable_store(devices=['/device:CPU:0', '/device:CPU:1'],
                                        placement=placement)
    tf.constant(1, name='one')
    on_device = set()

    def place(op):
      if not op.device:
        on_device.add(op.name)
      return op.device or '/device:CPU:1'

    store.begin_tower(place)
    with tf.device(place), tf.name_scope('tower_0'), tf.variable_creator_scope(store.creator), \
        tf.variable_scope(tf.get_variable_scope(), use_resource=True, auxiliary_name_scope=False):
      make_variables()
    operations = graph.get_operations()
    return dict(
        nodes=[op.node_def for op in operations], numbers=[op._id for op in operations],
        lines=[find_line(op) for op in operations],
        shapes=[[str(tensor.shape) for tensor in op.outputs] for op in operations],
        names=list(graph._names_in_use.items()), on_device=on_device,
        collections={key: [describe(item) for item in graph.get_collection(key)]
                     for key in graph.get_all_collection_keys()})


def describe(item):
  """Returns all attributes of a variable and its handle, without what says which graph it is of."""
  if not isinstance(item, tf.Variable):
    return getattr(item, 'name', type(item))
  facts = {}
  for prefix, owner in ('', item), ('handle', item.handle):
    for name, value in vars(owner).items():
      if name == '_parent_trackable':
        value = value() is item
      if name not in ('_graph_key', '_tf_output', '_consumers', '_id'):
        text = str(value)
        facts[prefix + name] = getattr(value, 'name', type(value) if ' at 0x' in text else text)
  return type(item), facts


def two_layers(initializer=None, around=contextlib.nullcontext, dtype=tf.float32, **settings):
  """Makes the same two variables in two layers."""
  for layer in range(2):
    with tf.variable_scope(f'layer_{layer}'), around():
      has_shape = initializer is not INITIALIZERS['tensor']
      tf.get_variable('weights', [2, 2] if has_shape else None, dtype, initializer, **settings)
      tf.get_variable('biases', [2], dtype, tf.zeros_initializer(), **settings)


@pytest.mark.parametrize('name', INITIALIZERS)
def test_a_copy_is_what_tensorflow_makes(name, copied, monkeypatch):
  def make():
    for settings in {}, dict(trainable=False), dict(collections=['mine']), dict(dtype=tf.float64):
      with tf.variable_scope('_'.join([*settings, 'layers'])):
        two_layers(INITIALIZERS[name], **settings)

  made, expected = [build(make, is_copied, monkeypatch) for is_copied in (True, False)]
  assert made == expected
  num_weights = sum(one.endswith('/weights') for one in copied)
  assert num_weights == (0 if name in NOT_COPIED else 4)
  assert sum(one.endswith('/biases') for one in copied) == 4


@pytest.mark.parametrize('name', AROUND)
def test_whatever_stands_around_a_variable(name, copied, monkeypatch):
  around, is_made = AROUND[name]

  def make():
    two_layers()
    with tf.variable_scope('second'):
      two_layers(around=around)

  made, expected = [build(make, is_copied, monkeypatch) for is_copied in (True, False)]
  assert made == expected
  assert is_made == (not any('second' in one or 'other' in one for one in copied))


def test_a_variable_in_a_branch_or_loop_is_made_outside(copied, monkeypatch):
  def make():
    two_layers()
    tf.cond(tf.constant(True), lambda: tf.get_variable('in/a', [2, 2]).value(),
            lambda: tf.ones([2, 2]))
    tf.while_loop(lambda step: step < 2, lambda step: step + tf.cast(tf.reduce_sum(
        tf.get_variable('in/b', [2, 2])), tf.int32), [tf.constant(0)])

  made, expected = [build(make, is_copied, monkeypatch) for is_copied in (True, False)]
  assert made['nodes'] == expected['nodes'] and made['names'] == expected['names']
  assert {'in/a', 'in/b'} <= set(copied)


@pytest.mark.parametrize('placement', ['host', 'balanced'])
def test_any_difference_counts(placement, copied, monkeypatch):
  def make():
    if placement == 'balanced':
      for tower in range(2):
        tf.get_variable(f'of_tower_{tower}', [100])
      return
    for value in (0.0, -0.0, 0, False, 1.0):
      tf.get_variable(f'constant_{value}', [2], initializer=tf.constant_initializer(value))
    for shape in ([2, 3], [3, 2], [6], [2, 3, 1]):
      tf.get_variable(f'shape_{len(shape)}_{shape[0]}', shape)
    for scale in (1.0, 2.0):
      tf.get_variable(f'scale_{scale}', [2, 3], initializer=tf.variance_scaling_initializer(scale))
    for dtype in (tf.float64, tf.int32):
      tf.get_variable(f'dtype_{dtype.name}', [2, 3], dtype, tf.zeros_initializer())
    for trainable in (True, False):
      tf.get_variable(f'trainable_{trainable}', [9], trainable=trainable)

  made, expected = [build(make, is_copied, monkeypatch, placement) for is_copied in (True, False)]
  assert made == expected and not copied


def test_a_creator_around_all_towers_is_asked(copied):
  def freeze_second(next_creator, **settings):
    return next_creator(**dict(settings, trainable='layer_1' not in settings['name']))

  with tf.Graph().as_default(), tf.variable_creator_scope(freeze_second):
    store = towers.build_variable_store(devices=['/device:CPU:0'])
    with tf.variable_creator_scope(store.creator), tf.variable_scope('', use_resource=True):
      two_layers()
    assert [variable.op.name for variable in tf.trainable_variables()] == [
        'layer_0/weights', 'layer_0/biases']
  assert not copied


def test_copies_draw_numbers_of_their_own(copied):
  with tf.Graph().as_default(), tf.Session() as session:
    store = towers.build_variable_store(devices=['/device:CPU:0'])
    with tf.variable_creator_scope(store.creator), tf.variable_scope('', use_resource=True):
      two_layers()
    session.run(tf.global_variables_initializer())
    values = {name: session.run(variable) for name, variable in store.made.items()}
  assert copied == ['layer_1/weights', 'layer_1/biases']
  assert not np.array_equal(values['layer_0/weights'], values['layer_1/weights'])
