"""The same Keras model on two towers.  python -m examples.migrating.keras_after"""
import towers
from models.keras_model import KerasModel
from tensorflow_v1 import load_keras, tf
from towers import data

keras = load_keras()


def make():
  return keras.Sequential([
      keras.layers.Conv2D(16, 5, strides=2, use_bias=False),
      keras.layers.BatchNormalization(),
      keras.layers.ReLU(),
      keras.layers.Flatten(),
      keras.layers.Dense(10, activation='softmax')
  ])

train = data.load('sample').train
devices = towers.build_devices(2, 'cpu')
plan = towers.build_plan(num_examples=train.num_examples, batch_size=64, num_towers=2)
feed = towers.build_feed(towers.build_inputs(train, plan=plan, shuffle=True), devices=devices.names)
store = towers.build_variable_store(devices=devices.names)
reduced = towers.average_gradients(
    towers.build_towers(KerasModel(make), towers.build_batches(feed), devices=devices.names,
                        store=store))
train_op = towers.build_train_op(reduced, optimizer=tf.train.GradientDescentOptimizer(0.05))
with tf.Session(config=towers.build_session_config(devices)) as session:
  session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
  feed.start(session)
  losses = [session.run([reduced.loss, train_op])[0] for _ in range(2 * plan.steps_per_epoch)]
  print(f'loss after 2 epochs: {sum(losses[plan.steps_per_epoch:]) / plan.steps_per_epoch:.4f}')
