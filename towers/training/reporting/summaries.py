"""Summaries: a run's curves, text and graph for TensorBoard, under the same tags on N towers.

The tags are those of docs/seeing.md: `train/…` and `validation/…`, the texts `configuration` and
`run`, and what the model calls its own.

Each process writes a file of its own and starts it with a `SessionLog.START`, at which TensorBoard
drops the points of later steps: a resumed run writes them again.

On a full disk `tf.summary.FileWriter` loses events, or ends a step. Here, when `sample` returns,
the event is in the file or a warning is on the screen.
"""

import io
import itertools
import os
import re
import socket
import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import numpy as np

from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.data.formats.tfrecord import write_record
from towers.settings.arguments import describe
from towers.settings.table import SETTINGS
from towers.tensorflow_v1 import private_session, tf
from towers.training.reporting.metric_samples import MetricWriter

# From this version of the format on, TensorBoard heeds SessionLog.START.
_FILE_VERSION = 'brain.Event:2'
_NUMBERS = itertools.count()  # Of the files of this process.
_NUM_BINS = 30  # Of a histogram.
_SCOPE = re.compile(r'^(tower_\d+|apply)/')


class Summaries(MetricWriter):
  """Writes the events of one process."""

  def __init__(self, folder: str, *, first_step: int, texts: Dict[str, str], graph: tf.Graph,
               warn: Callable[[str], None] = write_line):
    """Creates a file in a folder, and writes texts in Markdown by their tags, and the graph.

    Earlier runs did `first_step`. `warn` is called the first time that an event cannot be written.
    """
    self._warn = warn
    self._has_warned = False
    name = f'events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}'
    self._path = os.path.join(folder, f'{name}.{next(_NUMBERS)}')
    self._handle: Optional[int] = None
    self._size = 0
    self._restart(first_step)
    for tag, text in texts.items():
      self._write_values(first_step, text_value(tag, text))
    self._write(tf.Event(graph_def=graph.as_graph_def(add_shapes=True).SerializeToString()))

  def sample(self, step: int, values: Dict[str, Optional[float]], metrics: Dict[str, float],
             summaries: Sequence[bytes]) -> None:
    """Writes a point of every training curve, and the model's summaries without a tower's name."""
    self._write_scalars(step, 'train', {**metrics, **values})
    for text in summaries:
      self.add(step, tf.Summary.FromString(text))

  def add(self, step: int, summary: Any) -> None:
    """Writes a `tf.Summary` under its own tags, without the scope of a tower or of the update."""
    for value in summary.value:
      value.tag = _SCOPE.sub('', value.tag)
    self._write_values(step, *summary.value)

  def validated(self, *, step: int, metrics: Dict[str, float]) -> None:
    """Writes a point of every validation curve."""
    self._write_scalars(step, 'validation', metrics)

  def on_rewind(self, run: Any) -> None:
    """Makes TensorBoard drop all points after the run's step."""
    self._restart(run.step)

  def _restart(self, step):
    self._write(tf.Event(step=step + 1, session_log=tf.SessionLog(status=tf.SessionLog.START)))

  def on_close(self, run: Any) -> None:
    """Closes the file."""
    if self._handle is not None:
      os.close(self._handle)

  def _write_scalars(self, step, group, values):
    self._write_values(step, *[tf.Summary.Value(tag=f'{group}/{name}', simple_value=value)
                               for name, value in values.items() if value is not None])

  def _write_values(self, step, *values):
    self._write(tf.Event(step=step, summary=tf.Summary(value=values)))

  def _write(self, event):
    """Appends an event, or warns and leaves the file as it was."""
    event.wall_time = time.time()
    try:
      if self._handle is None:
        self._handle = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
      if not self._size:
        self._append(self._handle, tf.Event(file_version=_FILE_VERSION, wall_time=event.wall_time))
      self._append(self._handle, event)
    except OSError as error:
      if not self._has_warned:
        self._warn(f'WARNING: summaries cannot be written: {error.strerror}. The run continues '
                   'without these points.')
      self._has_warned = True

  def _append(self, handle, event):
    record = io.BytesIO()
    write_record(record, event.SerializeToString())
    written = os.write(handle, record.getvalue())
    if written != record.tell():
      os.ftruncate(handle, self._size)
      raise OSError(None, f'{written} of {record.tell()} bytes were written')
    self._size += written


