"""State from batch to batch: a text is cut into rows, and each row goes on where it was before.

  python -m examples.recipes.state

The examples are dealt so that row i of every batch follows row i of the batch before. The state is
given with each batch, and the next one is asked for: any number of towers has the same.
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

ROWS, LENGTH, SIZE = 8, 5, 16
text = np.arange(ROWS * 200) % 7 % 3  # The next one is told by those before, beyond one piece.
pieces = text.reshape(ROWS, -1).astype(np.int32)


def run_cell(x, state):
  return tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(SIZE), tf.one_hot(x, 3), initial_state=state)


def find_state(x, state):
  return run_cell(x, state)[1]


def model(batch, is_training):
  outputs, _ = run_cell(batch['x'], batch['state'])
  logits = tf.layers.dense(outputs, 3)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch['y'], logits=logits)
  return tf.reduce_mean(losses, 1)


like = {'x': pieces[0, :LENGTH], 'y': pieces[0, :LENGTH], 'state': np.zeros(SIZE, np.float32)}
program = towers.Program(model, train=towers.from_stream(like=like), batch_size=ROWS, num_towers=2,
                         optimizer=tf.train.AdamOptimizer(0.02))
with program.session() as session:
  for _ in range(6):
    state = np.zeros([ROWS, SIZE], np.float32)
    for begin in range(0, pieces.shape[1] - LENGTH, LENGTH):
      batch = {'x': pieces[:, begin:begin + LENGTH], 'y': pieces[:, begin + 1:begin + LENGTH + 1],
               'state': state}
      state = session.predict(batch, find_state)
      loss = session.train(batch)
  print(f'loss {loss:.3f}')
