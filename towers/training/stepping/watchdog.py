"""The watchdog: a run that does not go forward ends, and the message names the towers whose input
it waits for.

A `get_next` that waits for a function that never returns blocks in C++ and obeys neither time
limits nor Ctrl-C. (A staging area never blocks: a run that finds it out of balance fails.) So a
thread looks now and then whether the number of session runs has risen; the loop does nothing for
it. When it has not for too long, the thread finds out where the run hangs, says so, and ends the
process:

  an iterator gives no batch when asked for one more   ─► the input of the towers that it feeds
  it does                                              ─► the computation itself

Asking takes a batch away, which no longer matters then.
"""

import contextlib
import threading
import time
from typing import Any, Callable, Iterator, List, Optional, Sequence

from tensorflow_v1 import tf
from towers.input.pipeline import GET_NEXTS
from towers.training.faults.run_error import end_process
from towers.training.stepping.failure import describe_towers
from towers.training.stepping.steps import Steps

# Long enough for a busy machine; all are asked at once.
_SECONDS_TO_ANSWER = 2.5
# What goes forward does so at least that often, or it does no harm to look more closely.
_SECONDS_OF_A_STEP = 2.0
# Towers that wait in an op hold threads of the session; with as few cores as towers none is left
# for a data set.
_PERHAPS_THE_MODEL = (' Or an op of the model, such as a tf.py_func, holds the threads that the '
                      'data set needs.')


class Watchdog:
  """While entered, the steps that it was given must go forward."""

  def __init__(self, *, limit_seconds: float, on_stall: Optional[Callable[[str], Any]] = None,
               clock: Callable[[], float] = time.monotonic):
    """Prepares.

    Args:
      limit_seconds: how long a run of the session may take, at most.
      on_stall: is called with the reason, in the watchdog's thread; None writes it and ends the
        process.
      clock: seconds.
    """
    self._limit_seconds = limit_seconds
    self._on_stall = on_stall or end_process
    self._clock = clock
    self._steps: Optional[Steps] = None
    self._has_ended = threading.Event()
    self._pauses = 0
    self._since = clock()

  def __enter__(self) -> 'Watchdog':
    self._thread = threading.Thread(target=self._watch, name='watchdog', daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._has_ended.set()
    self._thread.join()

  def watch(self, steps: Steps) -> None:
    """Begins to watch a program's steps."""
    self._steps = steps

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """What happens within may take any time."""
    self._pauses += 1
    try:
      yield
    finally:
      self._pauses -= 1

  def is_busy(self) -> bool:
    """Whether something has gone forward lately, or happens that may take any time."""
    return bool(self._pauses) or self._clock() - self._since < _SECONDS_OF_A_STEP

  def _watch(self):
    runs, self._since = None, self._clock()
    while not self._has_ended.wait(min(1.0, self._limit_seconds / 10)):
      steps = self._steps
      if steps is None or self._pauses or steps.runs != runs:
        runs, self._since = steps and steps.runs, self._clock()
      elif self._clock() - self._since > self._limit_seconds:
        try:
          reason = find_stall(steps)
        except Exception as error:  # Whatever is wrong with a run that hangs, it must end.
          reason = f'what it waits for could not be found out ({error}).'
        # Perhaps it only was slow, and is there now.
        if steps.runs == runs and not self._has_ended.is_set():
          self._on_stall(f'Nothing went forward for {self._limit_seconds:g} s (stall_seconds) in '
                         f'{steps.activity}, after {steps.step} steps: {reason}')
          return
        runs = None


def find_stall(steps: Steps) -> str:
  """Returns what a run that does not return waits for, in words."""
  if steps.activity == 'the end':
    return 'the session does not close; threads of the data set do not return.'
  program = steps.program
  feeds = [program.feed] + ([program.validation.feed] if program.validation else [])
  for feed in feeds:
    tensors = [batch.flatten()[0] for batch in feed.templates]
    answers = _ask(steps.session, tensors)
    silent = list(dict.fromkeys(describe_towers(feed, _find_get_next(tensor))
                                for tensor, answer in zip(tensors, answers) if answer is None))
    if silent:
      return (f"the iterator of {' and '.join(silent)} (split {feed.inputs.name}) gives no batch: "
              "see what the data set waits for, or raise stall_seconds if it may take that "
              f"long.{_PERHAPS_THE_MODEL}")
  return (
      "the batches of all towers are there, and the computation does not end: a device hangs, "
      "or an op of the model "
      f"waits{', or another worker, which then tells more' if steps.has_other_workers else ''}. "
      "The first step, which also chooses kernels, may take longer than others: raise "
      "stall_seconds.")


def _ask(session: Any, tensors: Sequence[Any]) -> List[Any]:
  """Returns the tensors' values, None for those that do not come; asked from threads that may wait
  for ever.
  """
  answers: List[Any] = [None] * len(tensors)
  # On the thread that asks: those of the session may all be blocked.
  options = tf.RunOptions(inter_op_thread_pool=-1)

  def ask(index):
    try:
      answers[index] = session.run(tensors[index], options=options)
    except Exception:
      # An answer of another kind: the iterator has failed, which the run itself tells.
      answers[index] = 'failed'

  threads = [threading.Thread(target=ask, args=(index,), name='watchdog-asks', daemon=True)
             for index in range(len(tensors))]
  for thread in threads:
    thread.start()
  until = time.monotonic() + _SECONDS_TO_ANSWER
  for thread in threads:
    thread.join(max(0.0, until - time.monotonic()))
  return list(answers)


def _find_get_next(tensor):
  """Returns the op that takes the batch which a tensor is a part of."""
  pending = [tensor.op]
  while pending:
    op = pending.pop()
    if op.type in GET_NEXTS:
      return op
    pending.extend(source.op for source in op.inputs)
  raise ValueError(f'{tensor} comes from no iterator.')
