"""A policy in the loop: it plays, and learns from what it has just played, by REINFORCE.

  python -m examples.recipes.policy

Of four slot machines the third pays most. The batch of each update is made by the weights before.
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

PAYS = np.float32([0.2, 0.4, 0.8, 0.1])  # How often, by machine.
random = np.random.RandomState(0)


def build_logits(states):
  return tf.matmul(states, tf.get_variable('policy', [4, 4], initializer=tf.zeros_initializer()))


def model(batch, is_training):
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=batch['action'], logits=build_logits(batch['state']))
  return losses * batch['advantage']


def choose(state):  # A function that stays the same is built once.
  return tf.nn.softmax(build_logits(state))


like = {'state': np.zeros(4, np.float32), 'action': np.int32(0), 'advantage': np.float32(0)}
program = towers.Program(model, train=towers.from_stream(like=like), batch_size=64, num_towers=2,
                         optimizer=tf.train.GradientDescentOptimizer(1.0))
with program.session() as session:
  states = np.ones([64, 4], np.float32)
  for _ in range(60):
    chances = session.predict({'state': states}, choose)
    actions = np.array([random.choice(4, p=row / row.sum()) for row in chances], np.int32)
    rewards = np.float32(random.rand(64) < PAYS[actions])
    session.train({'state': states, 'action': actions, 'advantage': rewards - rewards.mean()})
  print(f'machine {chances[0].argmax()} in {chances[0].max():.0%} of plays')