def format_settings(settings: Mapping[str, Any]) -> str:
  """Returns a table of settings in Markdown; those that differ from their default are bold."""
  lines = ['setting | value', '--- | ---']
  for name, value in settings.items():
    is_default = name not in SETTINGS or value == SETTINGS[name].default
    lines.append(f'{name} | {value}' if is_default else f'**{name}** | **{value}**')
  return '\n'.join(lines)


def text_value(tag: str, text: str) -> Any:
  """Returns a value of a `tf.Summary` that TensorBoard shows as Markdown."""
  metadata = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name='text'))
  return tf.Summary.Value(tag=tag, metadata=metadata,
                          tensor=tf.make_tensor_proto(text, dtype=tf.string))


class Writer:
  """Writes to the run's summaries at its current step; without a summary_dir it only warns."""

  def __init__(self, summaries: Optional[Summaries], step: Callable[[], int],
               warn: Optional[Callable[[str], None]] = None):
    """Takes what writes events, or None, what returns the current step, and what warns of None."""
    self._summaries, self._step, self._warn = summaries, step, warn

  def scalar(self, tag: str, value: float) -> None:
    """Adds a point to a curve."""
    _check_tag(tag, 'scalar')
    self._add(lambda: [tf.Summary.Value(tag=tag, simple_value=float(value))])

  def image(self, tag: str, images: Any) -> None:
    """Adds images `[height, width, channels]`, or `[n, height, width, channels]`.

    They have 1 or 3 channels of bytes, or of floats from 0 to 1.

    Raises:
      UsageError: the array has another shape.
    """
    _check_tag(tag, 'image')
    images = np.asarray(images)
    if images.ndim == 3:
      images = images[None]
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
      raise UsageError(f'{tag} has the shape {list(images.shape)}: give images as [height, width, '
                       'channels] or [n, height, width, channels] with 1 or 3 channels.')
    if images.dtype.kind == 'f':
      images = (np.clip(images, 0, 1) * 255).round()
    self._add(lambda: [
        tf.Summary.Value(tag=tag if len(images) == 1 else f'{tag}/{index}', image=tf.Summary.Image(
            height=image.shape[0], width=image.shape[1], colorspace=image.shape[2],
            encoded_image_string=png))
        for index, (image, png) in enumerate(zip(images, _encode_pngs(images.astype(np.uint8))))])

  def histogram(self, tag: str, values: Any) -> None:
    """Adds a histogram of all finite numbers of an array, if it has any."""
    _check_tag(tag, 'histogram')
    values = np.asarray(values, np.float64).ravel()
    values = values[np.isfinite(values)]
    if not len(values):
      return
    counts, edges = np.histogram(values, _NUM_BINS)
    self._add(lambda: [tf.Summary.Value(tag=tag, histo=tf.HistogramProto(
        min=values.min(), max=values.max(), num=len(values), sum=values.sum(),
        sum_squares=np.square(values).sum(), bucket_limit=edges[1:], bucket=counts))])

  def text(self, tag: str, text: str) -> None:
    """Adds a text in Markdown."""
    self._add(lambda: [text_value(tag, text)])

  def _add(self, build_values):
    if self._summaries is not None:
      self._summaries.add(self._step(), tf.Summary(value=build_values()))
    elif self._warn is not None:
      self._warn('WARNING: what a callback writes by run.writer is lost without summary_dir')
      self._warn = None


def _encode_pngs(images):
  with tf.Graph().as_default() as graph:
    encoded = [tf.image.encode_png(image) for image in images]
    with private_session(graph) as session:
      return session.run(encoded)


def _check_tag(tag, method):
  if not isinstance(tag, str):
    raise UsageError(f'run.writer.{method} got {describe(tag)} as its tag, which comes first: '
                     f"write run.writer.{method}('tag', value).")
