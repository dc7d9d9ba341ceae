"""Classifies images with a net of your own, with all flags of main.py.

  python -m examples.images --epochs=1 --checkpoint_dir=saved --export_dir=served --report=run.html
  python -m examples.images --predict=images.npy --export_dir=served
"""
import tensorflow.compat.v1 as tf

import towers
from towers import data


def net(images, is_training):
  x = tf.cast(images, tf.float32) / 255
  for layer, size in enumerate([16, 32]):
    kernel = tf.get_variable(f'kernel_{layer}', [5, 5, x.shape[3], size])
    x = tf.nn.relu(tf.nn.conv2d(x, kernel, [1, 2, 2, 1], 'SAME'))
  x = tf.reshape(x, [-1, 7 * 7 * 32])
  # Half of the features are left out in training, others in every tower and step.
  kept = tf.nn.dropout(x, rate=tf.where(is_training, 0.5, 0.0))
  return tf.matmul(kept, tf.get_variable('classes', [7 * 7 * 32, 10]))

def model(batch, is_training):
  images, labels = batch
  logits = net(images, is_training)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}

def predict(images):
  logits = net(images, False)
  return {'class': tf.argmax(logits, 1), 'probabilities': tf.nn.softmax(logits)}

def load():
  sample = data.load('sample')  # Fashion-MNIST. Or towers.from_arrays(images, labels).
  return sample.train, sample.validation

if __name__ == '__main__':
  towers.main(model=model, data=load, predict=predict)
