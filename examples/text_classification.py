"""Classifies sentences of different lengths.  python -m examples.text_classification

The corpus is made up here, so that nothing is downloaded: reviews of some words, of which a few
tell whether the writer was pleased, and 'not' turns them around.
"""
import numpy as np
import tensorflow.compat.v1 as tf

import towers

GOOD, BAD = ['great', 'lovely', 'fine', 'superb'], ['awful', 'dull', 'poor', 'sad']
PLAIN = ['the', 'a', 'film', 'book', 'plot', 'was', 'and', 'very', 'with', 'end', 'cast', 'story']
VOCABULARY = {word: index for index, word in enumerate(['', 'not', *GOOD, *BAD, *PLAIN])}
LONGEST = 12


def write_reviews(count, seed):
  """Returns sentences and whether each is of a pleased writer."""
  random = np.random.RandomState(seed)
  sentences, labels = [], []
  for label in random.randint(2, size=count):
    words = list(random.choice(PLAIN, random.randint(3, LONGEST - 2)))
    is_negated = random.rand() < 0.3
    mood = random.choice(GOOD if label != is_negated else BAD)
    words[random.randint(len(words)):0] = ['not', mood] if is_negated else [mood]
    sentences.append(' '.join(words))
    labels.append(label)
  return sentences, np.int32(labels)

def encode(sentences):
  """Returns the numbers of the words, [sentences, LONGEST], 0 after the last one."""
  ids = [[VOCABULARY[word] for word in sentence.split()] for sentence in sentences]
  return np.int32([row + [0] * (LONGEST - len(row)) for row in ids])

def net(ids):
  words = tf.gather(tf.get_variable('embeddings', [len(VOCABULARY), 16]), ids)
  pairs = tf.concat([words[:, :-1], words[:, 1:]], 2)  # Each word beside the next one.
  features = tf.nn.relu(tf.tensordot(pairs, tf.get_variable('pairs', [32, 32]), 1))
  is_word = tf.cast(tf.not_equal(ids[:, :-1], 0), tf.float32)[:, :, tf.newaxis]
  return tf.matmul(tf.reduce_sum(features * is_word, 1), tf.get_variable('classes', [32, 2]))

def model(batch, is_training):
  ids, labels = batch
  logits = net(ids)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return losses, {'accuracy': tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)}

(texts, labels), (new_texts, new_labels) = write_reviews(2000, seed=0), write_reviews(500, seed=1)
program = towers.Program(
    model, train=towers.from_arrays(encode(texts), labels),
    validation=towers.from_arrays(encode(new_texts), new_labels, name='validation'),
    optimizer=tf.train.AdamOptimizer(0.01), batch_size=100, num_towers=2)
with program.session() as session:
  while session.step < 200:
    session.train()
  print(f"accuracy {session.validate()['accuracy']:.2f}: {new_texts[0]!r} is "
        f"{'good' if new_labels[0] else 'bad'}")
