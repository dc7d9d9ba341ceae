"""A session's run of the same fetches, prepared once and called again and again."""

import sys
from typing import Any, Callable, List, Optional, Sequence

import numpy as np
from tensorflow.core.protobuf import config_pb2

from towers.tensorflow_v1.load import tf
from towers.tensorflow_v1.types import Session


class Call:
  """Runs `fetches` like `session.run`, None for an op, with everything prepared once.

  `Session.make_callable` resolves the fetches once, but TensorFlow still looks up their executor by
  name in every run. Here it gets the executor's handle, a tenth of a linear model's step.
  """

  def __init__(self, session: Session, fetches: Sequence[Any], *, feeds: Sequence[Any] = (),
               by_caller: bool = False):
    """Takes tensors, ops and dicts of tensors of an open session; prepares nothing yet.

    Every call takes an array for each of `feeds`. `by_caller` lets the calling thread run all ops,
    one after the other, instead of the session's threads. TensorFlow does so only where all ops are
    on one device.
    """
    self._session = session
    self._fetches, self._feeds = list(fetches), list(feeds)
    self._run_options = config_pb2.RunOptions(inter_op_thread_pool=-1 if by_caller else 0)
    self._run: Optional[Callable[..., List[Any]]] = None

  def prepare(self) -> Callable[..., List[Any]]:
    """Returns the function that every call runs; the first time it partitions today's graph.

    That takes seconds for a deep model. Meanwhile another thread may call other fetches, but must
    not close the session.
    """
    if self._run is None:
      # On a server a step waits for other workers anyway.
      is_remote = bool(self._session.sess_str)
      self._run = self._session.make_callable(
          self._fetches, self._feeds or None) if is_remote else self._prepare()
    return self._run

  def __call__(self, *values: np.ndarray) -> List[Any]:
    """Runs the fetches, and raises what `session.run` raises."""
    return self.prepare()(*values)

  def _prepare(self):
    session, flat = self._session, tf.nest.flatten(self._fetches)
    is_op = [isinstance(fetch, tf.Operation) for fetch in flat]
    # The tensors' values come first, then None for each op: mostly the order of the fetches.
    order = sorted(range(len(flat)), key=is_op.__getitem__)
    session._extend_graph()  # With what was built since it last ran.
    handle = _PreparedCall(session, config_pb2.CallableOptions(
        feed=[feed.name for feed in self._feeds],
        fetch=[fetch.name for fetch in flat if not isinstance(fetch, tf.Operation)],
        target=[fetch.name for fetch in flat if isinstance(fetch, tf.Operation)],
        run_options=self._run_options))._handle
    of_ops, beneath = [None] * sum(is_op), session._session

    def run(*values):
      # The less Python does between two runs the better: all threads wait for it, and soon sleep.
      return _run_callable(beneath, handle, values, None) + of_ops

    has_dicts = any(isinstance(fetch, dict) for fetch in self._fetches)
    if order == list(range(len(flat))) and not has_dicts:
      return run
    indices = sorted(range(len(flat)), key=order.__getitem__)

    def run_and_sort(*values):
      results = run(*values)
      return tf.nest.pack_sequence_as(self._fetches, [results[index] for index in indices])

    return run_and_sort


_run_callable = sys.modules[tf.Session.__module__].tf_session.TF_SessionRunCallable


class _PreparedCall(tf.Session._Callable):
  """A callable that its session releases: to release it after the session fails on 1.14."""

  def __del__(self):
    pass
