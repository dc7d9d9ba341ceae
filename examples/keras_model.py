"""A Keras model on two towers learns the sample of Fashion-MNIST.  python -m examples.keras_model

On TensorFlow 2.x it needs the package tf-keras, because Keras 3 builds no graphs.
"""
import tensorflow.compat.v1 as tf

import towers
from towers import data
from towers.tensorflow_v1 import load_keras


def make():
  layers = load_keras().layers
  return load_keras().Sequential([
      layers.Conv2D(16, 5, strides=2, use_bias=False, kernel_regularizer='l2'),
      layers.BatchNormalization(momentum=0.9),
      layers.ReLU(),
      layers.Flatten(),
      layers.Dropout(0.2),
      layers.Dense(10, activation='softmax')
  ])

model = towers.KerasModel(make, loss='sparse_categorical_crossentropy',
                          metrics={'accuracy': 'sparse_categorical_accuracy'})
sample = data.load('sample')
program = towers.Program(model, train=sample.train, validation=sample.validation, batch_size=100,
                         optimizer=tf.train.AdamOptimizer(0.003), num_towers=2)
with program.session() as session:
  while session.step < 200:
    loss = session.train()
  print(f"loss {loss:.4f} in step 200, accuracy {session.validate()['accuracy']:.2f}")
