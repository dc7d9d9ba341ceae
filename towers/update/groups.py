"""Groups of variables, each with its own optimizer or its own factor of the learning rate.

  optimizer={'generator/': adam, '': sgd}                    an optimizer for each pattern, '' for
                                                             all other variables
  optimizer={'generator/': Every(5, adam), 'critic/': adam}  one step of five moves the generator
  rate_factors={'encoder/': 0.1}                             the others have 1
  optimizer=function                                         see `towers.update.optimizer_function`

Patterns are matched with the beginning of names. A step updates all groups and counts once.
"""

import contextlib
import copy
import math
import numbers
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Union

import numpy as np

from towers.base.usage_error import UsageError, check_parameters, find_own_line
from towers.input.plan import Plan
from towers.placement.host import HOST
from towers.placement.patterns import choose, shorten
from towers.tensorflow_v1 import Optimizer, Tensor, replaced, tf
from towers.update.optimizer_function import FunctionOptimizer, Update, takes_gradients

# A learning rate that never changes is a float.
Rate = Union[float, Tensor]
OneOptimizer = Union[Optimizer, Callable[[Rate], Optimizer], Update]
# How messages write a rate that falls.
_DECAY = ('learning_rate=lambda plan: tf.train.cosine_decay(0.1, tf.train.get_global_step(), '
          '1000)')


class Every(NamedTuple):
  """An optimizer that acts in every so many steps: the 5th, the 10th and so on.

  In the other steps its variables and slots stay as they are, and its gradients are not applied.
  The program's step alone decides, so that a run that is resumed goes on with the same count.

  Attributes:
    steps: of the program, for each of the optimizer.
    optimizer: a `tf.train.Optimizer`, or a function that makes one from the learning rate.
    turns: in which of each so many steps it acts, from 1, as `[1, 2]`; the last one by default.
  """
  steps: int
  optimizer: OneOptimizer
  turns: Sequence[int] = ()

  def __str__(self) -> str:
    """Returns 'every 5 steps', or 'in turns 1, 2 of 5 steps'."""
    turns = ', '.join(map(str, self.turns))
    return f'in turns {turns} of {self.steps} steps' if turns else f'every {self.steps} steps'


Optimizers = Union[OneOptimizer, Every, Mapping[str, Union[OneOptimizer, Every]]]


class Group(NamedTuple):
  """Variables, by name, that one optimizer updates, see `Every`; its rate, also in words.

  `label` is of the patterns that chose the variables, '' for all others.
  """
  optimizer: Optimizer
  names: Set[str]
  every: int = 1
  rate: Rate = float('nan')
  text: str = ''
  turns: Sequence[int] = ()
  label: str = ''


def build_groups(optimizers: Optimizers, rate: Rate, names: Sequence[str], *,
                 rate_factors: Optional[Mapping[str, float]] = None,
                 weight_decay: float = 0.0) -> List[Group]:
  """Returns the groups of the trainable variables of these names.

  The rate, times a factor by pattern, is for optimizers that are functions of it.
  """
  given = rate_factors or {}
  if not isinstance(given, Mapping):
    raise UsageError(f"rate_factors is {given!r}: write rate_factors={{'encoder/': 0.1}}.")
  factors = _assign('rate_factors', given, names)
  for pattern, factor in given.items():
    if not isinstance(factor, numbers.Real) or not factor > 0 or math.isinf(factor):
      raise UsageError(f'rate_factors has {factor!r} for {pattern}: give a number above 0, or '
                       'freeze the variables.')
  optimizers = by_pattern(optimizers)
  patterns = _assign('optimizer', optimizers, names)
  unmatched = [name for name in names if name not in patterns]
  if unmatched:
    raise UsageError(f"optimizer has no pattern for {shorten(unmatched)}: add one, '' for all "
                     'others, or freeze these variables. Its patterns are '
                     f"{', '.join(optimizers)}.")
  found: Dict[Any, Group] = {}
  rates: Dict[float, Rate] = {1.0: rate}
  for name in names:
    every = optimizers[patterns[name]]
    optimizer = every.optimizer
    factor = float(given[factors[name]]) if name in factors else 1.0
    # The same object updates all its variables at once.
    key = (id(optimizer), factor, every.steps, tuple(every.turns))
    if key not in found:
      made = _make(optimizer, factor, rates, name)
      check_own_gradients(made)
      own = getattr(made, '_weight_decay', None)
      if weight_decay and isinstance(own, numbers.Real) and own:
        kind = type(made).__name__
        raise UsageError(f'weight_decay={weight_decay:g} would be added to the gradients beside '
                         f'the {own:g} of {kind}: leave weight_decay out, and write optimizer='
                         f'lambda rate: {kind}(rate, weight_decay={weight_decay:g}).')
      if any(group.optimizer is made for group in found.values()):
        raise UsageError('optimizer has one object for groups that act in different steps, and '
                         'its own numbers would move in both: make an optimizer for each.')
      own_rate = _read_rate(made)
      if _is_of_another_graph(own_rate):
        raise UsageError(f'The rate of the optimizer, {own_rate!r}, is of another graph than the '
                         'program: make the optimizer in the same graph, `with '
                         'tf.Graph().as_default():`.')
      if _is_hidden(own_rate) and _is_function(optimizer):
        own_rate = rates[factor]
      chosen = [pattern.strip('/') for pattern in (patterns[name], factors.get(name, ''))]
      found[key] = Group(made, set(), every.steps, own_rate,
                         _describe_rate(own_rate, factor, every), every.turns,
                         '/'.join(filter(None, chosen)))
    found[key].names.add(name)
  return list(found.values())


