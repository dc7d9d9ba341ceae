"""Input wait: how long the towers had nothing to compute because the next batch was not there.

  staging      compute  ├───────────┤                    without    get_next ├──────┤
  depth 1, 2   get_next ├──────────────────┤             staging    compute         ├───────────┤
                                    └ wait ┘                                 └ wait ┘

With staging, a batch is made while the towers compute, and the wait is the time that it takes
longer than they do; without, it is all of its time. Two clock readings in the graph measure it,
each ordered behind what it waits for.
"""

from typing import Any, Sequence

from towers.input.batch import Batch
from towers.input.feed import Feed
from towers.placement.host import HOST
from towers.tensorflow_v1 import tf


def build_input_wait(feed: Feed, batches: Sequence[Batch], *, after: Any) -> Any:
  """Returns the seconds that a session.run waited for input, a float64 scalar on the host.

  Fetch it with `after`, the op that ends the towers' work, and the put ops. It is negative where
  the input was there first. The batches are what the towers took from the feed.
  """
  with tf.device(HOST), tf.name_scope('input_wait'):
    if feed.stage is not None:
      with tf.control_dependencies([after]):
        computed = tf.timestamp()
      # Before the batch is put, so that no other device has to report its arrival to the host.
      with tf.control_dependencies(_tensors_of(feed.templates)):
        return tf.timestamp() - computed
    began = tf.timestamp()
    with tf.control_dependencies(_tensors_of(batches)):
      return tf.timestamp() - began


def _tensors_of(batches):
  return [tensor for batch in batches for tensor in tf.nest.flatten(batch.tensors)]
