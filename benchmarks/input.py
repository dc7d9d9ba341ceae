"""Input: examples per second of each input mode and number of towers, beside bare tf.data, and memory.

  python -m benchmarks.input --make=/tmp/photos.tfrecords --count=6000      # crops of photos, 500x375 JPEG
  python -m benchmarks.input --data_dir=/tmp/photos.tfrecords               # and CIFAR-shaped binary
  python -m benchmarks.input --wall_gb=3                                    # an array beyond 2 GB in each mode

Three things are measured on the same files, each in a process of its own:

  bare      what one writes by hand: TFRecordDataset or FixedLengthRecordDataset, interleaved over files, shuffled,
            mapped in parallel, batched; one session.run for each batch
  input     the modes of towers/inputs.py without towers
  model     the whole program of main.py, with staging, around a model that computes nothing

The photos are those of the Debian package lomiri-wallpapers-16.04. What is made of them tests throughput, offsets and
sizes beyond 2 GB, and is no benchmark of models. CIFAR-shaped means random bytes in CIFAR-10's binary format.
"""

import argparse
import contextlib
import glob
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from cores import count_cores

PHOTOS = '/usr/share/backgrounds/*.jpg'
TOWERS = (1, 2, 4, 8)
MODES = ('split', 'next', 'shard')
HEIGHT, WIDTH, SIZE = 375, 500, 224
BATCH_SIZE = 64
CIFAR_BATCH_SIZE = 256
_CIFAR_RECORDS = 10000
_QUALITY = 90


def make_photos(folder: str, count: int) -> None:
  """Writes TFRecords of random crops of photos, scaled by 1 to 2, in ImageNet's layout."""
  from data.labelled_example import encode_labelled
  from data.tfrecord import write_record
  from tensorflow_v1 import tf

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
      files = [opened.enter_context(open(os.path.join(folder, '{}-{:05d}-of-{:05d}'.format(split, number, num_files)),
                                         'wb')) for number in range(num_files)]
      for number in range(images):
        photo = photos[random.randint(len(photos))]
        scale = random.uniform(1, min(2, photo.shape[0] / HEIGHT, photo.shape[1] / WIDTH))
        height, width = int(HEIGHT * scale), int(WIDTH * scale)
        y, x = random.randint(photo.shape[0] - height + 1), random.randint(photo.shape[1] - width + 1)
        jpeg = session.run(encoded, {pixels: photo[y:y + height, x:x + width]})
        write_record(files[number % num_files], encode_labelled(jpeg, 1 + number % 1000))


def make_cifar_shaped(folder: str) -> None:
  """Writes random bytes in the format of CIFAR-10's binary version."""
  from data.cifar import CIFARS
  random = np.random.RandomState(0)
  for name in CIFARS['cifar10'].train + CIFARS['cifar10'].validation:
    records = random.randint(256, size=(_CIFAR_RECORDS, 3073)).astype(np.uint8)
    records[:, 0] %= 10
    records.tofile(os.path.join(folder, name))


def load(kind: str, data_dir: str) -> Any:
  """Returns the data set, with the augmentation that goes with it."""
  import data
  return data.load(kind, data_dir=data_dir, augment='imagenet' if kind == 'tfrecord' else 'cifar')


def build_bare(kind: str, data_dir: str) -> Any:
  """Returns the pipeline that one writes by hand, with TensorFlow's stateful random ops."""
  from tensorflow_v1 import plain_data_options, tf

  def parse_photo(record):
    features = tf.io.parse_single_example(record, {'image/encoded': tf.FixedLenFeature([], tf.string),
                                                   'image/class/label': tf.FixedLenFeature([], tf.int64)})
    content = features['image/encoded']
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(content), tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), area_range=[0.08, 1.0],
        aspect_ratio_range=[3 / 4, 4 / 3], max_attempts=10, use_image_if_no_bounding_boxes=True)
    image = tf.image.decode_and_crop_jpeg(content, tf.concat([begin[:2], size[:2]], 0), channels=3,
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
  files = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(os.path.join(data_dir, pattern)))).repeat()
  records = files.interleave(
      tf.data.TFRecordDataset if is_photo else lambda file: tf.data.FixedLengthRecordDataset(file, 3073),
      cycle_length=4, num_parallel_calls=2)
  examples = records.shuffle(2000).map(parse_photo if is_photo else parse_cifar, num_parallel_calls=count_cores())
  batches = examples.batch(BATCH_SIZE if is_photo else CIFAR_BATCH_SIZE).prefetch(2)
  iterator = tf.data.make_initializable_iterator(batches.with_options(plain_data_options()))
  images, labels = iterator.get_next()
  return iterator.initializer, tf.group(images, labels)


def build_nothing_model() -> Any:
  """Returns a model that reads its batch and computes nothing worth the name."""
  from tensorflow_v1 import tf

  def model(batch, is_training):
    del is_training
    images, labels = batch
    weight = tf.get_variable('weight', [])
    return weight * tf.cast(images[:, 0, 0, 0], tf.float32) + tf.cast(labels, tf.float32)

  return model


