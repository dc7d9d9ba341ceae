"""A call of what a session runs again and again."""

import sys
from typing import Any, Callable, List, Optional, Sequence

from tensorflow.core.protobuf import config_pb2

from tensorflow_v1.load import tf


class Call:
  """Runs `fetches` as `session.run` does, None for an op; what can be prepared for them is, once.

  `Session.make_callable` resolves the fetches once, but TensorFlow still looks up by their names,
  in every run, what it prepared for them. Here it is handed that itself: a step of a linear model
  takes about a tenth less.
  """

  def __init__(self, session: Any, fetches: Sequence[Any], *, by_caller: bool = False):
    """Prepares nothing yet.

    Args:
      session: that stays open as long as this is called.
      fetches: tensors and ops, and dicts of tensors. On a server, which other workers' steps wait
        for anyhow, they go through `make_callable`.
      by_caller: whether the thread that calls runs all ops, one after the other, instead of the
        session's threads. TensorFlow does so where all stand on one device.
    """
    self._session = session
    self._fetches = list(fetches)
    self._run_options = config_pb2.RunOptions(inter_op_thread_pool=-1 if by_caller else 0)
    self._run: Optional[Callable[[], List[Any]]] = None

  def prepare(self) -> Callable[[], List[Any]]:
    """Does what the first call does before it runs: the graph as it is now is divided among its
    devices.

    That takes seconds for a deep model, in which another thread may call other fetches, but not
    close the session.

    Returns:
      the function that every call comes down to.
    """
    if self._run is None:
      self._run = self._session.make_callable(
          self._fetches) if self._session.sess_str else self._prepare()
    return self._run

  def __call__(self) -> List[Any]:
    """Runs; raises what `session.run` raises."""
    return self.prepare()()

  def _prepare(self):
    session, flat = self._session, tf.nest.flatten(self._fetches)
    is_op = [isinstance(fetch, tf.Operation) for fetch in flat]
    # The tensors' values come first, and then None for each op: mostly the order that was asked
    # for.
    order = sorted(range(len(flat)), key=is_op.__getitem__)
    session._extend_graph()  # With what was built since it last ran.
    handle = _PreparedCall(session, config_pb2.CallableOptions(
        fetch=[fetch.name for fetch in flat if not isinstance(fetch, tf.Operation)],
        target=[fetch.name for fetch in flat if isinstance(fetch, tf.Operation)],
        run_options=self._run_options))._handle
    of_ops = [None] * sum(is_op)

    def run():
      # All threads wait for what Python does between two runs, and after a few microseconds they go
      # to sleep.
      return _run_callable(session._session, handle, (), None) + of_ops

    if order == list(range(
        len(flat))) and not any(isinstance(fetch, dict) for fetch in self._fetches):
      return run
    place = sorted(range(len(flat)), key=order.__getitem__)

    def run_and_sort():
      results = run()
      return tf.nest.pack_sequence_as(self._fetches, [results[number] for number in place])

    return run_and_sort


_run_callable = sys.modules[tf.Session.__module__].tf_session.TF_SessionRunCallable


class _PreparedCall(tf.Session._Callable):
  """Released with its session, never after it: 1.14 would complain."""

  def __del__(self):
    pass
