"""Distillation: a small net learns from what a large one, trained before, says of each image.

  python -m examples.recipes.distillation
"""
import tempfile
from typing import Any, Dict

import numpy as np
import tensorflow.compat.v1 as tf

import towers
from towers import data


def build_net(images, size):
  x = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 784])
  return tf.layers.dense(tf.layers.dense(x, size, tf.nn.relu), 10)


def teacher(batch, is_training):
  images, labels = batch
  with tf.variable_scope('teacher'):
    logits = build_net(images, 128)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def student(batch, is_training):
  images, labels = batch
  with tf.variable_scope('teacher'):
    wanted = tf.nn.softmax(build_net(images, 128) / 2)
  logits = build_net(images, 8)
  losses = tf.nn.softmax_cross_entropy_with_logits_v2(
      labels=tf.stop_gradient(wanted), logits=logits / 2)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}


sample = data.load('sample')
settings: Dict[str, Any] = dict(
    train=sample.train, validation=sample.validation, batch_size=50, num_towers=2)
with tempfile.TemporaryDirectory() as folder:
  with tf.Graph().as_default():
    program = towers.Program(teacher, optimizer=tf.train.AdamOptimizer(0.001), **settings)
    with program.session() as session:
      while session.step < 300:
        session.train()
      session.save(folder)
  with tf.Graph().as_default():
    program = towers.Program(
        student, optimizer=tf.train.AdamOptimizer(0.003), frozen=['teacher/'],
        init_from=towers.init_from(folder, reinit=['dense']), **settings)
    with program.session() as session:
      before = session.run('teacher/dense/kernel')
      while session.step < 300:
        session.train()
      assert np.array_equal(before, session.run('teacher/dense/kernel'))
      print(f"accuracy {session.validate()['accuracy']:.2f}")
