"""Small models for the check: some are right, and each of the others has one fault."""

import importlib
import itertools

import numpy as np

from tensorflow_v1 import tf
from tests.harness import small
from towers.tower.batch_norm_layer import batch_norm


def cross_entropy(labels, hidden):
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=small.dense(hidden, small.NUM_CLASSES, 'logits'))


def centred(batch, is_training):
  """Subtracts the mean over the batch, so an example's loss depends on the others."""
  features, labels = batch
  hidden = small.dense(features, 4, 'hidden')
  shifted = hidden - tf.reduce_mean(hidden, 0)  # THE LINE TO BLAME
  return cross_entropy(labels, shifted)


def normalised(batch, is_training):
  features, labels = batch
  x = small.dense(features, 4, 'hidden')
  return cross_entropy(labels, batch_norm(x, is_training, name='norm'))


def layer_normalised(batch, is_training):
  """Batch normalisation by TensorFlow's own layer."""
  features, labels = batch
  x = small.dense(features, 4, 'hidden')
  return cross_entropy(labels, tf.layers.batch_normalization(x, training=is_training))


def slim_normalised(batch, is_training):
  slim = importlib.import_module('tensorflow.contrib.slim')  # As a user's program imports it.
  features, labels = batch
  x = small.dense(features, 4, 'hidden')
  return cross_entropy(labels, slim.batch_norm(x, is_training=is_training))


def dropped(batch, is_training):
  losses, metrics = small.model(batch, is_training)
  return losses * (tf.nn.dropout(tf.ones_like(losses), rate=0.5) if is_training else 1.0), metrics


def dropped_and_centred(batch, is_training):
  losses = centred(batch, is_training)
  return losses * (tf.nn.dropout(tf.ones_like(losses), rate=0.5) if is_training else 1.0)


def scalar_sum(batch, is_training):
  """Returns the sum of losses by mistake for the mean."""
  losses, _ = small.model(batch, is_training)
  return tf.reduce_sum(losses)


def token_mean(batch, is_training):
  """Takes the mean over the tokens of the batch; examples have one to three."""
  features, labels = batch
  mask = tf.sequence_mask(labels + 1, small.NUM_FEATURES, tf.float32)
  losses = tf.square(small.dense(features, small.NUM_FEATURES, 'hidden')) * mask
  return tf.reduce_sum(losses) / tf.reduce_sum(mask)  # THE LINE OF THE MEAN


def table(batch, is_training):
  """Looks labels up in a table; needs initialisers of tables and local variables too."""
  features, labels = batch
  keys, values = tf.constant([0, 1, 2], tf.int64), tf.constant([2, 0, 1], tf.int64)
  ids = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1)

  gain = tf.get_local_variable('gain', [], initializer=tf.ones_initializer())
  labels = tf.cast(ids.lookup(tf.cast(labels, tf.int64)), tf.int32)
  losses, metrics = small.model((features, labels), is_training)
  return losses * gain, metrics


def averaging(batch, is_training):
  """Keeps a moving average that only the first tower updates; no loss reads it."""
  average = tf.get_variable('average', [small.NUM_FEATURES],
                            initializer=tf.zeros_initializer(), trainable=False)
  mean = tf.reduce_mean(batch[0], 0)
  move = average.assign_sub(0.1 * (average - mean), read_value=False)  # THE LINE THAT AVERAGES
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, move)
  return small.model(batch, is_training)


