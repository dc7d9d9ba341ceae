"""A run of main.py on data or a model with a fault.

  python -m tests.harness.faulty_run FAULT [flags of main.py]

The fault is in example 5 of the training split; with 2 towers and `--input_mode=shard` it belongs
to tower 1. For tests that wait for a moment of the run, the process prints its name to stdout.
"""

import os
import signal
import sys
import time

import numpy as np

import main
from tensorflow_v1 import tf
from tests.harness import faults, small
from towers import data, models
from towers.data import DataSet
from towers.training.saving.checkpoints import Checkpoints
from towers.training.stepping.steps import Steps

ROW = 5
FLAGS = ['--data=synthetic', '--device=cpu', '--noshuffle', '--batch_size=4',
         '--schedule=constant', '--model=linear', '--validate_every=1000steps',
         '--checkpoint_every=1000steps', '--steps=100000']


def say(moment):
  os.write(1, b'<%s>\n' % moment.encode())


def on_row(act):
  """Returns a parse_example that calls `act` on the row with the fault."""
  def parse(index):
    passed = tf.py_func(lambda value: act(value) if value == ROW else value, [index], tf.int64)
    passed.set_shape([])
    return passed
  return parse


def fail(value):
  raise ValueError(f'record {value} is damaged')


def slowly(moment, seconds):
  def parse(index):
    def wait(value):
      say(moment)
      time.sleep(seconds)
      return value
    passed = tf.py_func(wait, [index], tf.int64)
    passed.set_shape([])
    return passed
  return parse


def sleep_late(index):
  """Hangs some hundred steps after the start."""
  def act(value):
    if value < 1000:
      return value
    say('asleep')
    return faults.hang(value)

  passed = tf.py_func(act, [index], tf.int64)
  passed.set_shape([])
  return passed


def hanging_model(batch, is_training):
  features, labels = batch
  passed = tf.py_func(faults.hang, [features], features.dtype)
  passed.set_shape(features.shape)
  return small.model((passed, labels), is_training)


def slow_to_build(batch, is_training):
  say('set-up')
  time.sleep(30)
  return small.model(batch, is_training)


def marked_model(batch, is_training):
  features, labels = batch
  take_step, trains = Steps.train, []

  def train(steps):
    trains.append(True)
    return take_step(steps)

  def mark(value):
    if trains:  # The model is measured before the first step.
      say('training')
      time.sleep(0.02)
    return value

  Steps.train = train

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
  """Kills worker 1 in its 30th batch, unless its folder has a checkpoint of an earlier life."""
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
  """Allocates 16 GB, with a limit of 12 GB of addresses, of which threads take some."""
  faults.limit_memory(12 * 2 ** 30)
  losses, metrics = small.model(batch, is_training)
  # Depends on a loss, because the graph rewriter would compute, and allocate, a constant.
  size = tf.cast(tf.minimum(2.0 ** 16, 2.0 ** 16 + tf.abs(losses[0])), tf.int32)
  return losses + tf.reduce_mean(tf.ones([size, size])), metrics


def run(fault, flags):
  """Runs main.py with a fault; returns the exit code."""
  train, validation = small.random_examples(24), small.random_examples(20, 'validation', seed=1)
  model, load = small.model, None
  if fault == 'the map function raises':
    train = train._replace(parse_example=on_row(fail))
  elif fault == 'the map function sleeps':
    train = train._replace(parse_example=on_row(faults.hang))
  elif fault == 'a late map function sleeps':
    train = small.random_examples(2000)._replace(parse_example=sleep_late)
  elif fault == 'warm-up is slow':
    train = train._replace(parse_example=slowly('warm-up', 30))
  elif fault == 'validation is slow':
    validation = validation._replace(parse_example=slowly('validation', 0.1))
  elif fault == 'the model sleeps':
    model = hanging_model
  elif fault == 'building is slow':
    model = slow_to_build
  elif fault == 'steps are marked':
    model = marked_model
  elif fault == 'dies once':
    model = dying_model
  elif fault == 'saving is slow':
    save_slowly()
  elif fault == 'NaN':
    train = faults.poison(train, ROW)
  elif fault == 'other data':
    train = small.random_examples(24, seed=2)
  elif fault == 'loading sleeps':
    load = faults.hang
  elif fault == 'out of memory':
    model = huge_model
  else:
    assert fault == 'none', fault
  data_set = DataSet(train, validation, image_shape=(1, 1, small.NUM_FEATURES),
                     num_classes=small.NUM_CLASSES)
  data.DATA_SETS['synthetic'] = load or (lambda settings: data_set)
  models.build_classifier = lambda *args, **settings: model
  return main.main(['main.py'] + FLAGS + flags)


if __name__ == '__main__':
  np.random.seed(0)
  sys.exit(run(sys.argv[1], sys.argv[2:]))
