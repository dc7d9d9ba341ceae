"""Encoded images: JPEGs and PNGs from files, as a split whose elements are indices.

  indices ──► 32 at a time: read, check, parse, choose windows    (threads wait for disks)
          ──► one by one: crop and decode                         (a chunk of 32 on each core)
          ──► (image, label)

Windows are chosen from the sizes in the headers, so that a JPEG is decoded only where it is needed,
and a header that declares more pixels than allowed is refused before they are allocated. What
cannot be read becomes a blank image that is marked, in its place; see `stand_ins` for what a
decoder refuses.
"""

import functools
import hashlib
import os
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np

from towers.base.later import tf
from towers.data.augmented import pad_crop_mirror
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.digest import FEWEST_ROWS, MOST_ROWS, choose_rows, to_int64
from towers.data.example_draws import draw
from towers.data.examples import Examples
from towers.data.stand_ins import map_chunks
from towers_data.image_header import check_is_whole, read_image_header
from towers_data.png import encode_png
from towers_data.windows import NUM_DRAWS, choose_central_windows, choose_random_windows, mirror

# Decoded in place of what could not be read.
_BLANK = encode_png(np.zeros([1, 1, 1], np.uint8))


class ImageSource(NamedTuple):
  """Where encoded images are.

  Attributes:
    num_examples: how many.
    read: `read(indices)` returns for each index its image as bytes and its label from 0, or a
      BadRecordError.
    place: `place(index)` returns the file, the offset in it in bytes, and the record's index in it.
  """
  num_examples: int
  read: Callable[[Sequence[int]], List[Any]]
  place: Callable[[int], Tuple[str, int, int]]


class ImageFormat(NamedTuple):
  """What images become: squares of `size` pixels; those of more than `max_pixels` are refused."""
  size: int
  channels: int
  max_pixels: int


def encoded_examples(source: ImageSource, *, format: ImageFormat, augment: str, seed: int,
                     bad_records: BadRecords, name: str) -> Examples:
  """Returns a split of images `[batch, size, size, channels]` uint8 and labels `[batch]` int32.

  It is augmented by one of `augment.KINDS`, and its draws are those of the seed.
  """
  reader = _Reader(source, format, augment, seed, bad_records, name)
  return Examples(num_examples=source.num_examples, read=reader.read, marks_bad=bad_records.skips,
                  name=name, digest_files=functools.partial(digest_images, source),
                  bad_records=(bad_records,))


def digest_images(source: ImageSource) -> int:
  """Returns an int64 for the names of 1,024 files and the bytes of 16.

  Names are without their folders, since these differ between machines.
  """
  digest = hashlib.sha256()
  for index in choose_rows(source.num_examples, MOST_ROWS).tolist():
    path, offset, record = source.place(index)
    digest.update(f'{os.path.basename(path)} {offset} {record}\n'.encode(errors='surrogateescape'))
  for result in source.read(choose_rows(source.num_examples, FEWEST_ROWS).tolist()):
    if not isinstance(result, BadRecordError):
      image, label = result
      digest.update(f'{len(image)} {label}\n'.encode() + image)
  return to_int64(digest)


