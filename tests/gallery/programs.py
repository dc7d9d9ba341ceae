"""Programs of other authors, tiny, as models of towers.

Each function imports its package, so that one which is not installed skips its test alone, and
returns a model function.
"""

import importlib
from typing import Any, Callable, Dict, NamedTuple, Tuple

import numpy as np
import pytest

from models.keras_model import KerasModel
from towers.tensorflow_v1 import load_keras, tf

NUM_CLASSES = 4
NUM_WORDS = 20
# 13 over batches of 8 leaves 5, so that three towers take 3, 3, 2 and then 2, 2, 1.
NUM_EXAMPLES = 13


class Gallery(NamedTuple):
  """A program and what is known of it.

  Attributes:
    make: returns the model function.
    arrays: returns the examples.
    title: as its authors call it.
    version: of its package.
    targets: on which it runs.
    changed: what had to be changed in it, in lines.
    cause: what `towers.check` must name; '' for a program whose towers are one tower.
    stays: a pattern of the variables that do not move: by default frozen averages.
    optimizer: returns the optimizer.
  """
  make: Callable[[], Any]
  arrays: Callable[[], Any]
  title: str
  version: str
  targets: Tuple[str, ...] = ('tf1', 'tf2')
  changed: str = '0'
  cause: str = ''
  stays: str = 'moving_'
  optimizer: Callable[[], Any] = lambda: tf.train.MomentumOptimizer(0.05, 0.9)

  @property
  def runs_here(self) -> bool:
    """Whether it is a program of this TensorFlow."""
    return f"tf{tf.__version__[0]}" in self.targets


def images(size):
  random = np.random.RandomState(0)
  return (random.randn(NUM_EXAMPLES, size, size, 3).astype(np.float32),
          random.randint(NUM_CLASSES, size=NUM_EXAMPLES).astype(np.int32))


def sentences(length=6):
  """Words, and a label; word 0 fills sentences up."""
  random = np.random.RandomState(0)
  words = random.randint(1, NUM_WORDS, size=(NUM_EXAMPLES, length))
  lengths = random.randint(1, length + 1, size=NUM_EXAMPLES)
  words = np.where(np.arange(length) < lengths[:, None], words, 0).astype(np.int32)
  return words, random.randint(NUM_CLASSES, size=NUM_EXAMPLES).astype(np.int32)


def table():
  random = np.random.RandomState(0)
  features = {'age': random.uniform(18, 80, [NUM_EXAMPLES, 1]).astype(np.float32),
              'city': random.randint(7, size=(NUM_EXAMPLES, 1)).astype(np.int64),
              'trade': random.randint(5, size=(NUM_EXAMPLES, 1)).astype(np.int64)}
  return features, random.randint(NUM_CLASSES, size=NUM_EXAMPLES).astype(np.int32)


def cross_entropy(labels, logits):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def import_or_skip(name):
  return pytest.importorskip(name, reason=f'{name} is not installed: run .ci/gallery')


def resnet_v2(*, frozen):
  """slim's ResNet v2 with one unit in each of two blocks."""
  slim = importlib.import_module('tensorflow.contrib.slim')
  nets = importlib.import_module('tensorflow.contrib.slim.nets').resnet_v2

  def model(batch, is_training):
    pixels, labels = batch
    blocks = [nets.resnet_v2_block('block1', base_depth=4, num_units=1, stride=2),
              nets.resnet_v2_block('block2', base_depth=8, num_units=1, stride=1)]
    with slim.arg_scope(nets.resnet_arg_scope()):
      net, _ = nets.resnet_v2(pixels, blocks, num_classes=NUM_CLASSES, scope='resnet_v2',
                              is_training=is_training and not frozen)
    return cross_entropy(labels, tf.squeeze(net, [1, 2])), {}
  return model


def sonnet_net(*, outside):
  """A Sonnet 1 convolution and perceptron, made in the model function or once outside of it."""
  snt = import_or_skip('sonnet')

  class Net(snt.AbstractModule):

    def __init__(self, name='net'):
      super().__init__(name=name)
      with self._enter_variable_scope():
        self._conv = snt.Conv2D(4, 3, regularizers={'w': tf.keras.regularizers.l2(1e-3)})
        self._mlp = snt.nets.MLP([8, NUM_CLASSES])

    def _build(self, inputs):
      return self._mlp(snt.BatchFlatten()(tf.nn.relu(self._conv(inputs))))

  made = []

  def model(batch, is_training):
    del is_training
    pixels, labels = batch
    graph = tf.get_default_graph()
    if not outside or not made or made[0][0] is not graph:
      made[:] = [(graph, Net())]
    return cross_entropy(labels, made[0][1](pixels)), {}
  return model


