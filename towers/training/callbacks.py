"""Callbacks: a user's own, called by a run; none is left out in silence.

  class Stop(towers.Callback):
    def on_validation(self, run):
      if run.metrics['validation_accuracy'] > 0.9:
        run.stop('good enough')              ends as a run ends: checkpoint, result, exit code 0
"""

from typing import Any, Callable, Dict, Iterable, List, Union

from towers.base.usage_error import UsageError, check_parameters
from towers.training.reporting.progress import Callback

AnyCallback = Union[Callback, Callable[[int, float], Any]]
_OF_A_RUN = ('on_step', 'on_validation', 'on_end')


class Function(Callback):
  """A callback that is a function of the step and the loss."""

  def __init__(self, function: Callable[[int, float], Any]):
    self._function = function

  def step(self, *, step: int, loss: float, train_seconds: float) -> None:
    """Calls the function."""
    self._function(step, float(loss))


def read_callbacks(given: Iterable[AnyCallback]) -> List[Callback]:
  """Returns the callbacks, functions as such too; refuses by a UsageError what is never called."""
  callbacks: List[Callback] = []
  if isinstance(given, Callback) or callable(given):
    name = getattr(given, '__name__', type(given).__name__)
    raise UsageError(f'callbacks is {name} alone: give a list, as callbacks=[{name}'
                     f"{'()' if isinstance(given, (type, Callback)) else ''}].")
  for callback in given:
    if isinstance(callback, Callback):
      others = [name for name in dir(callback) if name.startswith('on_') and
                name not in _OF_A_RUN and callable(getattr(callback, name))]
      if others:
        raise UsageError(f'callbacks has {type(callback).__name__} with {others[0]}, which no run '
                         f"calls: write one of {', '.join(_OF_A_RUN)}.")
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
      callbacks.append(Function(callback))
  return callbacks


class Callbacks(Callback):
  """Calls a user's callbacks; before an exception of theirs ends the run, it saves the step."""

  def __init__(self, run: Any, callbacks: Iterable[Callback], save: Callable[[], Any]):
    """Finds the methods that are theirs; `save` saves what the run can go on from."""
    self._run, self._save = run, save
    callbacks = list(callbacks)
    self._methods: Dict[str, List[Callable[..., Any]]] = {
        name: [getattr(callback, name) for callback in callbacks
               if getattr(type(callback), name) is not getattr(Callback, name) or
               name in vars(callback)]
        for name in (*_OF_A_RUN, 'step', 'validation', 'rewind', 'warning')}

  def step(self, *, step: int, loss: float, train_seconds: float) -> None:
    """Calls them after a step."""
    self._call('step', 'on_step', step=step, loss=loss, train_seconds=train_seconds)

  def validation(self, *, step: int, metrics: Dict[str, float]) -> None:
    """Calls them after a validation."""
    self._run.note_validation(metrics)
    self._call('validation', 'on_validation', step=step, metrics=metrics)

  def rewind(self, step: int) -> None:
    """Calls them where the run goes back."""
    for method in self._methods['rewind']:
      method(step)

  def warning(self, text: str) -> None:
    """Gives them a warning; from any thread."""
    for method in self._methods['warning']:
      method(text)

  def end(self) -> None:
    """Calls them at the end of the run."""
    self._call(None, 'on_end')

  def _call(self, plain, of_run, **numbers):
    methods = self._methods
    if not (plain and methods[plain]) and not methods[of_run]:
      return
    try:
      with self._run.session.watchdog.paused():
        for method in methods[plain] if plain else ():
          method(**numbers)
        for method in methods[of_run]:
          method(self._run)
    except Exception:
      self._save()
      raise
