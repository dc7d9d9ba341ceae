"""One life of a run: main.py, which notes what it does.

  python -m tests.chaos.life FOLDER drop|keep [flags of main.py]

Lines go to a file of the folder that is called by the process's number:

  process 0 3 127.0.0.1:20001 47.1   rank, number of workers, the chief's address, and the time
  build                          the model is called for the first time
  start                          just before the warm-up
  train 12 tower_1 7 51 30       the examples that a tower takes in a step
  validate 14 tower_0 3 4        the same in the validation of the weights after a step
  loss 13 0x1.8p+1               the chief's, after a step
  save, saved                    before and after a checkpoint is written

The numbers of examples begin with 1; 0 is the row that fills an empty tower, and NaN its features.
`drop` drops features out, other ones on every tower, so that only runs of the same shape are equal.
"""

import os
import sys
import time

import numpy as np

import main
from tests.harness import small
from towers import data, models
from towers.checkpoint.checkpoints import Checkpoints
from towers.data import DataSet
from towers.input import pipeline
from towers.placement.cluster import read_cluster
from towers.session.engine import Engine
from towers.tensorflow_v1 import tf
from towers.training.reporting.progress import Progress

NUM_TRAIN, NUM_VALIDATION = 53, 31
FIRST_VALIDATION = 1001
SECONDS_PER_STEP = 0.004


def live(notes, drops_out, flags):
  """Runs main.py; returns its exit code. `notes` is a descriptor."""
  def note(*words):
    os.write(notes, (' '.join(map(str, words)) + '\n').encode())

  starting = []
  cluster = read_cluster(os.environ)
  note('process', cluster.rank, cluster.num_workers, cluster.addresses[0], time.monotonic())

  def model(batch, is_training):
    features, labels, numbers = batch
    tower = tf.get_default_graph().get_name_scope()
    if tower.endswith('tower_0'):
      note('build')

    def look(numbers, step, is_training):
      if not starting:  # Before the first step parts of its batch are measured.
        note('train' if is_training else 'validate', step, tower, *numbers)
        time.sleep(SECONDS_PER_STEP)
      return numbers

    step = tf.train.get_or_create_global_step().read_value()
    with tf.control_dependencies([tf.py_func(look, [numbers, step, is_training], tf.int64)]):
      features = tf.identity(features)
    if drops_out:
      keep = tf.cast(tf.random_uniform(tf.shape(features)) < 0.8, tf.float32)
      features = tf.where(is_training, features * keep, features)
    return small.model((features, labels), is_training)

  def wrapped(function, before, after=None):
    def wrapper(self, *args, **kwargs):
      before(self, *args, **kwargs)
      result = function(self, *args, **kwargs)
      if after:
        after()
      return result
    return wrapper

  def begin(*_):
    note('start')
    starting.append(True)

  pipeline.fill_empty = small.fill_with_nan
  Engine.start = wrapped(Engine.start, begin, starting.clear)
  Progress.on_step = wrapped(Progress.on_step,
                             lambda _, run: note('loss', run.step, run.loss.hex()))
  Checkpoints._write = wrapped(Checkpoints._write, lambda *_: note('save'), lambda: note('saved'))
  data_set = DataSet(_numbered(small.random_examples(NUM_TRAIN), 1),
                     _numbered(small.random_examples(NUM_VALIDATION, 'validation', 1),
                               FIRST_VALIDATION),
                     image_shape=(1, 1, small.NUM_FEATURES), num_classes=small.NUM_CLASSES)
  data.DATA_SETS['synthetic'] = lambda settings: data_set
  models.build_classifier = lambda *args, **settings: model
  return main.main(['main.py', '--data=synthetic', '--device=cpu', '--model=linear', *flags])


def _numbered(examples, first):
  numbers = first + np.arange(examples.num_examples)
  return examples._replace(arrays=examples.arrays + (numbers.astype('int64'),))


if __name__ == '__main__':
  path = os.path.join(sys.argv[1], str(os.getpid()))
  with open(path, 'ab', buffering=0) as file:
    sys.exit(live(file.fileno(), sys.argv[2] == 'drop', sys.argv[3:]))
