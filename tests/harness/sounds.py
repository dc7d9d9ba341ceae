"""Examples of everything at once: strings, components of any size, sparse and ragged ones."""

import numpy as np

import towers
from tests.harness import small
from towers.tensorflow_v1 import tf
from towers_data.png import encode_png

MOST, CLASSES = 7, 4


def write_down(number):
  """Returns a picture, the frames of a sound, their number, and the symbols in it."""
  length = 1 + number % MOST
  random = np.random.RandomState(number)
  return (encode_png(np.full([1, 1, 1], number, np.uint8)),
          random.randn(length, 2).astype(np.float32), np.int32(length),
          (number + np.arange(1 + length // 2)).astype(np.int32) % CLASSES)


def sounds(num_examples, name='train', bad=None, **padding):
  """Examples of which each has a picture, a frame and a symbol, except those that are marked."""
  def parse(index):
    picture, frames, length, symbols = tf.numpy_function(
        write_down, [index], (tf.string, tf.float32, tf.int32, tf.int32))
    is_good = tf.reduce_all(tf.not_equal(index, tf.constant([-1] + (bad or []), tf.int64)))
    # What is marked is no image, and has neither a frame nor a symbol that counts.
    picture = tf.where(is_good, picture, '')
    length = tf.where(is_good, length, 0)
    for tensor, shape in ((picture, []), (frames, [None, 2]), (length, []), (symbols, [None])):
      tensor.set_shape(shape)
    symbols = symbols[:length]
    places = tf.range(tf.size(symbols, out_type=tf.int64))[:, tf.newaxis]
    example = {'picture': picture, 'sound': (frames, length),
               'symbols': tf.SparseTensor(places, symbols, [MOST]),
               'words': tf.RaggedTensor.from_row_lengths(symbols, [tf.size(symbols)])}
    return example if bad is None else (example, is_good)

  return towers.padded(towers.Examples(num_examples, parse_example=parse, name=name,
                                       marks_bad=bad is not None), **padding)


def sorted_sounds(num_examples, bad=None):
  """The same, of which those of similar lengths share a batch."""
  lengths = [1 + number % MOST for number in range(num_examples)]
  return sounds(num_examples, bad=bad, bucket_by=lengths, bucket_window=2)


def recognise(batch, is_training):
  """A model that ends with an error for a row of zeros, by each component but the frames."""
  del is_training
  frames, lengths = batch['sound']
  pictures = tf.map_fn(lambda picture: tf.reshape(tf.io.decode_png(picture, 1), []),
                       batch['picture'], tf.uint8)
  with tf.control_dependencies([tf.assert_positive(lengths)]):
    logits = tf.reshape(small.dense(tf.reshape(frames, [-1, 2]), CLASSES + 1, 'logits'),
                        tf.concat([tf.shape(frames)[:2], [CLASSES + 1]], 0))
  losses = tf.nn.ctc_loss(labels=batch['symbols'], inputs=tf.cast(logits, tf.float32),
                          sequence_length=lengths, time_major=False)
  words = batch['words']
  table = tf.get_variable('table', [CLASSES])
  sentence = tf.gather(words.value_rowids(), words.values.value_rowids())
  heard = tf.math.unsorted_segment_sum(tf.gather(table, words.flat_values), sentence,
                                       tf.size(lengths))
  brightness = tf.cast(pictures, tf.float32)
  losses = losses / tf.cast(lengths, tf.float32) + tf.square(tf.cast(heard, tf.float32) - 1.0)
  return losses + 0.0 * brightness, {'brightness': brightness}
