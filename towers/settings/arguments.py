"""Arguments: what was given where `towers.Program` and `towers.train` take something else.

A message says what was given, what is taken, and the line to write.
"""

import dataclasses
import functools
import inspect
import logging
import re
from typing import Any, Callable, Sequence, TypeVar

import numpy as np

from towers.base.usage_error import UsageError, check_parameters
from towers.data.examples import ENDLESS, DataSet, Examples, Mixture
from towers.settings.program_settings import ProgramSettings
from towers.settings.table import GROUPS, SETTINGS, arguments_of, find_meant
from towers.tensorflow_v1 import Optimizer, data_sets
from towers.update.groups import by_pattern
from towers.update.optimizer_function import takes_gradients

# The module of what Keras makes, in TensorFlow or beside it.
_IN_KERAS = re.compile(r'(^|\.)(tf_)?keras(\.|$)')
_NO_DEFAULT = inspect.Parameter.empty
_Function = TypeVar('_Function', bound=Callable[..., Any])
_FUNCTIONS = {'program': 'towers.Program', 'run': 'towers.train', 'check': 'towers.check',
              'export': 'towers.export'}
# What they take, of which some are other settings on a command line, or none.
_TAKEN = {'program': {'train', 'validation', 'workers', *(
    field.name for field in dataclasses.fields(ProgramSettings))},
          'run': {'callbacks', *arguments_of('run')}}
# Flags that are something else in Python.
_INSTEAD = {'data': 'train of towers.Program', 'check': 'towers.check',
            'predict': 'session.predict', 'export_dir': 'towers.export',
            'init_map': 'towers.init_from', 'reinit': 'towers.init_from'}
# What `--validation` takes.
_VALIDATED = {'none': 'validation=None', 'switch': 'validation=examples',
              'tower': 'validation=examples, validation_tower=True'}


def with_known_names(of: str) -> Callable[[_Function], _Function]:
  """Returns a decorator for the function of users that `of` stands for in `_FUNCTIONS`.

  A name that it does not take is then a UsageError, which says what was meant; so are a missing
  one, and an argument without its name.
  """
  def decorate(function: _Function) -> _Function:
    known = inspect.signature(function).parameters
    unnamed = [name for name, parameter in known.items()
               if parameter.kind is not parameter.KEYWORD_ONLY]

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
      for name in given:
        if name not in known:
          raise UsageError(f'{_FUNCTIONS[of]} has no argument {name}'
                           f'{_find_meant(of, name, given[name], known)}')
      if len(args) > len(unnamed):
        which = ' and '.join(name for name in unnamed if name != 'self')
        raise UsageError(f'{_FUNCTIONS[of]} got {describe(args[len(unnamed)])} without a name, and '
                         f'only {which} may lack one: write its name and = before it.')
      missing = [name for name in list(known)[len(args):]
                 if name not in given and known[name].default is _NO_DEFAULT]
      if missing:
        raise UsageError(f"{_FUNCTIONS[of]} needs {' and '.join(missing)} as well.")
      return function(*args, **given)

    return checked  # type: ignore[return-value]
  return decorate


def _find_meant(of, name, value, known):
  """Returns what to do about a name that a function does not take."""
  setting = SETTINGS.get(name)
  called = {other.alias: other.name for other in SETTINGS.values()
            if other.alias and other.name in known}
  if name in called:
    return f': it is called {called[name]} here.'
  for other, names in _TAKEN.items():
    if other != of and name in names:
      return f': give {_read_validated(name, value) or name} to {_FUNCTIONS[other]}.'
  if setting is None:
    meant = dict.fromkeys(called.get(each, each) for each in find_meant(name, [*known, *called]))
    return f": did you mean {' or '.join(meant)}?" if meant else '.'
  instead = _INSTEAD.get(name) or (
      'part of optimizer and learning_rate of towers.Program'
      if setting in GROUPS['weight update'] else '')
  return f', which is a flag of the command line: in Python it is {instead}.' if instead else (
      ', which is a flag of the command line alone.')


def _read_validated(name, value):
  """Returns the arguments that say what a value of `--validation` says, or ''."""
  return _VALIDATED.get(value, '') if name == 'validation' and isinstance(value, str) else ''


def check_model(model: Any) -> None:
  """Refuses by a UsageError a model that is no function from a batch to losses."""
  # A class of one's own may take a batch.
  if _IN_KERAS.search(type(model).__module__):
    raise UsageError(f'model is {describe(model)}, and every tower needs its losses: give '
                     'towers.KerasModel(make_model, loss=…), where make_model makes the model.')
  if not callable(model):
    raise UsageError(f'model is {describe(model)}: give a function of a batch and is_training that '
                     'returns one loss per example.')
  check_parameters(model, 'model', 'batch', 'is_training',
                   fix='write def model(batch, is_training)')


