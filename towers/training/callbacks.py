"""Callbacks: what a run calls as it goes, its own and the user's in one list.

  class Stop(towers.Callback):
    def on_validation(self, run):
      if run.metrics['validation_accuracy'] > 0.9:
        run.stop('good enough')              ends as a run ends: checkpoint, result, exit code 0
"""

import contextlib
import functools
import inspect
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Union

from towers.base.output import write_line
from towers.base.usage_error import UsageError, check_parameters


class Callback:
  """What a run calls as it goes; a base class whose methods do nothing.

  `run` is the `Run`: it has `step`, `loss`, `metrics`, `session`, `writer` and `stop('why')`, see
  there. What a method returns is ignored.
  """

  def on_step(self, run: Any) -> None:
    """Runs after each step."""

  def on_validation(self, run: Any) -> None:
    """Runs after each pass over the validation split, of the weights of `run.validation_step`."""

  def on_rewind(self, run: Any) -> None:
    """Runs where the run has gone back to an earlier step, `run.step`."""

  def on_warning(self, run: Any, text: str) -> None:
    """Runs for each warning to the user; from any thread."""

  def on_end(self, run: Any) -> None:
    """Runs once the run has come to its end, with the session still open and `run.result` there."""

  def on_close(self, run: Any) -> None:
    """Runs last, the session closed, also where an error or a signal has ended the run."""


AnyCallback = Union[Callback, Callable[[int, float], Any]]
_PARAMETERS = {name: list(inspect.signature(method).parameters)[1:]
               for name, method in vars(Callback).items() if name.startswith('on_')}
# How methods were called before they took the run, and what to write now.
_FORMER = {'step': ('on_step', {'step', 'loss', 'train_seconds'}),
           'validation': ('on_validation', {'step', 'metrics'}),
           'rewind': ('on_rewind', {'step'}), 'warning': ('on_warning', {'text'}),
           'finish': ('on_end', {'result'})}


def read_callbacks(given: Iterable[AnyCallback]) -> List[Callback]:
  """Returns the callbacks, functions as such too; refuses by a UsageError what is never called."""
  callbacks: List[Callback] = []
  if isinstance(given, Callback) or callable(given):
    name = getattr(given, '__name__', type(given).__name__)
    raise UsageError(f'callbacks is {name} alone: give a list, as callbacks=[{name}'
                     f"{'()' if isinstance(given, (type, Callback)) else ''}].")
  if not hasattr(given, '__iter__'):
    raise UsageError(f'callbacks is {given!r}: give a list, as callbacks=[towers.Callback()].')
  for callback in given:
    if isinstance(callback, Callback):
      _check_methods(callback)
      callbacks.append(callback)
    elif isinstance(callback, type):
      raise UsageError(f'callbacks has the class {callback.__name__}: give an object of it, as '
                       f'callbacks=[{callback.__name__}()].')
    elif not callable(callback):
      raise UsageError(f'callbacks has {callback!r}: give a towers.Callback, or a function of the '
                       'step and the loss.')
    else:
      check_parameters(callback, 'a function of callbacks', 'step', 'loss',
                       fix='write callbacks=[lambda step, loss: …]')
      callbacks.append(_of_function(callback))
  return callbacks


def _of_function(function):
  callback: Any = Callback()
  callback.on_step = lambda run: function(run.step, run.loss)
  return callback


def _check_methods(callback):
  """Refuses methods that no run calls, or calls with other arguments."""
  kind = type(callback).__name__
  methods = {name: getattr(callback, name) for name in dir(callback)
             if name.startswith('on_') or name in _FORMER}
  for name, method in methods.items():
    if name in _FORMER:
      now, parameters = _FORMER[name]
      if inspect.ismethod(method) and set(inspect.signature(method).parameters) == parameters:
        raise UsageError(f'callbacks has {kind} with {name}, which no run calls: write '
                         f'{_write(now)}, and take what it needs from run.')
    elif name in _PARAMETERS:
      check_parameters(method, f'{kind}.{name} of callbacks', *_PARAMETERS[name],
                       fix=f'write {_write(name)}; run.step, run.loss and run.metrics are there')
    elif callable(method):
      raise UsageError(f'callbacks has {kind} with {name}, which no run calls: write one of '
                       f"{', '.join(_PARAMETERS)}.")


def _write(name):
  return f"def {name}({', '.join(['self', *_PARAMETERS[name]])})"


class Callbacks:
  """The callbacks of a run in the order in which they are called: its own, then the user's."""

  def __init__(self, run: Any, own: Iterable[Callback], users: Iterable[Callback]):
    self._run = run
    self._own, self._users = _find_methods(own), _find_methods(users)

  def call(self, name: str) -> None:
    """Calls all methods of a name, such as 'on_step'; a user's may take their time."""
    for method in self._own[name]:
      method(self._run)
    if self._users[name]:
      with self._run.session.watchdog.paused():
        for method in self._users[name]:
          method(self._run)

  def warn(self, text: str) -> None:
    """Gives all of them a warning; from any thread."""
    if not self._own['on_warning']:  # Nothing shows the run yet.
      write_line(text)
      return
    for method in self._own['on_warning'] + self._users['on_warning']:
      method(self._run, text)


@contextlib.contextmanager
def closed_with(run: Any, callbacks: Sequence[Callback]) -> Iterator[None]:
  """Opens a context at whose end all callbacks are closed, in their order, whatever ends it.

  What has ended it stays the reason: an error of `on_close` is a warning then.
  """
  def close(callback, kind, *_):
    try:
      callback.on_close(run)
    except Exception as error:
      if kind is None:
        raise
      write_line(f'WARNING: {type(callback).__name__}.on_close has failed: '
                 f'{type(error).__name__}: {error}')

  with contextlib.ExitStack() as closing:
    for callback in reversed(callbacks):
      closing.push(functools.partial(close, callback))
    yield


def _find_methods(callbacks: Iterable[Callback]) -> Dict[str, List[Callable[..., Any]]]:
  """Returns, by name, the methods that the callbacks' classes, or the objects, have of their own.
  """
  return {name: [getattr(callback, name) for callback in callbacks
                 if getattr(type(callback), name) is not getattr(Callback, name) or
                 name in vars(callback)] for name in _PARAMETERS}
