"""Writer: a callback's own images, histograms, texts and curves beside those of the run."""

from typing import Any, Callable, Optional, Union

import numpy as np

from towers.base.usage_error import UsageError
from towers.settings.arguments import describe
from towers.tensorflow_v1 import private_session, tf
from towers.training.reporting.summaries import Summaries, text_value

_NUM_BINS = 30


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
    """Adds a histogram of all numbers of an array."""
    _check_tag(tag, 'histogram')
    values = np.asarray(values, np.float64).ravel()
    counts, edges = np.histogram(values, _NUM_BINS)
    self._add(lambda: [tf.Summary.Value(tag=tag, histo=tf.HistogramProto(
        min=values.min(), max=values.max(), num=len(values), sum=values.sum(),
        sum_squares=np.square(values).sum(), bucket_limit=edges[1:], bucket=counts))])

  def text(self, tag: str, text: str) -> None:
    """Adds a text in Markdown."""
    self._add(lambda: [text_value(tag, text)])

  def summary(self, summary: Union[bytes, Any]) -> None:
    """Adds a `tf.Summary`, or a serialized one, as of `run.session.run(tf.summary.merge_all())`."""
    if isinstance(summary, bytes):
      summary = tf.Summary.FromString(summary)
    self._add(lambda: summary.value)

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