def check_examples(name: str, given: Any) -> None:
  """Refuses examples that are no `towers.Examples`; `name` is train, validation or examples."""
  if isinstance(given, Examples):
    if name != 'train' and isinstance(given.buckets, Mixture):
      raise UsageError(f'{name} is of towers.mixed, which takes some examples of an epoch several '
                       'times, and others not at all: measure each part by itself, as '
                       'session.evaluate(part) does.')
    if name != 'train' and given.num_examples >= ENDLESS:
      raise UsageError(f'{name} is of towers.from_stream, which has no end: give examples of a '
                       'known number, as some of the stream in towers.from_arrays.')
    return
  if isinstance(given, DataSet):
    line = f"{name}=data_set.{'train' if name == 'train' else 'validation'}"
  elif data_sets.is_dataset(given):
    line = f'{name}=towers.from_dataset(make), where make is a function that returns the data set'
  elif isinstance(given, (tuple, list)) and 1 < len(given) <= 4:
    line = f"{name}=towers.from_arrays({', '.join(['images', 'labels', 'c', 'd'][:len(given)])})"
  elif isinstance(given, (np.ndarray, list, dict)):
    line = f'{name}=towers.from_arrays(arrays)'
  elif callable(given):
    line = f'{name}=towers.from_dataset(function), if it returns a tf.data.Dataset'
  elif _read_validated(name, given):
    line = _read_validated(name, given)
  else:
    line = f'{name}=towers.from_arrays(images, labels)'
  raise UsageError(f'{name} is {describe(given)}, not towers.Examples: write {line}.')


def check_optimizer(optimizer: Any) -> None:
  """Refuses what is no `tf.train.Optimizer`, nor makes one; warns of a method that nobody calls."""
  for steps, one, turns in by_pattern(optimizer).values():
    if type(steps) is not int or steps < 1:
      raise UsageError(f'towers.Every got {steps!r} steps: give a whole number above 0, as in '
                       'towers.Every(5, tf.train.AdamOptimizer(1e-4)).')
    if not isinstance(turns, Sequence) or not set(turns) <= {*range(1, steps + 1)}:
      raise UsageError(f'towers.Every got turns={turns!r}: give numbers from 1 to its {steps} '
                       f'steps, as turns=[1, {steps}].')
    kind = one if isinstance(one, type) else type(one)
    is_of_keras = any(_IN_KERAS.search(base.__module__) for base in kind.__mro__)
    for name, value in vars(one).items() if kind.__module__.startswith('tensorflow') else ():
      if isinstance(one, Optimizer) and isinstance(value, str) and not name.endswith('_name'):
        raise UsageError(f'optimizer is {describe(one)} whose {name.lstrip("_")} is {value!r}, a '
                         f'text: give it a number, as tf.train.{kind.__name__}(0.001).')
    if isinstance(one, Optimizer) or (callable(one) and not is_of_keras):
      if not isinstance(one, Optimizer) and not takes_gradients(one):
        check_parameters(one, 'optimizer', 'rate',
                         fix='write optimizer=lambda rate: tf.train.MomentumOptimizer(rate, 0.9)')
      # TensorFlow's own ones compute and apply gradients.
      minimize = getattr(kind, 'minimize', Optimizer.minimize)
      if not minimize.__module__.startswith('tensorflow.'):
        logging.getLogger('towers').warning(
            '%s has a minimize of its own, which towers does not call, since each tower has '
            'gradients of its own: what it changes belongs into apply_gradients, which gets their '
            'mean.', kind.__name__)
      continue
    raise UsageError(f'optimizer is {describe(one)}, and towers.Program takes a '
                     'tf.train.Optimizer: write optimizer=tf.train.AdamOptimizer(1e-3), or another '
                     'of tf.train, or a function that makes one from the learning rate.')


def describe(given: Any) -> str:
  """Returns what a value is, in some words."""
  if given is None or isinstance(given, str):
    return repr(given)
  if isinstance(given, np.ndarray):
    return f'a NumPy array of shape {list(given.shape)}'
  if type(given) in (tuple, list):
    return f'a {type(given).__name__} of {len(given)}'
  if isinstance(given, type):
    return f'the class {given.__name__}'
  return f"{'an' if type(given).__name__[0] in 'AEIOaeio' else 'a'} {type(given).__name__}"
