"""Predict: what a model predicts of files, by a run's checkpoint or by an exported model.

  example,class,probability        example,price,code_0,code_1
  0,9,0.982310                     0,31.25,0.5,-1.25
  1,2,0.991552                     1,18.5,0.25,0.75

A model with the outputs `class` and `probabilities` gives the first table; any other gives a column
for each number of its outputs. The examples of an array are called by their index, the files of a
folder by their name.
"""

import os
import zipfile
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from towers.base.files import name_other_kind, open_regular, write_whole
from towers.base.output import write
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords
from towers.extras import load_extra
from towers.process.run_error import RunError
from towers.settings.config import Config
from towers.tensorflow_v1 import Session, tf
from towers_tools.serving.export import open_checkpoint, open_export, session_config
from towers_tools.serving.model import Serving

# Names, and for each input of the model an array `[n, ...]`.
Batch = Tuple[List[str], Dict[str, np.ndarray]]


def predict(config: Config, **of_run: Any) -> None:
  """Writes what a model predicts of each example of `config.predict`, as CSV.

  That is a .npy file; a .npz file with an array for each input of the model, by name; or a folder
  of JPEGs and PNGs.

  Raises:
    UsageError: no such file, folder or model, or inputs that the model does not take.
  """
  source = config.predict
  kind = name_other_kind(source)
  if kind not in ('', 'a folder') or not os.path.exists(source):
    raise UsageError(f"predict={source} {'is ' + kind if kind else 'does not exist'}: give a .npy "
                     'or .npz file, or a folder of JPEGs and PNGs.')
  opened = open_export(config.export_dir) if config.export_dir else open_checkpoint(
      config.checkpoint_dir, best_metric=config.best_metric, **of_run)
  read = _read_folder if os.path.isdir(source) else _read_arrays
  lines: List[str] = []
  with opened as (session, serving, _):
    for names, inputs in read(config, serving.inputs):
      columns = _predict_batch(session, serving, inputs)
      lines = lines or [','.join(['example', *map(_quote, columns)])]
      lines += [','.join(map(_quote, row)) for row in zip(names, *columns.values())]

  text = '\n'.join(lines + [''])
  output = config.result_file
  if output is not None:
    try:
      write_whole(output, text.encode(errors='surrogateescape'))
    except OSError as error:
      raise RunError(f'result_file={output} cannot be written: {error.strerror}.') from None
    return
  write(text, waits=True)


def _predict_batch(session: Session, serving: Serving,
                   inputs: Dict[str, np.ndarray]) -> Dict[str, List[str]]:
  """Returns the columns of the table for a batch: for each example a cell."""
  num_examples, parts = len(next(iter(inputs.values()))), []
  size = serving.num_rows or num_examples
  for first in range(0, num_examples, size):
    rows = np.arange(first, first + size) % num_examples  # Those behind the last one do not count.
    parts.append(session.run(serving.outputs, {
        serving.inputs[name]: value[rows] for name, value in inputs.items()}))
  answers = {name: np.concatenate([part[name] for part in parts])[:num_examples]
             for name in serving.outputs}
  for name, values in answers.items():
    if len(values) != num_examples:
      raise UsageError(f'The output {name} has the shape {list(values.shape)} for {num_examples} '
                       'examples: let the model return a row for each example.')
  if {'class', 'probabilities'} <= set(answers):
    classes = answers['class']
    chosen = [row[label] for row, label in zip(answers['probabilities'], classes)]
    return {'class': list(map(str, classes)), 'probability': [f'{value:.6f}' for value in chosen]}
  columns = {}
  for name, values in answers.items():
    rows = values.reshape(num_examples, -1)
    for index in range(rows.shape[1]):
      title = name if values.ndim == 1 else f'{name}_{index}'
      columns[title] = [_format(value) for value in rows[:, index]]
  return columns


def _format(value):
  """Returns a cell: a float with all of its digits."""
  if isinstance(value, bytes):
    return value.decode(errors='replace')
  return str(int(value)) if isinstance(value, np.bool_) else str(value)


def _read_arrays(config, expected) -> Iterator[Batch]:
  """Yields the batches of a .npy file, or of a .npz file with an array for each input."""
  path, batch_size = config.predict, config.batch_size
  try:
    open_regular(path).close()
    loaded = np.load(path, mmap_mode='r', allow_pickle=False)
    is_one = isinstance(loaded, np.ndarray)
    arrays = {next(iter(expected)): loaded} if is_one else dict(loaded)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
    raise UsageError(f'predict={path} cannot be read: {error}. Make it with numpy.save or '
                     'numpy.savez.') from None
  if set(arrays) != set(expected):
    raise UsageError(f"predict={path} holds {', '.join(sorted(arrays))}, and the model takes "
                     f"{', '.join(sorted(expected))}: give a .npz file with an array for each, as "
                     f"of numpy.savez(path, {', '.join(f'{name}=…' for name in expected)}).")
  arrays = {name: _fit(path, array, expected[name]) for name, array in arrays.items()}
  sizes = {name: len(array) for name, array in arrays.items()}
  if len(set(sizes.values())) > 1:
    raise UsageError(f'predict={path} has arrays of different lengths, {sizes}: give a row for '
                     'each example.')
  for start in range(0, next(iter(sizes.values())), batch_size):
    batch = {name: np.asarray(array[start:start + batch_size]) for name, array in arrays.items()}
    yield [str(start + row) for row in range(len(next(iter(batch.values()))))], batch


def _fit(path, array, expected):
  """Returns an array as an input takes it; grey images may lack the last dimension."""
  shape, dtype = expected.shape.as_list()[1:], expected.dtype
  lacks_channels = array.ndim == len(shape) and shape[-1:] == [1]
  given = (*array.shape[1:], 1) if lacks_channels else array.shape[1:]
  fits = len(shape) == len(given) and all(
      size in (None, other) for size, other in zip(shape, given))
  if not fits or array.dtype != dtype.as_numpy_dtype:
    sizes = ', '.join(['n', *('any' if size is None else str(size) for size in shape)])
    raise UsageError(f'predict={path} holds {array.dtype} of shape {list(array.shape)}, and the '
                     f'model takes {dtype.name} of shape [{sizes}]: make them so, with numpy.save.')
  return array.reshape(len(array), *given)


def _read_folder(config, expected) -> Iterator[Batch]:
  """Yields the batches of a folder's images, cut and resized as for validation."""
  folder = config.predict
  [(name, image), *others] = expected.items()
  shape, dtype = image.shape.as_list()[1:], image.dtype
  if others or dtype != tf.uint8 or len(shape) != 3 or shape[0] != shape[1] or shape[2] not in (
      1, 3):
    raise UsageError(f'predict={folder} is a folder of images, which become squares of bytes, and '
                     f"the model takes {', '.join(expected)}: {dtype.name} of shape {shape}. Give "
                     'a .npy or .npz file.')
  height, _, channels = shape

  bad_records = BadRecords(config.on_bad_record)
  names, examples = load_extra('images to predict')(
      folder, size=height, channels=channels, max_pixels=config.max_image_pixels,
      bad_records=bad_records)
  if not names:
    raise UsageError(f'predict={folder} holds no JPEG or PNG.')
  with tf.Graph().as_default(), tf.Session(config=session_config()) as session:
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
      yield ([names[start + row] for row in np.flatnonzero(is_good)], {name: images[is_good]})
      start += len(images)


def _quote(cell):
  """Returns a cell of CSV (RFC 4180)."""
  if not set(cell) & set(',"\r\n'):
    return cell
  escaped = cell.replace('"', '""')
  return f'"{escaped}"'
