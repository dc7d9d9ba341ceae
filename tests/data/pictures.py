"""Pictures for the tests: smooth ones that TensorFlow encodes, so that every pixel of them is
known.
"""

import functools

import numpy as np

from tensorflow_v1 import tf
from towers.data.formats.tfrecord import write_record
from towers_data.example_proto import encode_example


@functools.lru_cache(maxsize=None)
def jpegs(count, height=24, width=32):
  """Returns JPEGs as bytes; the blue corner of each tells its number."""
  with tf.Graph().as_default(), tf.Session() as session:
    pixels = tf.placeholder(tf.uint8, [None, None, 3])
    encoded = tf.image.encode_jpeg(pixels, quality=95)
    return [
        session.run(encoded, {pixels: picture(number, height, width)}) for number in range(count)
    ]


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