def name_rates(groups: Sequence[Group]) -> Dict[str, Rate]:
  """Returns the known rates by the names of their curves, which is one where all are the same."""
  named = {'/'.join(filter(None, ['learning_rate', group.label])): group.rate for group in groups
           if not _is_hidden(group.rate)}
  if len({rate if isinstance(rate, float) else id(rate) for rate in named.values()}) == 1:
    named = {'learning_rate': next(iter(named.values()))}
  # A run would fetch a variable itself, and not its value.
  return {name: rate if isinstance(rate, float) else tf.convert_to_tensor(rate)
          for name, rate in named.items()}


def check_own_gradients(optimizer: Optimizer) -> None:
  """Refuses an optimizer whose `compute_gradients`, which nobody calls, makes other gradients.

  One that only hands on what the base class returns, as wrappers do, is found by trying it out.
  """
  own = getattr(optimizer, 'compute_gradients', None)
  if own is None or getattr(own, '__func__', None) is Optimizer.compute_gradients:
    return
  asked = []
  with tf.Graph().as_default():
    variable = tf.get_variable('variable', [])
    loss, pairs = tf.square(variable), [(tf.constant(1.0), variable)]

    def compute(_, loss, *args, **settings):
      asked.append(loss)
      return pairs

    with contextlib.suppress(Exception), replaced((Optimizer, 'compute_gradients', compute)):
      returned = copy.copy(optimizer).compute_gradients(loss, [variable])
      if [id(loss)] == [*map(id, asked)] and [*map(id, returned[0])] == [*map(id, pairs[0])]:
        return
  raise UsageError(
      f'{type(optimizer).__name__} makes other gradients in its compute_gradients, which towers '
      'does not call: each tower has gradients of its own, and what is made of them, such as '
      'clipped ones, is not what one tower makes. Give clip_norm=1.0 to clip them, or change their '
      'mean over the global batch: write def apply_gradients(self, pairs, *args, **kwargs): return '
      'super().apply_gradients([(change(gradient), variable) for gradient, variable in pairs], '
      '*args, **kwargs). What needs the gradients of single examples, as differential privacy '
      'does, cannot be trained here.')


def by_pattern(optimizers: Optimizers) -> Dict[str, Every]:
  """Returns for each pattern its optimizer, and in every how many steps it acts."""
  if not isinstance(optimizers, Mapping):
    optimizers = {'': optimizers}
  return {pattern: one if isinstance(one, Every) else Every(1, one)
          for pattern, one in optimizers.items()}


def _assign(setting: str, patterns: Mapping[str, Any], names: Sequence[str]) -> Dict[str, str]:
  """Returns the pattern that matches each name, for names that one does; '' takes all others."""
  found: Dict[str, str] = {}
  for pattern in sorted(patterns, key=bool, reverse=True):
    for name in (choose(setting, pattern, names, what='trainable variable') if pattern else
                 [name for name in names if name not in found]):
      if name in found:
        raise UsageError(f'{setting} matches {name} twice, by {found[name]!r} and by {pattern!r}: '
                         "let one pattern match each variable; '' takes all others.")
      found[name] = pattern
  return found


def _is_function(optimizer: OneOptimizer) -> bool:
  """Whether an optimizer is still to be made from the learning rate."""
  return (callable(optimizer) and not isinstance(optimizer, Optimizer)
          and not takes_gradients(optimizer))


