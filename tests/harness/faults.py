"""Faults that tests inject: in rows of data, model functions, files, memory and disk space.

Tests that kill a process do so themselves.
"""

import contextlib
import os
import resource
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.harness import small
from towers.tensorflow_v1 import tf


def poison(examples, row, value=np.nan):
  """Returns examples with NaN, or another value, as the features of one row."""
  features, labels = (np.array(array) for array in examples.arrays)
  features[row] = value
  return examples._replace(arrays=(features, labels))


def root_of_zero(batch, is_training):
  """A model whose loss is finite but, for an example of zeros, the gradient of a weight is NaN."""
  features, _ = batch
  losses, metrics = small.model(batch, is_training)
  with tf.variable_scope('logits', reuse=True):
    weights = tf.get_variable('weights', [4, small.NUM_CLASSES])
  return losses + 1e-3 * tf.sqrt(
      tf.reduce_sum(tf.abs(features), 1) * tf.reduce_sum(tf.square(weights))), metrics


def fails_once(tensor, *, calls, at):
  """Returns the tensor, but NaN at call number `at`, like a failing device."""
  def pass_on(value):
    calls.append(None)
    return value * np.float32(np.nan if len(calls) == at else 1)

  passed = tf.py_func(pass_on, [tensor], tensor.dtype)
  passed.set_shape(tensor.shape)
  return tensor + tf.stop_gradient(passed - tensor)


def hang(value):
  time.sleep(10 ** 6)
  return value


def truncate(path, keep_bytes):
  """Leaves only the first bytes of a file."""
  with open(str(path), 'r+b') as file:
    file.truncate(keep_bytes)


def flip_a_byte(path, position):
  """Changes one byte of a file, counted from its start or, if negative, its end."""
  with open(str(path), 'r+b') as file:
    file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
    byte = file.read(1)
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte[0] ^ 0xff]))


def be_special(path, kind):
  """Puts a FIFO nobody writes to, a device that never ends or a link to nowhere in a file's place.
  """
  with contextlib.suppress(FileNotFoundError):
    os.remove(str(path))
  if kind == 'a FIFO':
    os.mkfifo(str(path))
  else:
    os.symlink(dict(device='/dev/zero', link='nowhere')[kind.split()[-1]], str(path))


@contextlib.contextmanager
def full_disk(num_bytes=0):
  """Lets no file grow beyond `num_bytes`: writing fails as on a full disk, in C++ and Python."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def read_only(folder):
  """Makes a file system read-only at a folder, as the kernel does after errors of a disk.

  A remount is refused while files are open for writing, such as the lock: so a read-only mount
  covers the folder, and what is open stays so.
  """
  def run(*words):
    subprocess.run([*words, str(folder)], check=True, stderr=subprocess.DEVNULL)

  try:
    run('mount', '--bind', str(folder))
  except (OSError, subprocess.CalledProcessError):
    pytest.skip('needs root, and a kernel that lets it mount')
  try:
    run('mount', '-o', 'remount,bind,ro')
    yield
  finally:
    run('umount', '-l')


def short_of_memory(lacks, model=small.model):
  """Returns a model in which an op finds no room for the examples of a tower where it lacks some.

  The op fails as TensorFlow's own do, with ResourceExhaustedError.

  Args:
    lacks: a function of the number of examples and of `is_training`.
    model: of batches of small features.
  """
  def short(batch, is_training):
    features, labels = batch

    def pass_on(value, trains):
      if lacks(len(value), trains):
        raise MemoryError(f'no room for {len(value)} examples')
      return value

    passed = tf.py_func(pass_on, [features, is_training], features.dtype)
    passed.set_shape(features.shape)
    return model((passed, labels), is_training)

  return short
