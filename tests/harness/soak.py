"""Kills runs of main.py at random moments with `kill -9`, and restarts them until they are done.

  python -m tests.harness.soak --kills=54        # about ten minutes

In every input mode and staging depth, all lives of a run together must equal one uninterrupted run:
the same examples on the same towers in the same steps, the same losses, and to the bit the same
weights and history. Every run shuffles, drops out, validates and saves while it trains.
"""

import argparse
import collections
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from tests import ROOT

RUNS = list(itertools.product(('split', 'next', 'shard'), (0, 1, 2)))
MOMENTS = {'start': 'warm-up', 'train': 'training', 'loss': 'training', 'validate': 'validation',
           'save': 'saving', 'saved': 'training'}
SECONDS_PER_STEP = 0.004


def live(log_path, flags):
  """Runs one life: main.py, which logs lines of what it does, step, tower and values."""
  import main
  import models
  from tensorflow_v1 import tf
  from tests.harness import small
  from towers import data
  from towers.data import DataSet
  from towers.training.reporting.progress import Progress
  from towers.training.saving.checkpoints import Checkpoints
  from towers.training.stepping.steps import Steps

  log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

  def note(*words):
    os.write(log, (' '.join(map(str, words)) + '\n').encode())

  def with_indices(examples, first):
    indices = first + small.np.arange(examples.num_examples)
    return examples._replace(arrays=examples.arrays + (indices.astype('int64'),))

  def model(batch, is_training):
    features, labels, indices = batch
    tower = tf.get_default_graph().get_name_scope()

    def look(indices, step):
      note('train' if indices[0] < 1000 else 'validate', step, tower, *indices)
      time.sleep(SECONDS_PER_STEP)
      return indices

    step = tf.train.get_or_create_global_step().read_value()
    with tf.control_dependencies([tf.py_func(look, [indices, step], tf.int64)]):
      features = tf.identity(features)
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

  def note_loss(_, step, loss):
    note('loss', step, '-', float(loss).hex())

  Steps.start = wrapped(Steps.start, lambda *_: note('start'))
  Progress.step = wrapped(Progress.step, note_loss)
  Checkpoints._write = wrapped(Checkpoints._write, lambda *_: note('save'), lambda: note('saved'))
  data_set = DataSet(with_indices(small.random_examples(53), 0),
                     with_indices(small.random_examples(31, 'validation', 1), 1000),
                     image_shape=(1, 1, small.NUM_FEATURES), num_classes=small.NUM_CLASSES)
  data.DATA_SETS['synthetic'] = lambda settings: data_set
  models.build_classifier = lambda *args, **settings: model
  return main.main(['main.py', '--data=synthetic', '--device=cpu', '--model=linear',
                    '--batch_size=8', *flags])


def start(folder, mode, depth, num_steps):
  command = [sys.executable, '-m', 'tests.harness.soak', f'--log={folder}.log', '--',
             f'--input_mode={mode}', f'--staging_depth={depth}', '--num_gpus=3',
             f'--steps={num_steps}', '--validate_every=7steps', '--checkpoint_every=5steps',
             f'--checkpoint_dir={folder}']
  return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process):
  errors = process.communicate(timeout=120)[1]
  assert process.returncode == 0, errors.decode()


def read(folder):
  """Returns all values logged for each (what, step, tower), the last weights, and the history."""
  import numpy as np

  from tensorflow_v1 import tf
  taken = collections.defaultdict(set)
  with open(folder + '.log') as file:
    for words in map(str.split, file):
      if words[0] in ('train', 'validate', 'loss'):
        # All batches of one validation have the same step; their first example tells them apart.
        key = tuple(words[:4] if words[0] == 'validate' else words[:3])
        taken[key].add(tuple(words[3:]))
  reader = tf.train.load_checkpoint(folder)
  weights = {name: np.asarray(reader.get_tensor(name)).tobytes()
             for name in reader.get_variable_to_shape_map()}
  with open(os.path.join(folder, 'history.json')) as file:
    return dict(taken), weights, file.read()


def last_moment(log_path):
  with open(log_path) as file:
    lines = [line.split()[0] for line in file if line.strip()]
  return MOMENTS[lines[-1]] if lines else 'set-up'


def soak(kills, runs, num_steps, seed, report=print):
  """Kills as often as asked, over all runs in turn; returns the number of kills by moment."""
  randomness = random.Random(seed)
  moments = collections.Counter()
  lives = collections.Counter()
  with tempfile.TemporaryDirectory() as base:
    for index, (mode, depth) in enumerate(runs):
      due = kills * (index + 1) // len(runs)
      expected = os.path.join(base, f'{mode}-{depth}')
      finish(start(expected, mode, depth, num_steps))
      folder = expected + '-killed'
      # An average life gets so far that the last one is killed near the end.
      remaining = max(1, due - sum(moments.values()))
      most_bytes = int(1.8 * os.path.getsize(expected + '.log') / remaining)
      while sum(moments.values()) < due:
        process = start(folder, mode, depth, num_steps)
        log = folder + '.log'
        size = os.path.getsize(log) if os.path.exists(log) else 0
        size += randomness.choice([0, randomness.randint(0, most_bytes),
                                   randomness.randint(0, most_bytes)])
        while process.poll() is None and (not os.path.exists(log) or os.path.getsize(log) <= size):
          time.sleep(0.001)
        time.sleep(randomness.uniform(0, 4 * SECONDS_PER_STEP))
        if process.poll() is not None:
          finish(process)
          break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        moments[last_moment(log)] += 1
        lives[mode, depth] += 1
      else:
        finish(start(folder, mode, depth, num_steps))
      taken, weights, history = read(folder)
      expected_taken, expected_weights, expected_history = read(expected)
      lost = [key for key in expected_taken if key not in taken]
      wrong = [key for key, values in taken.items() if values != expected_taken.get(key)]
      assert not lost and not wrong, (mode, depth, lost[:3], wrong[:3])
      assert weights == expected_weights and history == expected_history, (mode, depth)
      report(f'{mode}, staging depth {depth}: {lives[mode, depth]} kills survived; {len(taken)} '
             'steps and validations equal, weights and history too')
  counts = ', '.join(f'{moment} {count}' for moment, count in moments.most_common())
  report(f'{sum(moments.values())} kills in all: {counts}; examples lost: 0')
  return moments


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--kills', type=int, default=54)
  parser.add_argument('--steps', type=int, default=300)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--log', help='file for the log of one life; its flags follow')
  parser.add_argument('flags', nargs='*')
  flags = parser.parse_args()
  if flags.log:
    return live(flags.log, flags.flags)
  soak(flags.kills, RUNS, flags.steps, flags.seed, report=lambda line: print(line, flush=True))
  return 0


if __name__ == '__main__':
  sys.exit(main())
