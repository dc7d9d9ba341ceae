"""Pictures for the tests: smooth, encoded by TensorFlow, so that every pixel of them is known."""

import functools
import io

import numpy as np

from tests.harness import taking
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.formats.tfrecord import write_record
from towers.tensorflow_v1 import tf
from towers_data.encoded_images import ImageFormat, ImageSource, encoded_examples
from towers_data.labelled_example import decode_labelled, encode_example


@functools.lru_cache(maxsize=None)
def jpegs(count, height=24, width=32):
  """Returns JPEGs as bytes; the blue corner of each tells its number."""
  with tf.Graph().as_default(), tf.Session() as session:
    pixels = tf.placeholder(tf.uint8, [None, None, 3])
    encoded = tf.image.encode_jpeg(pixels, quality=95)
    return [session.run(encoded, {pixels: picture(number, height, width)})
            for number in range(count)]


def picture(number, height=24, width=32):
  """Returns the picture of a number, uint8 `[height, width, 3]`."""
  y, x = np.mgrid[:height, :width]
  return np.stack([y * 255 // height, x * 255 // width,
                   np.full_like(x, number * 37 % 256)], -1).astype(np.uint8)


def write_tfrecords(folder, split, labels_of_files, images=None, first_label=1):
  """Writes a file for each list of labels, in ImageNet's layout; returns the paths."""
  images = images or jpegs(sum(map(len, labels_of_files)))
  paths, number = [], 0
  for file, labels in enumerate(labels_of_files):
    paths.append(folder / (f'{split}-{int(file):05}-of-{len(labels_of_files):05}'))
    with open(str(paths[-1]), 'wb') as stream:
      for label in labels:
        features = {'image/encoded': images[number], 'image/class/label': label + first_label}
        write_record(stream, encode_example(features))
        number += 1
  return paths


def damage(path, offset, change=0xFF):
  """Flips the bits of `change` in the byte at `offset`, which counts from the end if negative."""
  content = bytearray(path.read_bytes())
  content[offset] ^= change
  path.write_bytes(bytes(content))


FORMAT = ImageFormat(size=16, channels=3, max_pixels=10**6)


def decode(record):
  if isinstance(record, BadRecordError):
    return record
  try:
    return decode_labelled(record, num_classes=1000, first_label=1)
  except BadRecordError as error:
    return error


class List:
  """Records that are held in a list."""

  def __init__(self, contents, labels=None, policy='skip'):
    """Images where labels are given, else Examples."""
    def read(numbers):
      if labels is not None:
        return [(contents[number], labels[number]) for number in numbers]
      return [decode(contents[number]) for number in numbers]

    self.bad_records = BadRecords(policy, io.StringIO())
    self.source = ImageSource(len(contents), read, lambda number: ('file', 100 * number, number))

  def examples(self, format=FORMAT):
    return encoded_examples(self.source, format=format, augment='none', seed=5,
                            bad_records=self.bad_records, name='pictures')

  def take(self, *, format=FORMAT, **settings):
    return take(self.examples(format), **settings)


def take(examples, *, batch_size=8, num_steps=None, **settings):
  """Returns for each step {label: image} over all towers."""
  steps = []
  for by_tower in taking.take(
      examples, batch_size=batch_size, seed=1,
      num_steps=num_steps or -(-examples.num_examples // batch_size), **settings):
    taken = {}
    for (images, labels), count in by_tower:
      assert len(images) == len(labels) >= max(count, 1) and images.dtype == np.uint8
      for image, label in zip(images[:count], labels[:count]):
        assert label not in taken
        taken[int(label)] = image
    steps.append(taken)
  return steps