def counting(batch, is_training):
  """Counts its calls in a local variable, which every tower does."""
  count = tf.get_variable('count', [], tf.int64, initializer=tf.zeros_initializer(),
                          trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
  losses, metrics = small.model(batch, is_training)
  with tf.control_dependencies([count.assign_add(1, read_value=False)]):
    return tf.identity(losses), metrics


def remembering(batch, is_training):
  """Subtracts a moving average that only the first tower updates: the second step differs."""
  features, labels = batch
  average = tf.get_variable('average', [small.NUM_FEATURES],
                            initializer=tf.zeros_initializer(), trainable=False)
  mean = tf.reduce_mean(features, 0)
  shifted = features - average
  with tf.control_dependencies([shifted]):
    move = average.assign_sub(0.5 * (average - mean), read_value=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, move)
  return cross_entropy(labels, small.dense(shifted, 4, 'hidden'))


def collected(batch, is_training):
  """Returns the sum of a collection, to which the towers before it have added."""
  losses, _ = small.model(batch, is_training)
  tf.add_to_collection('losses', tf.reduce_mean(losses))
  return tf.add_n(tf.get_collection('losses'))


def fixed_size(batch, is_training):
  """Assumes a fixed batch size."""
  features, labels = batch
  size = tf.placeholder_with_default(8, [])
  features = tf.reshape(features, [size, small.NUM_FEATURES])  # THE LINE OF THE SIZE
  return cross_entropy(labels, small.dense(features, 4, 'hidden'))


def own_variable():
  """Makes a variable with another name at each call."""
  calls = itertools.count()

  def model(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    gain = tf.get_variable(f'gain_{next(calls)}', [], initializer=tf.ones_initializer())
    return losses * gain, metrics

  return model


def steep(batch, is_training):
  """So steep that the last bits of the sums over towers decide."""
  features, labels = batch
  x = batch_norm(small.dense(features, 4, 'hidden'), is_training, name='norm')
  return cross_entropy(labels, tf.sin(1e8 * x))


def exploding(batch, is_training):
  """As steep, and centred."""
  features, labels = batch
  hidden = small.dense(features, 4, 'hidden')
  shifted = hidden - tf.reduce_mean(hidden, 0)  # THE LINE TO BLAME HERE
  return cross_entropy(labels, tf.sin(1e5 * shifted))


def with_mean_of_losses(model):
  def changed(batch, is_training):
    losses = model(batch, is_training)
    return losses * tf.reduce_mean(losses)  # THE LINE OF THE LOSSES

  return changed


# Each makes a model compute other values at each run.

def with_random_constant(model):
  def changed(batch, is_training):
    drawn = np.random.normal(1.0, 0.5, small.NUM_FEATURES).astype(np.float32)
    noise = tf.constant(drawn, name='drawn_by_numpy')  # THE LINE OF NUMPY
    return model((batch[0] * noise, batch[1]), is_training)

  return changed


def with_random_start(model):
  def changed(batch, is_training):
    drawn = np.random.normal(1.0, 0.5, small.NUM_FEATURES).astype(np.float32)
    factor = tf.get_variable('factor', initializer=drawn)
    return model((batch[0] * factor, batch[1]), is_training)

  return changed


def with_random_function(model):
  """Draws with numpy while it runs: no op has a seed."""
  def draw():
    return np.random.normal(1.0, 0.5, small.NUM_FEATURES).astype(np.float32)

  def changed(batch, is_training):
    noise = tf.py_func(draw, [], tf.float32)  # THE LINE THAT DRAWS
    return model((batch[0] * tf.reshape(noise, [small.NUM_FEATURES]), batch[1]), is_training)

  return changed


def with_random_state(model):
  """Gives a variable that no loss reads another value each time."""
  def changed(batch, is_training):
    seen = tf.get_variable('seen', [], initializer=tf.zeros_initializer(), trainable=False)
    drawn = tf.reshape(tf.py_func(lambda: np.float32(np.random.normal()), [], tf.float32), [])
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, seen.assign(drawn, read_value=False))
    return model(batch, is_training)

  return changed


def augmented(examples):
  """Adds unseeded noise to the features in the input pipeline."""
  def parse_batch(*elements):
    features, labels = examples.parse_batch(*elements)
    return features + tf.random_normal(tf.shape(features)), labels

  return examples._replace(parse_batch=parse_batch)