def bert():
  """BERT's encoder with one layer, and the classifier of its authors' run_classifier.py."""
  modeling = import_or_skip('bert.modeling')
  config = modeling.BertConfig(
      NUM_WORDS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
      hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=8)

  def model(batch, is_training):
    words, labels = batch
    encoder = modeling.BertModel(config, is_training, words, tf.cast(words > 0, tf.int32))
    output = encoder.get_pooled_output()
    weights = tf.get_variable('output_weights', [NUM_CLASSES, output.shape[-1].value],
                              initializer=tf.truncated_normal_initializer(stddev=0.02))
    bias = tf.get_variable('output_bias', [NUM_CLASSES], initializer=tf.zeros_initializer())
    logits = tf.nn.bias_add(tf.matmul(output, weights, transpose_b=True), bias)
    return cross_entropy(labels, logits), {}
  return model


def bert_optimizer():
  optimization = import_or_skip('bert.optimization')
  return optimization.AdamWeightDecayOptimizer(
      0.01, weight_decay_rate=0.01, exclude_from_weight_decay=['LayerNorm', 'layer_norm', 'bias'])


def distilbert():
  """HuggingFace's DistilBERT for classification, with a random start."""
  transformers = import_or_skip('transformers')
  config = transformers.DistilBertConfig(
      vocab_size=NUM_WORDS, dim=8, n_heads=2, n_layers=2, hidden_dim=16, dropout=0.0,
      attention_dropout=0.0, seq_classif_dropout=0.0, max_position_embeddings=8,
      num_labels=NUM_CLASSES)
  return KerasModel(lambda: transformers.TFDistilBertForSequenceClassification(config),
                    loss=lambda labels, output: cross_entropy(labels, output.logits))


def keras_lstm():
  """Keras's LSTM over words, of which those that fill up are masked."""
  layers = load_keras().layers
  return KerasModel(lambda: load_keras().Sequential([
      layers.Embedding(NUM_WORDS, 6, mask_zero=True), layers.LSTM(5),
      layers.Dense(NUM_CLASSES, activation='softmax')]), loss='sparse_categorical_crossentropy')


def mobilenet_v2():
  """Keras's MobileNetV2 with a third of its channels."""
  return KerasModel(lambda: load_keras().applications.MobileNetV2(
      (32, 32, 3), alpha=0.35, weights=None, classes=NUM_CLASSES),
      loss='sparse_categorical_crossentropy')


def cifar10():
  """The net of TensorFlow's cifar10 tutorial (models/tutorials/image/cifar10/cifar10.py).

  Its layers, shapes, initial values and penalties are those of The TensorFlow Authors, Apache 2.0.
  It differs in two lines: the collection of penalties, and that it returns losses, not their mean.
  """
  def variable(name, shape, initializer):
    with tf.device('/cpu:0'):
      return tf.get_variable(name, shape, initializer=initializer)

  def decayed(name, shape, stddev, decay):
    made = variable(name, shape, tf.truncated_normal_initializer(stddev=stddev))
    if decay:
      # There: tf.add_to_collection('losses', …)
      tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, decay * tf.nn.l2_loss(made))
    return made

  def convolve(inputs, channels, bias):
    kernel = decayed('weights', [5, 5, inputs.shape[3], channels], 5e-2, None)
    biases = variable('biases', [channels], tf.constant_initializer(bias))
    return tf.nn.relu(tf.nn.conv2d(inputs, kernel, [1, 1, 1, 1], padding='SAME') + biases)

  def pool(inputs):
    return tf.nn.max_pool(inputs, [1, 3, 3, 1], [1, 2, 2, 1], padding='SAME')

  def norm(inputs):
    return tf.nn.lrn(inputs, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)

  def dense(inputs, size, stddev, decay, bias):
    weights = decayed('weights', [inputs.shape[1], size], stddev, decay)
    return tf.matmul(inputs, weights) + variable('biases', [size], tf.constant_initializer(bias))

  def model(batch, is_training):
    del is_training
    pixels, labels = batch
    with tf.variable_scope('conv1'):
      net = norm(pool(convolve(pixels, 64, 0.0)))
    with tf.variable_scope('conv2'):
      net = pool(norm(convolve(net, 64, 0.1)))
    net = tf.reshape(net, [-1, int(np.prod(net.shape.as_list()[1:]))])
    with tf.variable_scope('local3'):
      net = tf.nn.relu(dense(net, 384, 0.04, 0.004, 0.1))
    with tf.variable_scope('local4'):
      net = tf.nn.relu(dense(net, 192, 0.04, 0.004, 0.1))
    with tf.variable_scope('softmax_linear'):
      logits = dense(net, NUM_CLASSES, 1 / 192.0, None, 0.0)
    return cross_entropy(labels, logits), {}  # There: reduce_mean, added to 'losses'
  return model


