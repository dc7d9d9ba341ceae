"""Input: speed and memory of each input mode and number of towers, beside bare tf.data.

  python -m benchmarks.input --make=/tmp/photos.tfrecords --count=6000  # photo crops, 500x375 JPEG
  python -m benchmarks.input --data_dir=/tmp/photos.tfrecords           # and CIFAR-shaped binary

It measures two things, each line in its own process:

  input     the modes of towers/input/pipeline.py without towers
  model     the whole program of main.py, with staging, around a model that computes nothing

A bare pipeline takes turns with each in the same process, so other work on the machine slows both:

  bare      a pipeline as one writes it by hand for the same files: TFRecordDataset or
            FixedLengthRecordDataset, interleaved over files, shuffled, mapped in parallel, batched;
            one session.run for each batch. The crop windows of photos are drawn beforehand from the
            same distribution, so both decode equally many pixels

A turn starts and ends when prefetching has caught up, so it counts the work of its own steps only.

The photos come from the Debian package lomiri-wallpapers-16.04. Their crops test throughput,
offsets and sizes beyond 2 GB; they are no benchmark of models. CIFAR-shaped means random bytes in
CIFAR-10's binary format.
"""

import argparse
import contextlib
import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, List, NamedTuple, Tuple

import numpy as np

from benchmarks.harness.flags import at_least, path_to_read
from benchmarks.harness.machine import read_peak_bytes
from towers.base.cores import count_cores
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.placement.devices import build_devices, build_session_config

PHOTOS = '/usr/share/backgrounds/*.jpg'
TOWERS = (1, 2, 4, 8)
MODES = ('split', 'next', 'shard')
HEIGHT, WIDTH, SIZE = 375, 500, 224
BATCH_SIZE = 64
CIFAR_BATCH_SIZE = 256
_CIFAR_RECORDS = 10000
_NUM_WINDOWS = 20000
_ROUNDS = 4
# A process is idle once it uses less than this share of a core for this long.
_IDLE_SECONDS, _IDLE_SHARE = 0.05, 0.1
_QUALITY = 90


