"""A Keras model on two towers learns the sample of Fashion-MNIST.  python -m examples.keras_model

On TensorFlow 2.x it needs the package tf-keras, because Keras 3 builds no graphs.
"""
import towers
from models.keras_model import KerasModel
from tensorflow_v1 import load_keras, tf
from towers import data


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

model = KerasModel(make, metrics={'accuracy': 'sparse_categorical_accuracy'})
train = data.load('sample').train
devices = towers.build_devices(2, 'cpu')
plan = towers.build_plan(num_examples=train.num_examples, batch_size=100, num_towers=2)
feed = towers.build_feed(towers.build_inputs(train, plan=plan, shuffle=True), devices=devices.names)
store = towers.build_variable_store(devices=devices.names)
all_towers = towers.build_towers(model, towers.build_batches(feed), devices=devices.names,
                                 store=store)
reduced = towers.average_gradients(all_towers)
train_op = towers.build_train_op(reduced, optimizer=tf.train.AdamOptimizer(0.003))
accuracy = sum(tower.sums['accuracy'] for tower in all_towers) / plan.batch_size
with tf.Session(config=towers.build_session_config(devices)) as session:
  session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
  feed.start(session)
  for _ in range(200):
    values = session.run([reduced.loss, accuracy, train_op])
  print('loss {:.4f}, accuracy {:.2f} in step 200'.format(*tuple(values[:2])))
