"""Summaries: a run's curves, text and graph in TensorBoard's format, one set of tags whatever the
number of towers.

  train/loss  train/learning_rate  train/gradient_norm  train/examples_per_second  train/input_wait
  validation/loss  validation/accuracy  …          at the step whose weights were measured
  configuration  run                               text: all settings; devices, data and variables
  graph                                            tower_0, tower_1, … are its scopes

Each process writes a file of its own, which begins by taking back what an earlier one told of later
steps: TensorBoard drops the points at and behind a `SessionLog.START`, and a run that resumes tells
them again.

Not by `tf.summary.FileWriter`, whose thread meets a full disk alone: on 1.14 nobody hears of it,
and on 2.21 it writes a stack trace and raises an IndexError in the middle of a step. Here an event
is in the file, or a warning is on the screen, when `sample` returns.
"""

import dataclasses
import io
import os
import socket
import time
from typing import Any, Callable, Dict

from tensorflow_v1 import tf
from towers.data.formats.tfrecord import write_record
from towers.training.reporting.metric_writer import MetricWriter, Sample
from towers.training.settings.config import Config

# The version of the format from which TensorBoard heeds SessionLog.START.
_FILE_VERSION = 'brain.Event:2'


class Summaries(MetricWriter):
  """Writes the events of one process's part of a run."""

  def __init__(self, folder: str, *, first_step: int, texts: Dict[str, str], graph: Any,
               warn: Callable[[str], None] = print, clock: Callable[[], float] = time.time):
    """Makes a new file in a folder, and writes what is known before the first step.

    Args:
      folder: that exists.
      first_step: steps that an earlier run did.
      texts: in Markdown, by tag.
      graph: a tf.Graph.
      warn: is told, once, that nothing can be written.
      clock: seconds since 1970.
    """
    self._warn = warn
    self._clock = clock
    self._is_failing = False
    name = f'events.out.tfevents.{int(clock()):010}.{socket.gethostname()}.{os.getpid()}'
    self._handle = _open_new(os.path.join(folder, name))
    self._size = 0
    self._write(tf.Event(file_version=_FILE_VERSION))
    self.rewind(first_step)
    for tag, text in texts.items():
      self._write_values(first_step, _text_value(tag, text))
    self._write(tf.Event(graph_def=graph.as_graph_def(add_shapes=True).SerializeToString()))

  def sample(self, sample: Sample) -> None:
    """Writes a point of every training curve."""
    self._write_scalars(sample.step, 'train', sample._asdict())

  def validation(self, step: int, metrics: Dict[str, float]) -> None:
    """Writes a point of every validation curve."""
    self._write_scalars(step, 'validation', metrics)

  def rewind(self, step: int) -> None:
    """Takes back all points behind `step`."""
    self._write(tf.Event(step=step + 1, session_log=tf.SessionLog(status=tf.SessionLog.START)))

  def close(self) -> None:
    """Closes the file."""
    os.close(self._handle)

  def _write_scalars(self, step, group, values):
    self._write_values(
        step, *[
            tf.Summary.Value(tag=f'{group}/{name}', simple_value=value)
            for name, value in values.items()
            if name != 'step' and value is not None
        ])

  def _write_values(self, step, *values):
    self._write(tf.Event(step=step, summary=tf.Summary(value=values)))

  def _write(self, event):
    """Appends an event, whole or not at all; a disk without room is a warning, and is tried again
    next time.
    """
    event.wall_time = self._clock()
    record = io.BytesIO()
    write_record(record, event.SerializeToString())
    try:
      written = os.write(self._handle, record.getvalue())
      if written != record.tell():
        os.ftruncate(self._handle, self._size)
        raise OSError(None, f'{written} of {record.tell()} bytes were written')
      self._size += written
      self._is_failing = False
    except OSError as error:
      if not self._is_failing:
        self._warn(f'WARNING: summaries cannot be written: {error.strerror}. The run goes on '
                   'without these points.')
      self._is_failing = True


def format_settings(config: Config) -> str:
  """Returns a table of all settings in Markdown; those that are not the default are bold."""
  lines = ['setting | value', '--- | ---']
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    lines.append(('%s | %s' if value == field.default else '**%s** | **%s**') % (field.name, value))
  return '\n'.join(lines)


def format_verbatim(text: str) -> str:
  """Returns Markdown that shows a text as it is, in lines and columns."""
  return '\n'.join('    ' + line for line in text.splitlines())


def _text_value(tag, text):
  metadata = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name='text'))
  return tf.Summary.Value(tag=tag, metadata=metadata,
                          tensor=tf.make_tensor_proto(text, dtype=tf.string))


def _open_new(path):
  """Opens a file that was not there, with a number behind its name."""
  number = 0
  while True:
    try:
      return os.open(f'{path}.{number}', os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    except FileExistsError:
      number += 1