def make_photos(folder: str, count: int) -> None:
  """Writes TFRecords of random crops of photos, scaled by 1 to 2, in ImageNet's layout."""
  from towers.data.formats.tfrecord import write_record
  from towers.tensorflow_v1 import tf
  from towers_data.labelled_example import encode_labelled

  os.makedirs(folder, exist_ok=True)
  random = np.random.RandomState(0)
  pixels, content = tf.placeholder(tf.uint8, [None, None, 3]), tf.placeholder(tf.string, [])
  small = tf.image.resize_bilinear(pixels[tf.newaxis], [HEIGHT, WIDTH], half_pixel_centers=True)[0]
  encoded = tf.image.encode_jpeg(tf.cast(small + 0.5, tf.uint8), quality=_QUALITY)
  decoded = tf.image.decode_jpeg(content, channels=3)
  num_files = max(count // 4000, 4)
  with tf.Session() as session, contextlib.ExitStack() as opened:
    photos = []
    for path in sorted(glob.glob(PHOTOS)):
      with open(path, 'rb') as photo:
        photos.append(session.run(decoded, {content: photo.read()}))
    for split, images in (('train', count), ('validation', 100)):
      paths = [os.path.join(folder, f'{split}-{index:05d}-of-{num_files:05d}')
               for index in range(num_files)]
      files = [opened.enter_context(open(path, 'wb')) for path in paths]
      for index in range(images):
        photo = photos[random.randint(len(photos))]
        scale = random.uniform(1, min(2, photo.shape[0] / HEIGHT, photo.shape[1] / WIDTH))
        height, width = int(HEIGHT * scale), int(WIDTH * scale)
        y = random.randint(photo.shape[0] - height + 1)
        x = random.randint(photo.shape[1] - width + 1)
        jpeg = session.run(encoded, {pixels: photo[y:y + height, x:x + width]})
        write_record(files[index % num_files], encode_labelled(jpeg, 1 + index % 1000))


def make_cifar_shaped(folder: str) -> None:
  """Writes random bytes in the format of CIFAR-10's binary version."""
  from towers_data.cifar import CIFARS
  random = np.random.RandomState(0)
  for name in CIFARS['cifar10'].train + CIFARS['cifar10'].validation:
    records = random.randint(256, size=(_CIFAR_RECORDS, 3073)).astype(np.uint8)
    records[:, 0] %= 10
    records.tofile(os.path.join(folder, name))


def load(kind: str, data_dir: str) -> Any:
  """Returns the data set with its usual augmentation."""
  from towers import data
  return data.load(kind, data_dir=data_dir, augment='imagenet' if kind == 'tfrecord' else 'cifar')


def build_bare(kind: str, data_dir: str) -> Any:
  """Returns initializer and step of a pipeline as one writes it by hand.

  It augments with TensorFlow's stateful random ops.
  """
  from towers.tensorflow_v1 import data_sets, tf
  from towers_data.windows import NUM_DRAWS, choose_random_windows

  def parse_photo(record, window):
    features = tf.io.parse_single_example(
        record, {
            'image/encoded': tf.FixedLenFeature([], tf.string),
            'image/class/label': tf.FixedLenFeature([], tf.int64)
        })
    content = features['image/encoded']
    image = tf.image.decode_and_crop_jpeg(content, window, channels=3,
                                          dct_method='INTEGER_ACCURATE')
    image = tf.image.resize_bilinear(image[tf.newaxis], [SIZE, SIZE], half_pixel_centers=True)[0]
    image = tf.image.random_flip_left_right(tf.cast(image + 0.5, tf.uint8))
    return image, tf.cast(features['image/class/label'], tf.int32)

  def parse_cifar(record):
    numbers = tf.decode_raw(record, tf.uint8)
    image = tf.transpose(tf.reshape(numbers[1:], [3, 32, 32]), [1, 2, 0])
    image = tf.random_crop(tf.pad(image, [[4, 4], [4, 4], [0, 0]]), [32, 32, 3])
    return tf.image.random_flip_left_right(image), tf.cast(numbers[0], tf.int32)

  is_photo = kind == 'tfrecord'
  pattern = 'train-*' if is_photo else 'data_batch_*.bin'
  paths = sorted(glob.glob(os.path.join(data_dir, pattern)))
  files = tf.data.Dataset.from_tensor_slices(paths).repeat()
  read = (tf.data.TFRecordDataset if is_photo
          else lambda file: tf.data.FixedLengthRecordDataset(file, 3073))
  records = files.interleave(read, cycle_length=4, num_parallel_calls=2)
  records = records.shuffle(2000)
  if is_photo:
    windows = choose_random_windows(tf.tile([[HEIGHT, WIDTH]], [_NUM_WINDOWS, 1]),
                                    tf.random_uniform([_NUM_WINDOWS, NUM_DRAWS['imagenet']]))
    records = tf.data.Dataset.zip((records, tf.data.Dataset.from_tensor_slices(windows).repeat()))
  examples = records.map(parse_photo if is_photo else parse_cifar, num_parallel_calls=count_cores())
  batches = examples.batch(BATCH_SIZE if is_photo else CIFAR_BATCH_SIZE).prefetch(2)
  iterator = tf.data.make_initializable_iterator(data_sets.plain(batches))
  images, labels = iterator.get_next()
  return iterator.initializer, tf.group(images, labels)


def build_nothing_model() -> Any:
  """Returns a model that reads its batch and computes next to nothing."""
  from towers.tensorflow_v1 import tf

  def model(batch, is_training):
    del is_training
    images, labels = batch
    weight = tf.get_variable('weight', [])
    return weight * tf.cast(images[:, 0, 0, 0], tf.float32) + tf.cast(labels, tf.float32)

  return model


class Turn(NamedTuple):
  """What a turn of steps has cost."""
  examples: int
  seconds: float
  core_seconds: float  # On all cores; other work on the machine changes them less.


def measure(what: str, kind: str, data_dir: str, mode: str, num_towers: int, seconds: float) -> str:
  """Measures one combination and the bare pipeline; returns a line of the table."""
  from benchmarks.harness.program import open_program
  from towers.settings.config import Config

  batch_size = BATCH_SIZE if kind == 'tfrecord' else CIFAR_BATCH_SIZE
  with contextlib.ExitStack() as opened:
    if what == 'input':
      ours = opened.enter_context(_open_input(kind, data_dir, mode, num_towers, batch_size))
    else:
      config = Config(batch_size=batch_size, validation='none', input_mode=mode, learning_rate=1e-9,
                      last_batch='drop')
      session = opened.enter_context(open_program(
          config, load(kind, data_dir), num_towers=num_towers, model=build_nothing_model()))
      session.start()
      ours = session.train
    _take_turn(ours, batch_size, seconds / 4)
    peak_bytes = read_peak_bytes()
    bare = opened.enter_context(_open_bare(kind, data_dir))
    _take_turn(bare, batch_size, seconds / 4)
    turns: List[Tuple[Turn, Turn]] = []
    for _ in range(_ROUNDS):
      our_turn = _take_turn(ours, batch_size, seconds / _ROUNDS)
      turns.append((our_turn, _take_turn(bare, batch_size, seconds / _ROUNDS)))

  rate, bare_rate = (statistics.median(turn.examples / turn.seconds for turn in column)
                     for column in zip(*turns))
  cost, bare_cost = (statistics.median(turn.core_seconds / turn.examples for turn in column)
                     for column in zip(*turns))
  return (f'{kind:8}  {what:5}  {mode:5}  {num_towers:6d}  {rate:>10,.0f}  {bare_rate:>10,.0f}  '
          f'{rate / bare_rate:>7.2f}  {cost * 1e3:>8.3f}  {bare_cost * 1e3:>8.3f}  '
          f'{bare_cost / cost:>7.2f}  {peak_bytes / 1e9:>6.2f} GB')


@contextlib.contextmanager
def _open_input(kind, data_dir, mode, num_towers, batch_size):
  """Yields a function that takes a batch for each tower and drops it."""
  from towers.tensorflow_v1 import tf
  train = load(kind, data_dir).train
  with tf.Graph().as_default():
    plan = build_plan(num_examples=train.num_examples, batch_size=batch_size,
                      num_towers=num_towers, last_batch='drop')
    inputs = build_inputs(train, plan=plan, mode=mode, shuffle=True)
    step = tf.group(*[tensor for batch in inputs.next_batches() for tensor in batch.tensors])
    with tf.Session(
        config=build_session_config(build_devices(num_towers, 'cpu'))) as session:
      session.run(inputs.initializer, inputs.feed_dict(0))
      yield session.make_callable(step)


@contextlib.contextmanager
def _open_bare(kind, data_dir):
  """Yields a function that takes a batch of the bare pipeline."""
  from towers.tensorflow_v1 import tf
  with tf.Graph().as_default():
    initializer, step = build_bare(kind, data_dir)
    with tf.Session(config=build_session_config(build_devices(1, 'cpu'))) as session:
      session.run(initializer)
      yield session.make_callable(step)


def _take_turn(step, batch_size, seconds) -> Turn:
  _wait_until_idle()
  started, cpu_started, count = time.monotonic(), time.process_time(), 0
  while not count or time.monotonic() - started < seconds:
    step()
    count += batch_size
  ended = _wait_until_idle()
  return Turn(count, ended - started, time.process_time() - cpu_started)


def _wait_until_idle() -> float:
  """Waits until this process is idle; returns the time at which it became so."""
  while True:
    since, cpu_since = time.monotonic(), time.process_time()
    time.sleep(_IDLE_SECONDS)
    if time.process_time() - cpu_since < _IDLE_SHARE * _IDLE_SECONDS:
      return since


def main() -> None:
  """Prints a table, each line measured in its own process, or one line."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--make', help='folder to write photos to')
  parser.add_argument('--count', type=at_least(1), default=6000, help='photos to write')
  parser.add_argument('--data_dir', type=path_to_read, help='folder of the photos')
  parser.add_argument('--seconds', type=at_least(0, float), default=8.0,
                      help='to measure for, each')
  parser.add_argument('--towers', type=at_least(1), nargs='+', default=TOWERS)
  parser.add_argument('--line', nargs=5,
                      help='what kind folder mode towers: one line, in this process')
  flags = parser.parse_args()
  if flags.make:
    make_photos(flags.make, flags.count)
    return
  if flags.line:
    what, kind, folder, mode, towers = flags.line
    print(measure(what, kind, folder, mode, int(towers), flags.seconds), flush=True)
    return

  def run(*arguments):
    command = [sys.executable, '-m', 'benchmarks.input', f'--seconds={flags.seconds:g}']
    subprocess.run([*command, *arguments], check=True)

  print(' ' * 31 + 'examples/s        bare  of bare    ms of a core    bare  of bare     memory',
        flush=True)
  with tempfile.TemporaryDirectory() as scratch:
    make_cifar_shaped(scratch)
    for kind, folder in (('cifar10', scratch), ('tfrecord', flags.data_dir)):
      if folder is None:
        continue
      for what in ('input', 'model'):
        for mode in MODES:
          for num_towers in flags.towers:
            run('--line', what, kind, folder, mode, str(num_towers))


if __name__ == '__main__':
  main()
