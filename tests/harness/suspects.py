"""Small models for the check, beside those of the zoo: each has one fault."""

import importlib
import itertools

import numpy as np

from tests.harness import small
from towers.tensorflow_v1 import tf
from towers.tower.batch_norm.layer import batch_norm


def centred(batch, is_training):
  """Subtracts the mean over the batch, so an example's loss depends on the others."""
  features, labels = batch
  hidden = small.dense(features, 4, 'hidden')
  shifted = hidden - tf.reduce_mean(hidden, 0)  # THE LINE TO BLAME
  return small.classify(shifted, labels)


def layer_normalised(batch, is_training):
  """Batch normalisation by TensorFlow's own layer."""
  features, labels = batch
  x = small.dense(features, 4, 'hidden')
  x = tf.layers.batch_normalization(x, training=is_training)  # THE LINE OF THE LAYER
  return small.classify(x, labels)


def slim_normalised(batch, is_training):
  slim = importlib.import_module('tensorflow.contrib.slim')  # As a user's program imports it.
  features, labels = batch
  x = small.dense(features, 4, 'hidden')
  return small.classify(slim.batch_norm(x, is_training=is_training), labels)


def scalar_sum(batch, is_training):
  """Returns the sum of losses by mistake for the mean."""
  losses, _ = small.model(batch, is_training)
  return tf.reduce_sum(losses)  # THE LINE OF THE SUM


def fixed_size(batch, is_training):
  """Assumes a fixed batch size."""
  features, labels = batch
  size = tf.placeholder_with_default(8, [])
  features = tf.reshape(features, [size, small.NUM_FEATURES])  # THE LINE OF THE SIZE
  return small.classify(small.dense(features, 4, 'hidden'), labels)


def own_variable():
  """Makes a variable with another name at each call."""
  calls = itertools.count()

  @small.with_losses
  def model(losses):
    gain = tf.get_variable(f'gain_{next(calls)}', [], initializer=tf.ones_initializer())
    return losses * gain

  return model


def steep(batch, is_training):
  """So steep that the last bits of the sums over towers decide."""
  features, labels = batch
  x = batch_norm(small.dense(features, 4, 'hidden'), is_training, name='norm')
  return small.classify(tf.sin(1e8 * x), labels)


def exploding(batch, is_training):
  """As steep, and centred."""
  features, labels = batch
  hidden = small.dense(features, 4, 'hidden')
  shifted = hidden - tf.reduce_mean(hidden, 0)  # THE LINE TO BLAME HERE
  return small.classify(tf.sin(1e5 * shifted), labels)


def with_dropout(model):
  def changed(batch, is_training):
    batch = tf.nn.dropout(batch[0], rate=0.5) if is_training else batch[0], batch[1]
    return model(batch, is_training)

  return changed


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
