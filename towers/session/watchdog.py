"""The watchdog: ends a run without progress, and names the towers whose input it waits for.

A `get_next` that waits for a function that never returns blocks in C++, and neither time limits nor
Ctrl-C end it. (A staging area never blocks: a run that finds it out of balance fails.) So a thread
checks now and then whether the number of session runs has risen; the loop does nothing for it. If
it has not for too long, the thread asks all iterators for a batch, which takes one away that no
longer matters, says whether the input or the computation hangs, and ends the process.
"""

import contextlib
import threading
import time
from typing import Any, Iterator, List, Optional, Sequence

from towers.process.run_error import end_process
from towers.process.threads import start_thread
from towers.session.engine import Engine
from towers.session.failure import describe_towers
from towers.tensorflow_v1 import tf

# For all iterators at once; long enough for a busy machine.
_SECONDS_TO_ANSWER = 2.5
# After longer without progress, asking the other workers does no harm.
_SECONDS_OF_A_STEP = 2.0
# Towers that wait in an op hold threads: with as few cores as towers none is left for a data set.
_PERHAPS_THE_MODEL = (' Or an op of the model, such as a tf.py_func, holds the threads that the '
                      'data set needs.')


class Watchdog:
  """Ends the process if the watched engine makes no progress while it is entered.

  Attributes:
    engine: what it watches, or None.
  """

  def __init__(self, *, limit_seconds: float):
    self._limit_seconds = limit_seconds
    self.engine: Optional[Engine] = None
    self._has_ended = threading.Event()
    self._pauses = 0
    self._since = time.monotonic()

  def __enter__(self) -> 'Watchdog':
    self._thread = start_thread(self._watch, 'watchdog')
    return self

  def __exit__(self, *_) -> None:
    self._has_ended.set()
    self._thread.join()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Opens a context that may take any time."""
    self._pauses += 1
    try:
      yield
    finally:
      self._pauses -= 1

  def is_busy(self) -> bool:
    """Whether the run has made progress lately, or is paused."""
    return bool(self._pauses) or time.monotonic() - self._since < _SECONDS_OF_A_STEP

  def _watch(self):
    runs, self._since = None, time.monotonic()
    while not self._has_ended.wait(min(1.0, self._limit_seconds / 10)):
      engine = self.engine
      if engine is None or self._pauses or engine.runs != runs:
        runs, self._since = None if engine is None else engine.runs, time.monotonic()
      elif time.monotonic() - self._since > self._limit_seconds:
        try:
          reason = find_stall(engine)
        except Exception as error:  # A run that hangs must end in any case.
          reason = f'what it waits for could not be found out ({error}).'
        # It may only have been slow, and be done by now.
        if engine.runs == runs and not self._has_ended.is_set():
          end_process(f'Nothing went forward for {self._limit_seconds:g} s (stall_seconds) in '
                      f'{engine.activity}, after {engine.step} steps: {reason}')
          return
        runs = None


def find_stall(engine: Engine) -> str:
  """Returns in words what a run that does not return waits for."""
  if engine.activity == 'the end':
    return 'the session does not close, since threads of the data set do not return.'
  for feed in engine.program.feeds:
    tensors = [batch.flatten()[0] for batch in feed.templates]
    answers = _ask(engine.session, tensors)
    silent = list(dict.fromkeys(describe_towers(feed, tower)
                                for tower, answer in enumerate(answers) if answer is None))
    if silent:
      return (f"the iterator of {' and '.join(silent)} (split {feed.inputs.name}) gives no batch: "
              "see what the data set waits for, or raise stall_seconds if it may take that "
              f"long.{_PERHAPS_THE_MODEL}")
  or_worker = ', or another worker does, which then says more' if engine.has_other_workers else ''
  return ('the batches of all towers are there, and the computation does not end: a device hangs, '
          f'or an op of the model waits{or_worker}. The first step, which also chooses kernels, '
          'may take longer than others: raise stall_seconds.')


def _ask(session: Any, tensors: Sequence[Any]) -> List[Any]:
  """Returns the tensors' values, or None for those that do not come in time."""
  answers: List[Any] = [None] * len(tensors)
  # Runs on the asking thread: those of the session may all be blocked.
  options = tf.RunOptions(inter_op_thread_pool=-1)

  def ask(index):
    try:
      answers[index] = session.run(tensors[index], options=options)
    except Exception:
      # The iterator has failed, and the run itself reports that.
      answers[index] = 'failed'

  threads = [start_thread(ask, 'watchdog-asks', index) for index in range(len(tensors))]
  until = time.monotonic() + _SECONDS_TO_ANSWER
  for thread in threads:
    thread.join(max(0.0, until - time.monotonic()))
  return list(answers)
