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
from tests.harness import faults, small
from towers import data, models
from towers.checkpoint.checkpoints import Checkpoints
from towers.data import DataSet
from towers.session.engine import Engine
from towers.tensorflow_v1 import tf

ROW = 5
FLAGS = ['--data=synthetic', '--device=cpu', '--noshuffle', '--batch_size=4',
         '--schedule=constant', '--model=linear', '--validate_every=1000steps',
         '--checkpoint_every=1000steps', '--steps=100000']


def say(moment):
  os.write(1, b'<%s>\n' % moment.encode())


def through(act, tensor):
  """Returns the tensor after `act` in Python has seen it, or changed it."""
  passed = tf.py_func(act, [tensor], tensor.dtype)
  passed.set_shape(tensor.shape)
  return passed


def on_rows(act, *rows):
  """Returns a parse_example that calls `act` on some rows, or on all."""
  return lambda index: through(
      lambda value: act(value) if not rows or value in rows else value, index)


def fail(value):
  raise ValueError(f'record {value} is damaged')


def slowly(moment, seconds):
  def wait(value):
    say(moment)
    time.sleep(seconds)
    return value
  return on_rows(wait)


def hang_late(value):
  """Hangs some hundred steps after the start."""
  if value < 1000:
    return value
  say('asleep')
  return faults.hang(value)


def hanging_model(batch, is_training):
  features, labels = batch
  return small.model((through(faults.hang, features), labels), is_training)


def slow_to_build(batch, is_training):
  say('set-up')
  time.sleep(30)
  return small.model(batch, is_training)


def note_steps():
  """Returns a list of the steps that begin: the model is measured before the first one."""
  take_step, steps = Engine.take_step, []

  def train(engine, *validation_pass):
    steps.append(engine.step)
    return take_step(engine, *validation_pass)

  Engine.take_step = train
  return steps


def marked_model(batch, is_training):
  features, labels = batch
  steps = note_steps()

  def mark(value):
    if steps:
      say('training')
      time.sleep(0.02)
    return value

  return small.model((through(mark, features), labels), is_training)


def save_slowly():
  write = Checkpoints._write

  def slow_write(*args):
    say('saving')
    time.sleep(1)
    write(*args)

  Checkpoints._write = slow_write


def dying_model(batch, is_training):
  """Kills worker 1 in its 16th step, unless its folder has a checkpoint of an earlier life."""
  features, labels = batch
  folder = next(flag.split('=')[1] for flag in sys.argv if flag.startswith('--checkpoint_dir='))
  is_first_life = not os.path.exists(os.path.join(folder, 'checkpoint'))
  steps = note_steps()

  def act(value):
    time.sleep(0.02)
    if is_first_life and len(steps) == 16 and '"index": 1' in os.environ['TF_CONFIG']:
      os.kill(os.getpid(), signal.SIGKILL)
    return value

  return small.model((through(act, features), labels), is_training)


TRAIN, VALIDATION = small.random_examples(24), small.random_examples(20, 'validation', seed=1)
# What differs from a run without a fault: `train`, `validation`, `model`, or what loads the data.
FAULTS = {
    'none': {},
    'the map function raises': dict(train=TRAIN._replace(parse_example=on_rows(fail, ROW))),
    'the map function sleeps': dict(train=TRAIN._replace(parse_example=on_rows(faults.hang, ROW))),
    'a late map function sleeps': dict(
        train=small.random_examples(2000)._replace(parse_example=on_rows(hang_late))),
    'warm-up is slow': dict(train=TRAIN._replace(parse_example=slowly('warm-up', 30))),
    'validation is slow': dict(
        validation=VALIDATION._replace(parse_example=slowly('validation', 0.1))),
    'the model sleeps': dict(model=hanging_model),
    'building is slow': dict(model=slow_to_build),
    'steps are marked': dict(model=marked_model),
    'dies once': dict(model=dying_model),
    'saving is slow': {},
    'NaN': dict(train=faults.poison(TRAIN, ROW)),
    'other data': dict(train=small.random_examples(24, seed=2)),
    'loading sleeps': dict(load=faults.hang)}


def run(fault, flags):
  """Runs main.py with a fault; returns the exit code."""
  changes = FAULTS[fault]
  if fault == 'saving is slow':
    save_slowly()
  data_set = DataSet(changes.get('train', TRAIN), changes.get('validation', VALIDATION),
                     image_shape=(1, 1, small.NUM_FEATURES), num_classes=small.NUM_CLASSES)
  data.DATA_SETS['synthetic'] = changes.get('load', lambda settings: data_set)
  models.build_classifier = lambda *args, **settings: changes.get('model', small.model)
  return main.main(['main.py'] + FLAGS + flags)


if __name__ == '__main__':
  np.random.seed(0)
  sys.exit(run(sys.argv[1], sys.argv[2:]))
