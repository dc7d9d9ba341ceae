"""Failures of data sets and devices name the tower, the split and the fix, with no stack trace."""

import os

import numpy as np
import pytest

import towers
from tests.harness import faulty_run, small, suspects
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.process.run_error import RunError
from towers.session.failure import explain
from towers.tensorflow_v1 import tf


def fail_of(run):
  """Trains until it fails; returns the explanation."""
  with pytest.raises((RunError, tf.errors.OpError)) as caught, run:
    run.train(20)
    run.validate()
  error = caught.value
  message = str(error if isinstance(error, RunError) else explain(error, run.engine))
  assert '\n' not in message and 'Traceback' not in message
  return message


@pytest.mark.nightly(but='next-1-all 2 towers, which share one iterator')
@pytest.mark.parametrize('mode, depth, towers', [
    ('shard', 1, 'tower 1'), ('shard', 0, 'tower 1'),
    ('split', 2, 'all 2 towers, which share one iterator'),
    ('next', 1, 'all 2 towers, which share one iterator')])
def test_a_map_function_that_raises_names_the_towers_it_feeds(mode, depth, towers):
  train = small.random_examples(24)._replace(
      parse_example=faulty_run.on_rows(faulty_run.fail, faulty_run.ROW))
  message = fail_of(small.Run(mode=mode, depth=depth, batch_size=4, train=train))
  assert message.startswith(f'The input of {towers} (split train) failed in ')
  assert ': ValueError: record 5 is damaged. Correct the data: a run' in message


def test_a_validation_split_that_ends_early_is_named():
  shorter = small.random_examples(20, 'validation')._replace(
      elements=lambda *_: tf.data.Dataset.range(20))
  message = fail_of(small.Run(num_towers=1, validation=shorter._replace(num_examples=30)))
  assert message.startswith('The input of tower 0 (split validation) failed in ')
  assert 'num_examples=30, but its elements ended before that' in message


def test_a_file_that_vanishes_in_an_epoch_is_named(tmp_path):
  for index in range(24):
    (tmp_path / f'{index:02}').write_text('7')

  def read(index):
    name = tf.as_string(index, width=2, fill='0')
    text = tf.read_file(tf.strings.join([str(tmp_path), '/', name]))
    return index + tf.strings.to_number(text, tf.int64) - 7

  train = small.random_examples(24)._replace(parse_example=read)
  run = small.Run(mode='shard', batch_size=4, train=train)
  with run:
    run.train(2)
    os.remove(str(tmp_path / '05'))
    with pytest.raises(RunError) as error:
      run.train(20)
  message = str(error.value)
  assert message.startswith('The input of tower 1 (split train) failed in training')
  assert '05; No such file or directory' in message


def test_an_op_of_a_model_that_fails_names_its_tower():
  def model(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    # Of 8 rows on 3 towers, tower 2 has row 7.
    features, _ = batch
    check = tf.Assert(tf.reduce_all(features < 100), ['a feature is too large'])
    with tf.control_dependencies([check]):
      return tf.identity(losses), metrics

  train = small.random_examples(8)
  train.arrays[0][7] = 1000
  assert fail_of(small.Run(num_towers=3, model=model, train=train)).startswith(
      'Tower 2 failed in the first step, after 0')


@pytest.mark.parametrize('depth', small.nightly_but([1], [0, 1]))
def test_a_variable_that_starts_from_a_batch_is_named(depth):
  def model(batch, is_training):
    mean = tf.get_variable('mean', initializer=tf.reduce_mean(batch[0]), trainable=False)
    losses, metrics = small.model(batch, is_training)
    return losses * mean, metrics

  message = (r'The variable mean, made in tests/session/test_failure.py, line \d+, starts from the '
             'examples of a batch, .* init_from=lambda batch')
  with pytest.raises(UsageError, match=message), small.Run(model=model, depth=depth):
    pass


def test_a_placeholder_that_nothing_feeds_is_named_with_what_feeds_it():
  with tf.Graph().as_default():
    rate = tf.placeholder(tf.float32, [], 'rate')
    program = towers.Program(
        small.model, train=small.random_examples(16), batch_size=8, num_towers=2, device='cpu',
        optimizer=tf.train.GradientDescentOptimizer(rate))
  step = [program.gradients.loss, program.train_op]
  with program.session() as session:
    assert np.isfinite(session.run(step, {rate: 0.1})[0]) and session.step == 1
    with pytest.raises(UsageError, match='the placeholder rate, made in tests/session/test_failure'
                                         '.py, line .*: feed it in each step, as by session.run'):
      session.train()


def test_a_batch_size_that_a_model_holds_is_named_with_its_line_and_the_fix():
  message = fail_of(small.Run(num_towers=2, batch_size=16, model=suspects.fixed_size,
                              train=small.random_examples(24)))
  assert 'Reshape, made in tests/harness/suspects.py, line' in message
  assert 'last_batch=drop, carry or pad' in message


OUT_OF_MEMORY = ('OOM when allocating tensor with shape[64,128,28,28] and type float on '
                 '/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc\n\t [[{{node '
                 'tower_1/Conv2D}}]]')


def test_out_of_memory_names_device_shape_examples_and_what_to_try():
  with small.Run(num_towers=2, batch_size=16) as run:
    error = tf.errors.ResourceExhaustedError(None, None, OUT_OF_MEMORY)
    message = str(explain(error, run.engine))
  for words in ('GPU:1 has no room for a tensor of shape [64, 128, 28, 28], float, 25.7 MB',
                '8 examples per tower', '(accumulate=2)', '(batch_size=8)', '16 bits',
                '(recompute=auto)'):
    assert words in message
  with small.Run(num_towers=2, batch_size=2) as run:
    message = str(explain(tf.errors.ResourceExhaustedError(None, None, 'no room'), run.engine))
  assert 'accumulate' not in message and 'a device has no room: no room' in message


@pytest.mark.parametrize('text, reason', [
    ('Graph execution error:\n\nDetected at node X defined at (most recent call last):\n  File '
     '"x"\nNode: \'X\'\na.tmp; No space left on device\n\t [[{{node SaveV2}}]]',
     'a.tmp; No space left on device'),
    ('2 root error(s) found.\n  (0) Invalid argument: ValueError: bad\nTraceback\n',
     'ValueError: bad'),
    ('2 root error(s) found.\n  (0) INVALID_ARGUMENT: Error in user-defined function passed to '
     'MapDataset:3 transformation with iterator: Iterator::Root: ValueError: bad\n',
     'ValueError: bad'),
    ('End of sequence\n\t [[node a/b (defined at c) ]]', 'End of sequence'),
    ('sized ' * 50, 'sized ' * 49 + 'sized'), ('sized ' * 51, 'sized ' * 49 + 'sized …'),
    ('a cut word ' * 50, 'a cut word ' * 27 + 'a …'), ('x' * 301, 'x' * 300 + ' …'),
    ('', 'OutOfRangeError')])
def test_the_reason_is_one_line(text, reason):
  assert find_reason(tf.errors.OutOfRangeError(None, None, text)) == reason
