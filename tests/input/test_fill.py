"""The row of a tower without an example: a model that takes all examples takes it, and is exact."""

import functools

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness import small
from tests.harness.small import Run, assert_moved, assert_same_weights
from towers.data.composite import decode_batch
from towers.data.formats.png import encode_png

MOST, CLASSES = 7, 4


def write_down(number):
  """Returns a picture, the frames of a sound, their number, and the symbols in it."""
  length = 1 + number % MOST
  random = np.random.RandomState(number)
  return (encode_png(np.full([1, 1, 1], number, np.uint8)),
          random.randn(length, 2).astype(np.float32), np.int32(length),
          (number + np.arange(1 + length // 2)).astype(np.int32) % CLASSES)


def sounds(num_examples, name='train', bad=None):
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
               'symbols': tf.SparseTensor(places, symbols, [MOST])}
    return example if bad is None else (example, is_good)

  return towers.padded(towers.Examples(num_examples, parse_example=parse, name=name,
                                       marks_bad=bad is not None))


def take(examples, *, mode, num_towers, num_steps, num_workers=1, rank=0, last_batch='keep'):
  """Returns for each step each tower's examples as tuples, and how many of them count."""
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=examples.num_examples, batch_size=8,
                             num_towers=num_towers, num_workers=num_workers, rank=rank,
                             last_batch=last_batch)
    inputs = towers.build_inputs(examples, mode=mode, plan=plan)
    fetches = []
    for batch in inputs.next_batches():
      tensors = decode_batch(batch.tensors)
      fetches.append(({**tensors, 'symbols': tf.sparse.to_dense(tensors['symbols'], -1)},
                      tf.convert_to_tensor(batch.num_examples)))
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(0))
      return [[(_list(batch), count) for batch, count in session.run(fetches)]
              for _ in range(num_steps)]


def _list(batch):
  frames, lengths = batch['sound']
  assert frames.shape[1] > 0  # Few kernels take size 0.
  return [(picture, frames[:length].tolist(), length, symbols.tolist())
          for picture, frames, length, symbols in zip(batch['picture'], frames, lengths,
                                                      batch['symbols'])]


FILLED = [('split', 3, 17, 'keep', None), ('next', 8, 19, 'pad', None),
          ('shard', 3, 18, 'keep', [0, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
          ('shard', 4, 17, 'keep', None), ('shard', 8, 19, 'pad', None),
          ('next', 2, 17, 'keep', None), ('split', 8, 17, 'pad', [1, 2, 4, 16]),
          ('next', 3, 16, 'keep', [0, 1, 2, 11, 12, 13, 14])]


@pytest.mark.nightly(but='split-3-17-keep-None')
@pytest.mark.parametrize('mode, num_towers, num_examples, last_batch, bad', FILLED)
def test_an_empty_tower_has_an_example_of_another(mode, num_towers, num_examples, last_batch, bad):
  steps = take(sounds(num_examples, bad=bad), mode=mode, num_towers=num_towers, num_steps=3,
               last_batch=last_batch)
  filled = [(rows, sum((rows[:count] for rows, count in by_tower), []))
            for by_tower in steps for rows, count in by_tower if not count]
  assert any(real for _, real in filled)
  for rows, real in filled:
    assert len(rows) == 1 and (rows[0] in real or not real)


@pytest.mark.parametrize('mode', small.nightly_but(['shard'], small.MODES))
def test_a_worker_without_an_example_has_a_row_of_zeros(mode):
  # The second step has one example for both workers.
  _, by_tower = take(sounds(9), mode=mode, num_towers=2, num_steps=2, num_workers=2, rank=1)
  assert by_tower == [([(b'', [], 0, [-1] * MOST)], 0)] * 2


def recognise(batch, is_training):
  """A model that ends with an error for a row of zeros, by each component but the frames."""
  del is_training
  frames, lengths = batch['sound']
  pictures = tf.map_fn(lambda picture: tf.reshape(tf.io.decode_png(picture, 1), []),
                       batch['picture'], tf.uint8)
  with tf.control_dependencies([tf.assert_positive(lengths)]):
    weights = tf.get_variable('weights', [2, CLASSES + 1])
    logits = tf.reshape(tf.matmul(tf.reshape(frames, [-1, 2]), weights),
                        tf.concat([tf.shape(frames)[:2], [CLASSES + 1]], 0))
  losses = tf.nn.ctc_loss(labels=batch['symbols'], inputs=logits, sequence_length=lengths,
                          time_major=False)
  brightness = tf.cast(pictures, tf.float32)
  return losses / tf.cast(lengths, tf.float32) + 0.0 * brightness, {'brightness': brightness}


@functools.lru_cache(maxsize=None)
def train(num_examples, bad, **settings):
  split = sounds(num_examples, bad=bad and list(bad))
  with Run(model=recognise, train=split, validation=sounds(9, 'validation'), learning_rate=0.5,
           **settings) as run:
    losses = [run.train() for _ in range(5)]
    assert_moved(run.initial_weights, run.weights())
    return losses, run.validate(), run.weights()


POINTS = [('split', 3, 1, 17, 1, 'keep', 'switch', None),
          ('shard', 4, 0, 17, 1, 'pad', 'tower', None),
          ('next', 4, 1, 17, 2, 'keep', 'switch', (1, 2, 3, 8, 12)),
          ('shard', 8, 1, 19, 1, 'keep', 'switch', None),
          ('split', 2, 0, 17, 1, 'keep', 'switch', (0, 1, 2, 3, 9, 10, 11)),
          ('next', 8, 0, 19, 1, 'pad', 'switch', None),
          ('shard', 3, 1, 17, 2, 'keep', 'tower', (1, 4, 7, 9, 10))]


@pytest.mark.nightly
@pytest.mark.parametrize('mode, num_towers, depth, num_examples, accumulate, last_batch, '
                         'validation, bad', small.nightly_but(POINTS[:1], POINTS))
def test_towers_of_a_model_that_takes_no_row_of_zeros_are_one_tower(
    mode, num_towers, depth, num_examples, accumulate, last_batch, validation, bad):
  losses, (means, count), weights = train(
      num_examples, bad, mode=mode, num_towers=num_towers, depth=depth, accumulate=accumulate,
      last_batch=last_batch, validation_kind=validation)
  expected, (expected_means, _), expected_weights = train(num_examples, bad, num_towers=1)
  np.testing.assert_allclose(losses, expected, atol=1e-5)
  assert_same_weights(weights, expected_weights)
  assert count == 9 and means == pytest.approx(expected_means, abs=1e-5)
