"""Encoded images: JPEGs and PNGs from files, as a split whose elements are numbers.

  numbers ──► 32 at a time: read, check, parse, choose windows    (threads wait for disks)
          ──► one by one: crop and decode                         (a chunk of 32 on each core)
          ──► (image, label)

Windows are chosen from the sizes in the headers before anything is decoded, so that a JPEG is
decoded only where it is needed, and a header that declares more pixels than allowed is refused
before they are allocated.

A record that cannot be read or decoded becomes a row that is marked, in its place. What cannot be
read is known before anything is decoded. An error of a decoder would take its record out of the
row, and all that follow would move up; so a chunk is decoded up to the first error, and its rest
with care:

  records ──► decode ──► up to the first gap ──┬──► as many as there are records
  records behind the gap, each a data set of   │
  its own, whose error ends it alone ──────────┘

A data set for each record would cost a tenth of what decoding costs; few chunks, or none, have need
of it.
"""

from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np

from towers.data.augment import (
  NUM_DRAWS,
  choose_central_windows,
  choose_random_windows,
  mirror,
  pad_crop_mirror,
)
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.draws import draw
from towers.data.examples import Examples
from towers.data.formats.image_header import check_is_whole, read_image_header
from towers.data.formats.png import encode_png

_CHUNK = 32
_PARALLEL_CHUNKS = 2
# Decoded in place of what could not be read, so that no error comes of it.
_BLANK = encode_png(np.zeros([1, 1, 1], np.uint8))


class ImageSource(NamedTuple):
  """Where encoded images are.

  Attributes:
    num_examples: how many.
    read: `read(numbers)` returns for each number its image as bytes and its label from 0, or a
      BadRecordError.
    place: `place(number)` returns the file, the offset in it in bytes, and the record's number in
      it.
  """
  num_examples: int
  read: Callable[[Sequence[int]], List[Any]]
  place: Callable[[int], Tuple[str, int, int]]


class ImageFormat(NamedTuple):
  """What images become.

  Attributes:
    size: height and width of the result, in pixels.
    channels: 1 or 3.
    max_pixels: images of more pixels than this are refused.
  """
  size: int
  channels: int
  max_pixels: int


