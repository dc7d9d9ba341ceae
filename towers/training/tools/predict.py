"""Predict: classes and probabilities of images, from a run's checkpoint or from what it exported.

  example,class,probability
  0,9,0.982310
  1,2,0.991552

An array's examples are called by their number, files of a folder by their name.
"""

import os
import sys
from typing import Any, Iterable, Iterator, List, Tuple

import numpy as np

from tensorflow_v1 import tf
from towers import data
from towers.base.usage_error import UsageError
from towers.base.whole_file import write_whole
from towers.data.bad_records import BadRecords
from towers.data.encoded_images import ImageFormat, ImageSource, encoded_examples
from towers.data.folders.image_folder import EXTENSIONS, ImageFiles
from towers.data.folders.npy import map_npy
from towers.training.settings.config import Config
from towers.training.tools.export import Serving, open_checkpoint, open_export, session_config


def predict(config: Config) -> None:
  """Writes the class and its probability for every example in `config.predict`, to `result_file` or
  to stdout.

  Raises:
    UsageError: no such file, folder or model, or images that are not those the model takes.
  """
  assert config.predict is not None
  if config.export_dir is not None:
    opened = open_export(config.export_dir)
  else:
    opened = open_checkpoint(config, data.load(
        config.data, **{name: getattr(config, name) for name in data.LoadSettings._fields}))
  if not os.path.exists(config.predict):
    raise UsageError(f'predict={config.predict} does not exist: give a .npy file, or a folder of '
                     'JPEGs and PNGs.')
  lines = ['example,class,probability']
  with opened as (session, serving, _):
    for name, label, probability in classify(session, serving, _read(config, serving)):
      lines.append(f'{_quote(name)},{label},{probability:.6f}')
  text = '\n'.join(lines + [''])
  if config.result_file is not None:
    write_whole(config.result_file, text.encode())
    return
  try:
    sys.stdout.write(text)
    sys.stdout.flush()
  except BrokenPipeError:
    # Whoever reads has seen enough, as `head` does; Python would try once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def classify(session: Any, serving: Serving, batches: Iterable[Tuple[List[str], np.ndarray]]
             ) -> Iterator[Tuple[str, int, float]]:
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


def _read(config, serving):
  """Yields (names, images) of a file or folder, in batches; raises a UsageError for images of
  another shape.
  """
  shape, dtype = serving.images.shape.as_list()[1:], serving.images.dtype
  if os.path.isdir(config.predict):
    return _read_folder(config, shape, dtype)
  return _read_array(config, shape, dtype)


def _read_array(config, shape, dtype):
  images = map_npy(config.predict)
  is_grey = images.ndim == 3 and shape[-1] == 1
  if list(images.shape[1:]) != (shape[:-1]
                                if is_grey else shape) or images.dtype != dtype.as_numpy_dtype:
    raise UsageError(f"predict={config.predict} holds {images.dtype} of shape "
                     f"{list(images.shape)}, and the model takes {dtype.name} of shape [n, "
                     f"{', '.join(map(str, shape))}]: make them so, with numpy.save.")
  for start in range(0, len(images), config.batch_size):
    batch = np.asarray(images[start:start + config.batch_size])
    yield [str(start + row) for row in range(len(batch))], batch[...,
                                                                 np.newaxis] if is_grey else batch


def _read_folder(config, shape, dtype):
  names = sorted(name for name in os.listdir(config.predict)
                 if name.lower().endswith(EXTENSIONS) and not name.startswith('.'))
  if not names:
    raise UsageError(f'predict={config.predict} holds no JPEG or PNG.')
  if dtype != tf.uint8 or shape[0] != shape[1] or shape[2] not in (1, 3):
    raise UsageError(f'predict={config.predict} is a folder of images, which become squares of '
                     f'bytes, and the model takes {dtype.name} of shape {shape}: give a .npy '
                     'file.')
  files = ImageFiles([os.path.join(config.predict, name) for name in names], [0] * len(names))
  bad_records = BadRecords(config.on_bad_record)
  format = ImageFormat(size=shape[0], channels=shape[2], max_pixels=config.max_image_pixels)
  with tf.Graph().as_default(), tf.Session(config=session_config()) as session:
    # As validation reads them: the same window, the same resizing.
    examples = encoded_examples(ImageSource(len(names), files.read, files.place), format=format,
                                augment='none', seed=0, bad_records=bad_records, name='predict')
    assert examples.read is not None
    read = examples.read(tf.data.Dataset.range(len(names)), epoch=tf.zeros([], tf.int64),
                         parallel_calls=config.input_threads or 2)
    next_batch = tf.data.make_one_shot_iterator(read.batch(config.batch_size)).get_next()
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
  return '"{}"'.format(name.replace('"', '""')) if set(name) & set(',"\r\n') else name