class _Reader(NamedTuple):
  """Reads a split: from indices to `(image, label)`."""
  source: ImageSource
  format: ImageFormat
  augment: str
  seed: int
  bad_records: BadRecords
  name: str

  def read(self, indices, *, epoch, parallel_calls):
    """Returns the examples of a data set of indices, in its order."""
    return map_chunks(indices, lambda chunk: self._read_chunk(chunk, epoch), self._decode,
                      blank=self._make_blank, explain=diagnose, place=self.source.place,
                      bad_records=self.bad_records, name=self.name, parallel_calls=parallel_calls)

  def _read_chunk(self, indices, epoch):
    """Reads images and chooses their windows; returns the columns that `map_chunks` takes."""
    images, labels, sizes, is_read = tf.numpy_function(
        self._read_and_check, [indices], [tf.string, tf.int32, tf.int32, tf.bool])
    for tensor in (images, labels, is_read):
      tensor.set_shape([None])
    sizes.set_shape([None, 2])

    # At least one: TensorFlow 2.21 crashes where it takes a batch without columns apart.
    num_draws = max(NUM_DRAWS[self.augment], 1)
    draws = draw(indices, epoch=epoch, seed=self.seed, count=num_draws)
    if self.augment == 'imagenet':
      windows = choose_random_windows(sizes, draws)
    else:
      windows = choose_central_windows(sizes, self.format.size)
    return indices, images, is_read, labels, windows, draws

  def _read_and_check(self, indices):
    """Returns images, labels, sizes and whether each was read, as arrays."""
    images, labels = [], np.zeros(len(indices), np.int32)
    sizes, is_read = np.ones([len(indices), 2], np.int32), np.zeros(len(indices), bool)
    for row, result in enumerate(self.source.read(indices.tolist())):
      try:
        if isinstance(result, BadRecordError):
          raise result
        image, label = result
        sizes[row] = _check_size(image, self.format.max_pixels)
        images.append(image)
        labels[row], is_read[row] = label, True
      except BadRecordError as error:
        images.append(_BLANK)
        self.bad_records.report(*self.source.place(indices[row]), str(error))
    return np.array(images, object), labels, sizes, is_read

  def _decode(self, image, label, window, draws):
    """Returns the example of an image; fails where the decoder does."""
    image = _decode_window(image, window, self.format.size, self.format.channels)
    if self.augment == 'cifar':
      image = pad_crop_mirror(image, draws[tf.newaxis])
    image = image[0]
    if self.augment == 'imagenet':
      image = mirror(image, draws[-1])
    return image, label

  def _make_blank(self):
    size, channels = self.format.size, self.format.channels
    return tf.zeros([size, size, channels], tf.uint8), tf.zeros([], tf.int32)


def decode_images(contents: Any, image_size: int, channels: int = 3) -> Any:
  """Decodes JPEGs and PNGs as validation does with the `image_size` of `towers.data.load`.

  The middle of each, 0.875 of its shorter side, is decoded and resized. For the inputs of an
  export, which get files and not their pixels:

    lambda files: predict(towers.data.decode_images(files, image_size=224))

  Args:
    contents: what the files hold, a string tensor `[batch]`.
    image_size: height and width of the images returned.
    channels: 3, or 1 for grey images.

  Returns:
    Images `[batch, image_size, image_size, channels]` uint8. A step fails where one is damaged.
  """
  def decode(content):
    size = tf.cond(
        is_png(content),
        lambda: tf.reverse(tf.decode_raw(tf.strings.substr(content, 16, 8), tf.int32,
                                         little_endian=False), [0]),
        lambda: tf.image.extract_jpeg_shape(content)[:2])
    window = choose_central_windows(tf.reshape(size, [1, 2]), image_size)[0]
    return _decode_window(content, window, image_size, channels)[0]

  return tf.map_fn(decode, contents, tf.uint8)


def _decode_window(content, window, size, channels):
  """Returns the window of an encoded image, `[1, size, size, channels]` uint8; fails if damaged."""
  def decode_png():
    image = tf.image.decode_png(content, channels=channels)
    return tf.slice(image, tf.concat([window[:2], [0]], 0), tf.concat([window[2:], [-1]], 0))

  def decode_jpeg():
    # The accurate transform gives the same pixels in every version of libjpeg, the fast one need
    # not.
    return tf.image.decode_and_crop_jpeg(content, window, channels=channels,
                                         dct_method='INTEGER_ACCURATE')

  image = tf.cond(is_png(content), decode_png, decode_jpeg)
  image = tf.image.resize_bilinear(image[tf.newaxis], [size] * 2, half_pixel_centers=True)
  image = tf.cast(image + 0.5, tf.uint8)
  image.set_shape([1, size, size, channels])
  return image


def is_png(content: Any) -> Any:
  """Returns whether an encoded image is a PNG; else it is taken as a JPEG."""
  return tf.equal(tf.strings.substr(content, 0, 4), b'\x89PNG')


def _check_size(content: bytes, max_pixels: int) -> Tuple[int, int]:
  """Returns height and width of an encoded image.

  Raises:
    BadRecordError: it has no size, or too many pixels.
  """
  try:
    header = read_image_header(content)
  except ValueError as error:
    raise BadRecordError(str(error)) from None
  if not 1 <= header.height * header.width <= max_pixels:
    raise BadRecordError(f'an image of {header.width:,} x {header.height:,} pixels, and 1 to '
                         f'max_image_pixels={max_pixels:,} are allowed')
  return header.height, header.width


def diagnose(content: bytes) -> str:
  """Returns why an image whose header could be read cannot be decoded, in words."""
  try:
    check_is_whole(content)
  except ValueError as error:
    return str(error)
  kind = 'PNG' if content[:4] == b'\x89PNG' else 'JPEG'
  return f'the {kind} cannot be decoded'
