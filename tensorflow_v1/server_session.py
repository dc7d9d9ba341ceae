"""A session on this process's server, each of whose runs happens once."""

from typing import Any

from tensorflow_v1.load import tf


class ServerSession(tf.Session):
  """What `tf.Session(target)` is, for the server of one worker.

  TensorFlow numbers the runs of a server at random, and refuses one whose number it has met among
  the last 100,000, as a message that came twice. On 2.21 each run draws its number on a thread of
  its own, seeded with 32 bits: about one of 40,000 meets an equal one, and ends in an
  AbortedError. No op has run by then, so this asks for the run again.
  """

  def _call_tf_sessionrun(self, *arguments: Any) -> Any:
    while True:
      try:
        return super()._call_tf_sessionrun(*arguments)
      except tf.errors.AbortedError as error:
        if 'RunGraph (Worker) request was received twice' not in error.message:
          raise
