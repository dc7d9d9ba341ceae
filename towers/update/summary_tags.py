"""Tags: what an optimizer makes by `tf.summary`, which a run fetches with the step.

  is_done ─► Switch ─┬─ no ─► ''  ───────────┐
                     └─ yes ─► update, norm ─┴─► Merge ─► tag      '' in a step that is left out
"""

import contextlib
from typing import Iterator

from towers.placement.host import HOST
from towers.tensorflow_v1 import Tensor, tf


@contextlib.contextmanager
def tags_empty_unless(is_done: Tensor) -> Iterator[None]:
  """Lets the tags that are made within be empty where `is_done` keeps their ops from running."""
  tags = tf.get_collection_ref(tf.GraphKeys.SUMMARIES)
  num_before = len(tags)
  yield
  for index in range(num_before, len(tags)):
    if tags[index].graph.is_fetchable(tags[index]):
      with tf.device(HOST):
        no, _ = tf.raw_ops.Switch(data=tf.constant(''), pred=is_done)
        tags[index] = tf.raw_ops.Merge(inputs=[tags[index], no])[0]
