"""Predict: classes and probabilities of images, by a run's checkpoint or by an exported model.

  example,class,probability
  0,9,0.982310
  1,2,0.991552

The examples of an array are called by their index, the files of a folder by their name.
"""

import os
from typing import ContextManager, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from tensorflow_v1 import tf
from towers.base.output import write
from towers.base.usage_error import UsageError
from towers.base.whole_file import write_whole
from towers.data.bad_records import BadRecords
from towers.data.encoded_images import ImageFormat, ImageSource, encoded_examples
from towers.data.folders.image_folder import EXTENSIONS, ImageFiles
from towers.data.folders.npy import map_npy
from towers.training.tools.export import Serving, session_config

# Names, and images `[n, height, width, channels]`.
Batch = Tuple[List[str], np.ndarray]


def predict(source: str, opened: ContextManager[Tuple[tf.Session, Serving, int]], *,
            batch_size: int, max_image_pixels: int, on_bad_record: str = 'fail',
            input_threads: Optional[int] = None, output: Optional[str] = None) -> None:
  """Writes the class and its probability of each example, as CSV.

  Args:
    source: a .npy file, or a folder of JPEGs and PNGs.
    opened: of `open_checkpoint` or `open_export`.
    batch_size: images at a time.
    max_image_pixels: images of more pixels are damaged.
    on_bad_record: 'fail', or 'skip' to leave out damaged images.
    input_threads: images decoded at a time; None for 2.
    output: the file to write; stdout if None.

  Raises:
    UsageError: no such file, folder or model, or images that the model does not take.
  """
  if not os.path.exists(source):
    raise UsageError(f'predict={source} does not exist: give a .npy file, or a folder of JPEGs '
                     'and PNGs.')
  lines = ['example,class,probability']
  with opened as (session, serving, _):
    if os.path.isdir(source):
      batches = _read_folder(
          source, serving.images, batch_size=batch_size, max_image_pixels=max_image_pixels,
          on_bad_record=on_bad_record, input_threads=input_threads)
    else:
      batches = _read_array(source, serving.images, batch_size=batch_size)
    for name, label, probability in classify(session, serving, batches):
      lines.append(f'{_quote(name)},{label},{probability:.6f}')

  text = '\n'.join(lines + [''])
  if output is not None:
    write_whole(output, text.encode())
    return
  write(text, waits=True)


def classify(session: tf.Session, serving: Serving,
             batches: Iterable[Batch]) -> Iterator[Tuple[str, int, float]]:
  """Yields (name, class, probability) of each example.

  Args:
    session: holds the model's weights.
    serving: the model.
    batches: names, and images `[n, height, width, channels]`.
  """
  for names, images in batches:
    classes, probabilities = session.run([serving.classes, serving.probabilities],
                                         {serving.images: images})
    for name, label, row in zip(names, classes, probabilities):
      yield name, int(label), float(row[label])


def _read_array(path, expected, *, batch_size) -> Iterator[Batch]:
  """Yields the batches of a .npy file; grey images may lack the last dimension."""
  images = map_npy(path)
  shape, dtype = expected.shape.as_list()[1:], expected.dtype
  lacks_channels = images.ndim == 3 and shape[-1] == 1
  expected_shape = shape[:-1] if lacks_channels else shape
  if list(images.shape[1:]) != expected_shape or images.dtype != dtype.as_numpy_dtype:
    raise UsageError(f"predict={path} holds {images.dtype} of shape {list(images.shape)}, and the "
                     f"model takes {dtype.name} of shape [n, {', '.join(map(str, shape))}]: make "
                     "them so, with numpy.save.")
  for start in range(0, len(images), batch_size):
    batch = np.asarray(images[start:start + batch_size])
    names = [str(start + row) for row in range(len(batch))]
    yield names, batch[..., np.newaxis] if lacks_channels else batch


def _read_folder(folder, expected, *, batch_size, max_image_pixels, on_bad_record,
                 input_threads) -> Iterator[Batch]:
  """Yields the batches of a folder's images, cut and resized as for validation."""
  names = sorted(name for name in os.listdir(folder)
                 if name.lower().endswith(EXTENSIONS) and not name.startswith('.'))
  if not names:
    raise UsageError(f'predict={folder} holds no JPEG or PNG.')
  [height, width, channels], dtype = expected.shape.as_list()[1:], expected.dtype
  if dtype != tf.uint8 or height != width or channels not in (1, 3):
    raise UsageError(f'predict={folder} is a folder of images, which become squares of bytes, and '
                     f'the model takes {dtype.name} of shape {[height, width, channels]}: give a '
                     '.npy file.')

  files = ImageFiles([os.path.join(folder, name) for name in names], [0] * len(names))
  bad_records = BadRecords(on_bad_record)
  format = ImageFormat(size=height, channels=channels, max_pixels=max_image_pixels)
  with tf.Graph().as_default(), tf.Session(config=session_config()) as session:
    examples = encoded_examples(ImageSource(len(names), files.read, files.place), format=format,
                                augment='none', seed=0, bad_records=bad_records, name='predict')
    assert examples.read is not None
    read = examples.read(tf.data.Dataset.range(len(names)), epoch=tf.zeros([], tf.int64),
                         parallel_calls=input_threads or 2)
    next_batch = tf.data.make_one_shot_iterator(read.batch(batch_size)).get_next()
    start = 0
    while start < len(names):
      try:
        batch = session.run(next_batch)
      except tf.errors.OpError:
        if bad_records.failure is None:
          raise
        raise UsageError(bad_records.failure) from None
      (images, _), is_good = batch if examples.marks_bad else (batch, np.ones(len(batch[0]), bool))
      yield [names[start + row] for row in np.flatnonzero(is_good)], images[is_good]
      start += len(images)


def _quote(name):
  """Returns a cell of CSV (RFC 4180)."""
  if not set(name) & set(',"\r\n'):
    return name
  escaped = name.replace('"', '""')
  return f'"{escaped}"'
