"""Input wait: how long the towers of a run had nothing to compute because the next batch was not
there.

  staging      compute  ├───────────┤                    without    get_next ├──────┤
  depth 1, 2   get_next ├──────────────────┤             staging    compute         ├───────────┤
                                    └ wait ┘                                 └ wait ┘

With staging a batch is made while the towers compute, and costs only what it takes longer than they
do; without, it costs all of its time. Each run tells it by two clock readings in the graph, ordered
behind what they wait for. It is no wait, and not counted, where input and towers share cores and
slow each other down.
"""

from typing import Any, Sequence

from tensorflow_v1 import tf
from towers.input.batch import Batch
from towers.input.feed import Feed
from towers.placement.host import HOST


def build_input_wait(feed: Feed, batches: Sequence[Batch], *, after: Any) -> Any:
  """Returns the seconds that a run waited, a float64 scalar on the host; to be fetched with `after`
  and the put ops.

  Below 0 the input was there so long before the towers were done, which is no wait either.

  Args:
    feed: of the training split.
    batches: that the towers took from it.
    after: the op with which the towers' work in this run is over.
  """
  with tf.device(HOST), tf.name_scope('input_wait'):
    if feed.stage is not None:
      with tf.control_dependencies([after]):
        computed = tf.timestamp()
      # On the host, before it is put: towers elsewhere do not have to tell the host that they have
      # theirs.
      with tf.control_dependencies(
          [tensor for batch in feed.templates for tensor in tf.nest.flatten(batch.tensors)]):
        return tf.timestamp() - computed
    began = tf.timestamp()
    tensors = [tensor for batch in batches for tensor in tf.nest.flatten(batch.tensors)]
    with tf.control_dependencies(tensors):
      return tf.timestamp() - began