def choose_rate(optimizer: Optimizers,
                learning_rate: Union[float, Callable[[Plan], Rate], None], plan: Plan) -> Rate:
  """Returns the learning rate that is given, NaN where optimizers have their own.

  A `learning_rate`, or a function from the training split's plan to it, is for optimizers that are
  functions of the rate.
  """
  optimizers = [one.optimizer for one in by_pattern(optimizer).values()]
  if not optimizers:
    raise UsageError('optimizer is an empty dict: give an optimizer for each pattern.')
  has_function = any(map(_is_function, optimizers))
  if learning_rate is None and has_function:
    raise UsageError('optimizer is a function of the learning rate, and learning_rate is not '
                     'given: give learning_rate=0.1, or an optimizer that has its rate.')
  if learning_rate is not None and not has_function:
    raise UsageError(f'learning_rate={learning_rate} has no effect on an optimizer that has its '
                     'own rate: give optimizer as a function of the rate, as `lambda rate: '
                     'tf.train.MomentumOptimizer(rate, 0.9)`, or leave learning_rate out.')
  if learning_rate is None:
    return float('nan')
  with tf.device(HOST):
    rate = _as_rate(_call(learning_rate, plan) if callable(learning_rate) else learning_rate)
  if isinstance(rate, float) and not 0 <= rate < np.inf:
    raise UsageError(f'learning_rate={rate:g}: it must be a finite number of at least 0.')
  if _is_of_another_graph(rate):
    raise UsageError(f'learning_rate is {rate!r} of another graph than the program: give a '
                     f'function that makes it, as {_DECAY}.')
  return rate if isinstance(rate, float) else tf.convert_to_tensor(rate)


def _is_of_another_graph(rate):
  return getattr(rate, 'graph', None) not in (None, tf.get_default_graph())


def _call(learning_rate, plan):
  """Returns the rate that a function of the plan makes."""
  check_parameters(learning_rate, 'learning_rate', 'plan', fix='write learning_rate=lambda plan: …')
  try:
    return learning_rate(plan)
  except UsageError:
    raise
  except (TypeError, ValueError) as error:
    line = find_own_line(error.__traceback__)
    raise UsageError(
        f'The function learning_rate fails{f" at {line}" if line else ""}: {error}. It gets the '
        f'plan, once, and no step: take tf.train.get_global_step() inside, as {_DECAY}.') from error


def _as_rate(rate: Any) -> Rate:
  """Returns a tensor or variable as it is, and any number as a float."""
  if hasattr(rate, 'dtype') and hasattr(rate, 'op'):
    return rate
  if not isinstance(rate, (numbers.Real, np.ndarray)):
    raise UsageError(f'learning_rate is {rate!r}: give a number, as learning_rate=0.001, or a '
                     'scalar tensor.')
  return float(rate)


def _read_rate(optimizer: Optimizer) -> Rate:
  """Returns the learning rate of an optimizer, NaN where only itself knows it."""
  # TensorFlow's optimizers keep the rate under one of these names.
  rate = getattr(optimizer, '_learning_rate', getattr(optimizer, '_lr', None))
  return _as_rate(float('nan') if rate is None or callable(rate) else rate)


def _is_hidden(rate):
  return isinstance(rate, float) and math.isnan(rate)


def _describe_rate(rate, factor, every):
  if isinstance(rate, float):
    text = "the optimizer's own" if _is_hidden(rate) else f'{rate:g}'
  else:
    text = 'scheduled' if factor == 1 else f'scheduled, times {factor:g}'
  return text if every.steps == 1 else f'{text}, {every}'


def name_optimizer(optimizer: Optimizers) -> str:
  """Returns 'adam' for an AdamOptimizer, the name of a function, and those of all in a dict."""
  if isinstance(optimizer, Mapping):
    return ', '.join(f'{pattern}: {name_optimizer(one)}' for pattern, one in optimizer.items())
  if isinstance(optimizer, Every):
    return f'{name_optimizer(optimizer.optimizer)} {optimizer}'
  name = getattr(optimizer, '__name__', type(optimizer).__name__)
  return name[:-len('Optimizer')].lower() if name.endswith('Optimizer') else name


def _make(optimizer, factor, rates, name):
  """Returns the optimizer of a group, made with its factor of the rate."""
  if not _is_function(optimizer):
    if factor != 1:
      raise UsageError(f'rate_factors has {factor:g} for {name}, whose optimizer has its own rate: '
                       'give optimizer as a function of the rate, as `lambda rate: '
                       'tf.train.MomentumOptimizer(rate, 0.9)`.')
    return FunctionOptimizer(optimizer) if takes_gradients(optimizer) else optimizer
  if factor not in rates:
    with tf.device(HOST), tf.name_scope('learning_rate'):
      rates[factor] = rates[1.0] * factor
  return optimizer(rates[factor])
