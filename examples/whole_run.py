"""A whole run of your own program: an autoencoder on one array.  python -m examples.whole_run

It resumes from its checkpoint, validates after each epoch, and writes a report. A callback keeps
its losses as a table; one for MLflow or Weights & Biases has the same methods.
"""
import csv
import os
import sys
import tempfile

import tensorflow.compat.v1 as tf

import towers
from towers import data


def model(batch, is_training):
  [images] = batch
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 784])
  code = tf.nn.relu(tf.matmul(x, tf.get_variable('encoder', [784, 32])))
  output = tf.matmul(code, tf.get_variable('decoder', [32, 784]))
  return tf.reduce_mean(tf.squared_difference(x, output), 1)  # One loss per image.


class Table(towers.Callback):
  """Keeps validation losses in a CSV file."""

  def __init__(self, path):
    self.path, self.rows = path, []

  def on_validation(self, run):
    self.rows.append([run.validation_step, run.metrics['validation_loss']])

  def on_close(self, run):
    with open(self.path, 'w', newline='') as file:
      csv.writer(file).writerows(self.rows)


folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
images = data.load('sample').train.arrays[0]
program = towers.Program(
    model, train=towers.from_arrays(images[:3500]),
    validation=towers.from_arrays(images[3500:], name='validation'),
    optimizer=tf.train.AdamOptimizer(0.002), batch_size=100, num_towers=2)
result = towers.train(
    program, epochs=4, checkpoint_dir=os.path.join(folder, 'checkpoints'),
    report=os.path.join(folder, 'run.html'), callbacks=[Table(os.path.join(folder, 'losses.csv'))])
print(f"validation loss {result['validation_loss']:.4f}")