def measure(what: str, kind: str, data_dir: str, mode: str, num_towers: int, seconds: float) -> str:
  """Measures one combination in this process; returns a line of the table."""
  import towers
  from benchmarks.program import open_program
  from tensorflow_v1 import tf
  from training.config import Config

  batch_size = BATCH_SIZE if kind == 'tfrecord' else CIFAR_BATCH_SIZE
  config = Config(batch_size=batch_size, validation='none', input_mode=mode, learning_rate=1e-9, drop_remainder=True)
  devices = towers.build_devices(num_towers, 'cpu')
  if what == 'bare':
    initializer, step = build_bare(kind, data_dir)
    with tf.Session(config=towers.build_session_config(devices)) as session:
      session.run(initializer)
      rates = _rate(session.make_callable(step), batch_size, seconds)
  else:
    data_set = load(kind, data_dir)
    if what == 'input':
      plan = towers.build_plan(num_examples=data_set.train.num_examples, batch_size=batch_size, num_towers=num_towers,
                               drop_remainder=True)
      inputs = towers.build_inputs(data_set.train, plan=plan, mode=mode, shuffle=True)
      step = tf.group(*[tensor for batch in inputs.next_batches() for tensor in batch.tensors])
      with tf.Session(config=towers.build_session_config(devices)) as session:
        session.run(inputs.initializer, inputs.feeds(0))
        rates = _rate(session.make_callable(step), batch_size, seconds)
    else:
      with open_program(config, data_set, num_towers=num_towers, model=build_nothing_model()) as steps:
        steps.start(0)
        rates = _rate(steps.train, batch_size, seconds)
  peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return '{:8}  {:5}  {:5}  {:6d}  {:>10,.0f}  {:>16,.0f}  {:>6.2f} GB'.format(
      kind, what, mode if what != 'bare' else '', num_towers, *rates, peak_bytes / 1e9)


def _rate(step, batch_size, seconds):
  """Returns examples per second, and per second of a core, which other work on the machine changes less."""
  for _ in range(5):
    step()
  started, cpu_started, count = time.monotonic(), time.process_time(), 0
  while time.monotonic() - started < seconds:
    step()
    count += batch_size
  return count / (time.monotonic() - started), count / (time.process_time() - cpu_started)


def measure_wall(num_gb: float, mode: str, num_towers: int) -> str:
  """Trains two steps from an array beyond 2 GB in this process; returns a line with the peak of its memory."""
  import data
  from benchmarks.program import open_program
  from training.config import Config

  images = np.zeros([int(num_gb * 1e9) // (SIZE * SIZE * 3), SIZE, SIZE, 3], np.uint8)
  images[:, ::8] = 1  # Touches every page: memory that is only promised would not count.
  labels = np.arange(len(images), dtype=np.int32) % 10
  held_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  examples = data.from_arrays(images, labels, name='large')
  data_set = data.DataSet(examples, data.from_arrays(images[:64], labels[:64], name='validation'), images.shape[1:], 10)
  config = Config(batch_size=64, input_mode=mode)
  with open_program(config, data_set, num_towers=num_towers, model=build_nothing_model()) as steps:
    graph_bytes = steps.session.graph.as_graph_def().ByteSize()
    steps.start(0)
    losses = [float(steps.train()) for _ in range(2)]
  assert np.isfinite(losses).all()
  peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return '{:5}  {:6d}  {:>8.2f} GB  {:>10.2f} GB  {:>7.2f} GB  {:>8,} bytes'.format(
      mode, num_towers, images.nbytes / 1e9, held_bytes / 1e9, peak_bytes / 1e9, graph_bytes)


def main() -> None:
  """Prints a table, each line from a process of its own, or one line."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--make', help='folder to write photos to')
  parser.add_argument('--count', type=int, default=6000, help='photos to write')
  parser.add_argument('--data_dir', help='folder of the photos')
  parser.add_argument('--seconds', type=float, default=8.0, help='to measure for, each')
  parser.add_argument('--wall_gb', type=float, help='size of an array beyond 2 GB')
  parser.add_argument('--towers', type=int, nargs='+', default=TOWERS)
  parser.add_argument('--line', nargs=5, help='what kind folder mode towers: one line, in this process')
  parser.add_argument('--wall_line', nargs=2, help='mode towers: one line, in this process')
  flags = parser.parse_args()
  if flags.make:
    make_photos(flags.make, flags.count)
    return
  if flags.line:
    what, kind, folder, mode, towers = flags.line
    print(measure(what, kind, folder, mode, int(towers), flags.seconds), flush=True)
    return
  if flags.wall_line:
    print(measure_wall(flags.wall_gb, flags.wall_line[0], int(flags.wall_line[1])), flush=True)
    return

  def run(*arguments):
    subprocess.run([sys.executable, '-m', 'benchmarks.input', '--seconds=%g' % flags.seconds] + list(arguments),
                   check=True)

  if flags.wall_gb:
    print('mode   towers        array  held before       peak           graph', flush=True)
    for mode in MODES:
      for num_towers in flags.towers:
        run('--wall_gb=%g' % flags.wall_gb, '--wall_line', mode, str(num_towers))
    return
  print('data      what   mode   towers  examples/s  examples/core-s     memory', flush=True)
  with tempfile.TemporaryDirectory() as scratch:
    make_cifar_shaped(scratch)
    for kind, folder in (('cifar10', scratch), ('tfrecord', flags.data_dir)):
      if folder is None:
        continue
      run('--line', 'bare', kind, folder, 'split', '1')
      for what in ('input', 'model'):
        for mode in MODES:
          for num_towers in flags.towers:
            run('--line', what, kind, folder, mode, str(num_towers))
      run('--line', 'bare', kind, folder, 'split', '1')


if __name__ == '__main__':
  main()