def encoded_examples(source: ImageSource, *, format: ImageFormat, augment: str, seed: int,
                     bad_records: BadRecords, name: str) -> Examples:
  """Makes a split of encoded images.

  Args:
    source: where they are.
    format: what they become.
    augment: one of `augment.KINDS`.
    seed: of augmentation.
    bad_records: what to do with those that cannot be read.
    name: of the split.

  Returns:
    Examples of images `[batch, size, size, channels]` uint8 and labels `[batch]` int32.
  """
  skips = bad_records.policy == 'skip'

  def read_chunk(numbers):
    """Returns images, labels, sizes, and whether each could be read; what is left to fail is
    decoding it.
    """
    images, labels = [], np.zeros(len(numbers), np.int32)
    sizes, is_read = np.ones([len(numbers), 2], np.int32), np.zeros(len(numbers), bool)
    for position, result in enumerate(source.read(numbers.tolist())):
      try:
        if isinstance(result, BadRecordError):
          raise result
        image, label = result
        sizes[position] = _check_size(image, format.max_pixels)
        images.append(image)
        labels[position], is_read[position] = label, True
      except BadRecordError as error:
        images.append(_BLANK)
        report(int(numbers[position]), str(error))
    return np.array(images, object), labels, sizes, is_read

  def report(number, reason):
    path, offset, record = source.place(number)
    bad_records.report(path, offset, reason, record=record)

  def report_undecoded(number, image):
    """Reports an image that was read and cannot be decoded."""
    report(int(number), diagnose(bytes(image)))
    return np.False_

  def elements(*_):
    from tensorflow_v1 import tf
    return tf.data.Dataset.range(source.num_examples)

  def read(numbers, *, epoch, parallel_calls):
    from tensorflow_v1 import tf

    def begin(numbers):
      images, labels, sizes, is_read = tf.numpy_function(
          read_chunk, [numbers], [tf.string, tf.int32, tf.int32, tf.bool])
      for tensor in (images, labels, is_read):
        tensor.set_shape([None])
      sizes.set_shape([None, 2])
      # At least one: TensorFlow 2.21 crashes where it takes a batch without columns apart.
      draws = draw(numbers, epoch=epoch, seed=seed, count=max(NUM_DRAWS[augment], 1))
      windows = (choose_random_windows(sizes, draws) if augment == 'imagenet'
                 else choose_central_windows(sizes, format.size))
      return tf.range(tf.size(numbers,
                              out_type=tf.int64)), numbers, images, labels, is_read, windows, draws

    def decode(position, number, image, label, is_read, window, draws):
      return position, as_element(_decode_image(image, window, format, augment, draws), label,
                                  is_read)

    def stand_in(position, number, image, *_):
      is_good = tf.numpy_function(report_undecoded, [number, image], tf.bool)
      is_good.set_shape([])
      return position, as_blank(is_good)

    def refuse(*_):
      # A chunk with fewer rows would move all that follow, silently.
      message = f'{name}: an image could not be decoded, and then could: a lack of memory?'
      with tf.control_dependencies([tf.Assert(False, [message])]):
        return as_blank(tf.zeros([], tf.bool))

    def as_blank(is_good):
      blank = tf.zeros([format.size, format.size, format.channels], tf.uint8)
      return as_element(blank, tf.zeros([], tf.int32), is_good)

    def as_element(image, label, is_good):
      return ((image, label), is_good) if skips else (image, label)

    def decode_chunk(*chunk):
      records = tf.data.Dataset.from_tensor_slices(chunk)
      decoded = tf.data.Dataset.zip(
          (tf.data.Dataset.range(_CHUNK), _decode_what_can_be(records, decode)))
      decoded = decoded.apply(
          tf.data.experimental.take_while(lambda position, row: tf.equal(position, row[0])))
      decoded = decoded.map(lambda position, row: row[1])

      # Asked for when that ends early, which it seldom does. No reduce: TensorFlow 1.14 may crash
      # where a session that runs one is closed.
      positions = _decode_what_can_be(records, decode).map(lambda position, _: position)
      positions = positions.concatenate(tf.data.Dataset.from_tensors(tf.constant(-1, tf.int64)))
      gap = tf.data.Dataset.zip(
          (tf.data.Dataset.range(_CHUNK), positions)).filter(tf.not_equal).take(1)
      rest = gap.flat_map(lambda position, _: records.skip(position).flat_map(decode_alone))
      rows = decoded.concatenate(rest).concatenate(records.map(refuse))
      return rows.take(tf.size(chunk[0], out_type=tf.int64))

    def decode_alone(*record):
      alone = tf.data.Dataset.from_tensors(record)
      rows = _decode_what_can_be(alone, decode).concatenate(alone.map(stand_in)).take(1)
      return rows.map(lambda position, element: element)

    chunks = numbers.batch(_CHUNK).map(begin, num_parallel_calls=min(_PARALLEL_CHUNKS,
                                                                     parallel_calls)).prefetch(1)
    return chunks.interleave(decode_chunk, cycle_length=parallel_calls, block_length=_CHUNK,
                             num_parallel_calls=parallel_calls)

  return Examples(num_examples=source.num_examples, elements=elements, read=read, marks_bad=skips,
                  name=name)


def _decode_what_can_be(records, decode):
  """Returns the decoded records without those that fail."""
  from tensorflow_v1 import tf
  return records.map(decode).apply(tf.data.experimental.ignore_errors())


def _decode_image(content, window, format, augment, draws):
  """Returns the window of an encoded image, `[size, size, channels]` uint8; fails if there is none.
  """
  from tensorflow_v1 import tf

  def decode_png():
    image = tf.image.decode_png(content, channels=format.channels)
    return tf.slice(image, tf.concat([window[:2], [0]], 0), tf.concat([window[2:], [-1]], 0))

  # The accurate transform gives the same pixels in every version of libjpeg, the fast one need not.
  image = tf.cond(
      tf.equal(tf.strings.substr(content, 0, 4),
               b'\x89PNG'), decode_png, lambda: tf.image.decode_and_crop_jpeg(
                   content, window, channels=format.channels, dct_method='INTEGER_ACCURATE'))
  image = tf.image.resize_bilinear(image[tf.newaxis], [format.size] * 2, half_pixel_centers=True)
  image = tf.cast(image + 0.5, tf.uint8)
  image.set_shape([1, format.size, format.size, format.channels])
  if augment == 'cifar':
    image = pad_crop_mirror(image, draws[tf.newaxis])
  return mirror(image[0], draws[-1]) if augment == 'imagenet' else image[0]


def _check_size(content: bytes, max_pixels: int) -> Tuple[int, int]:
  """Returns height and width of an encoded image; raises a BadRecordError if it has none, or too
  many pixels.
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
  return 'the {} cannot be decoded'.format('PNG' if content[:4] == b'\x89PNG' else 'JPEG')
