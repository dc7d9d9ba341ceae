"""The same Keras model on two towers.  python -m examples.migrating.keras_after"""
import tensorflow.compat.v1 as tf

import towers
from towers import data
from towers.tensorflow_v1 import load_keras

keras = load_keras()


def make():
  return keras.Sequential([
      keras.layers.Conv2D(16, 5, strides=2, use_bias=False),
      keras.layers.BatchNormalization(),
      keras.layers.ReLU(),
      keras.layers.Flatten(),
      keras.layers.Dense(10, activation='softmax')
  ])

model = towers.KerasModel(make, loss='sparse_categorical_crossentropy')
program = towers.Program(model, train=data.load('sample').train, batch_size=64,
                         optimizer=tf.train.GradientDescentOptimizer(0.05), num_towers=2)
epoch = program.plan.steps_per_epoch
with program.session() as session:
  losses = [session.train() for _ in range(2 * epoch)]
  print(f'loss after 2 epochs: {sum(losses[epoch:]) / epoch:.4f}')