def feature_columns():
  """A wide and deep model of `tf.feature_column`."""
  def model(batch, is_training):
    del is_training
    features, labels = batch
    columns = tf.feature_column
    age = columns.numeric_column('age', normalizer_fn=lambda years: years / 100)
    ages = columns.bucketized_column(columns.numeric_column('age'), [30., 50.])
    city = columns.categorical_column_with_identity('city', 7)
    trade = columns.categorical_column_with_hash_bucket('trade', 5, dtype=tf.int64)
    crossed = columns.crossed_column([ages, 'trade'], hash_bucket_size=11)
    wide = columns.linear_model(features, [city, crossed], units=NUM_CLASSES)
    deep = columns.input_layer(features, [
        age, columns.embedding_column(city, 3), columns.indicator_column(trade)])
    weights = tf.get_variable('weights', [deep.shape[1], NUM_CLASSES])
    return cross_entropy(labels, wide + tf.matmul(deep, weights)), {}
  return model


def dynamic_rnn():
  """An LSTM by `tf.nn.dynamic_rnn` over sentences of their own lengths."""
  def model(batch, is_training):
    del is_training
    words, labels = batch
    embedding = tf.get_variable('embedding', [NUM_WORDS, 6])
    lengths = tf.reduce_sum(tf.cast(words > 0, tf.int32), 1)
    _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(5),
                                 tf.nn.embedding_lookup(embedding, words),
                                 sequence_length=lengths, dtype=tf.float32)
    weights = tf.get_variable('weights', [5, NUM_CLASSES])
    return cross_entropy(labels, tf.matmul(state.h, weights)), {}
  return model


TF1, TF2 = ('tf1',), ('tf2',)
PROGRAMS: Dict[str, Gallery] = {
    'resnet_v2': Gallery(
        lambda: resnet_v2(frozen=True), lambda: images(16), 'slim resnet_v2, fine-tuning',
        'TensorFlow', TF1),
    'resnet_v2_batch_norm': Gallery(
        lambda: resnet_v2(frozen=False), lambda: images(16), 'slim resnet_v2', 'TensorFlow', TF1,
        cause='Batch normalisation takes the moments'),
    'sonnet': Gallery(
        lambda: sonnet_net(outside=False), lambda: images(8), 'Sonnet 1 Conv2D and MLP',
        'dm-sonnet 1.36', TF1),
    'sonnet_outside': Gallery(
        lambda: sonnet_net(outside=True), lambda: images(8), 'the same, made once',
        'dm-sonnet 1.36', TF1),
    'bert': Gallery(bert, sentences, 'BERT', 'bert-tensorflow 1.0.1', TF1,
                    optimizer=bert_optimizer),
    'distilbert': Gallery(distilbert, sentences, 'DistilBERT', 'transformers 4.49.0', TF2),
    'keras_lstm': Gallery(keras_lstm, sentences, 'Keras LSTM', 'TensorFlow'),
    'mobilenet_v2': Gallery(
        mobilenet_v2, lambda: images(32), 'Keras MobileNetV2', 'TensorFlow',
        cause='Batch normalisation takes the moments'),
    'cifar10': Gallery(cifar10, lambda: images(24), 'net of the cifar10 tutorial', 'written out',
                       changed='2'),
    'feature_columns': Gallery(feature_columns, table, 'wide and deep by tf.feature_column',
                               'TensorFlow'),
    'dynamic_rnn': Gallery(dynamic_rnn, sentences, 'LSTM by tf.nn.dynamic_rnn', 'TensorFlow')}
