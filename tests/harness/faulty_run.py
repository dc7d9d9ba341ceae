"""A run of main.py on data or a model with a fault: `python -m tests.harness.faulty_run FAULT
[flags of main.py]`.

The fault sits in example 5 of the training split, so with 2 towers and `--input_mode=shard` at
tower 1. Where a test waits for a moment, the child writes its name to stdout.
"""

import os
import signal
import sys
import time

import numpy as np

import main
import models
from tensorflow_v1 import tf
from tests.harness import faults, small
from towers import data
from towers.data import DataSet
from towers.training.saving.checkpoints import Checkpoints

ROW = 5
FLAGS = ['--data=synthetic', '--device=cpu', '--noshuffle', '--batch_size=4',
'--schedule=constant', '--model=linear',
         '--validate_every=1000steps', '--checkpoint_every=1000steps', '--steps=100000']


def say(moment):
  os.write(1, b'<%s>\n' % moment.encode())


def on_row(act):
  """Returns a parse_example that does something when it comes to the row."""
  def parse(number):
    passed = tf.py_func(lambda value: act(value) if value == ROW else value, [number], tf.int64)
    passed.set_shape([])
    return passed
  return parse


def fail(value):
  raise ValueError(f'record {value} is damaged')


def slowly(moment, seconds):
  def parse(number):
    def wait(value):
      say(moment)
      time.sleep(seconds)
      return value
    passed = tf.py_func(wait, [number], tf.int64)
    passed.set_shape([])
    return passed
  return parse


def sleep_late(number):
  """Sleeps for ever some hundred steps after the start."""
  def act(value):
    if value < 1000:
      return value
    say('asleep')
    return faults.wait_for_ever(value)

  passed = tf.py_func(act, [number], tf.int64)
  passed.set_shape([])
  return passed


def waiting_model(batch, is_training):
  features, labels = batch
  waited = tf.py_func(faults.wait_for_ever, [features], features.dtype)
  waited.set_shape(features.shape)
  return small.model((waited, labels), is_training)


def slow_to_build(batch, is_training):
  say('set-up')
  time.sleep(30)
  return small.model(batch, is_training)


def marked_model(batch, is_training):
  features, labels = batch

  def mark(value):
    say('training')
    time.sleep(0.02)
    return value

  marked = tf.py_func(mark, [features], features.dtype)
  marked.set_shape(features.shape)
  return small.model((marked, labels), is_training)


def save_slowly():
  write = Checkpoints._write

  def slow_write(*args):
    say('saving')
    time.sleep(1)
    write(*args)

  Checkpoints._write = slow_write


def dying_model(batch, is_training):
  """Kills the process in its 30th batch, if it is worker 1 and its folder has no checkpoint of a
  life before.
  """
  features, labels = batch
  folder = next(flag.split('=')[1] for flag in sys.argv if flag.startswith('--checkpoint_dir='))
  is_first_life = not os.path.exists(os.path.join(folder, 'checkpoint'))
  calls = []

  def act(value):
    calls.append(None)
    time.sleep(0.02)
    if is_first_life and len(calls) == 30 and '"index": 1' in os.environ['TF_CONFIG']:
      os.kill(os.getpid(), signal.SIGKILL)
    return value

  passed = tf.py_func(act, [features], features.dtype)
  passed.set_shape(features.shape)
  return small.model((passed, labels), is_training)


def huge_model(batch, is_training):
  """Asks for 16 GB, where no more than 12 GB of addresses are left; threads take up some of them.
  """
  faults.limit_memory(12 * 2 ** 30)
  losses, metrics = small.model(batch, is_training)
  # Known only when it runs: what is known before is computed, and allocated, by the rewriter of
  # graphs.
  size = tf.cast(tf.minimum(2.0 ** 16, 2.0 ** 16 + tf.abs(losses[0])), tf.int32)
  return losses + tf.reduce_mean(tf.ones([size, size])), metrics


def run(fault, flags):
  """Runs main.py with a fault; returns the exit code."""
  train, validation = small.random_examples(24), small.random_examples(20, 'validation', seed=1)
  model = small.model
  if fault == 'the map function raises':
    train = train._replace(parse_example=on_row(fail))
  elif fault == 'the map function sleeps':
    train = train._replace(parse_example=on_row(faults.wait_for_ever))
  elif fault == 'a late map function sleeps':
    train = small.random_examples(2000)._replace(parse_example=sleep_late)
  elif fault == 'warm-up is slow':
    train = train._replace(parse_example=slowly('warm-up', 30))
  elif fault == 'validation is slow':
    validation = validation._replace(parse_example=slowly('validation', 0.1))
  elif fault == 'the model sleeps':
    model = waiting_model
  elif fault == 'building is slow':
    model = slow_to_build
  elif fault == 'steps are marked':
    model = marked_model
  elif fault == 'dies once':
    model = dying_model
  elif fault == 'saving is slow':
    save_slowly()
  elif fault == 'no number':
    train = faults.poison(train, ROW)
  elif fault == 'out of memory':
    model = huge_model
  else:
    assert fault == 'none', fault
  data_set = DataSet(train, validation, image_shape=(1, 1, small.NUM_FEATURES),
                     num_classes=small.NUM_CLASSES)
  data.DATA_SETS['synthetic'] = lambda settings: data_set
  models.build_classifier = lambda *args, **settings: model
  return main.main(['main.py'] + FLAGS + flags)


if __name__ == '__main__':
  np.random.seed(0)
  sys.exit(run(sys.argv[1], sys.argv[2:]))
