"""Check: whether N towers of a model are one tower, and if not, what is to blame.

  one tower, twice ──► equal to the bit? ──► N towers: equal except for rounding?
                       no: the program does     no: what the coupling check finds on the same
                       not repeat               batches is to blame

All programs are built from the same seed and take the same few batches. Losses, gradients and all
variables of the model must agree. If two runs of one tower differ, nothing can be compared with
them, and the report names the first value that differs (see `repeats`). On all batches the model
must be a sum over its examples (see `coupling.check`). Rounding is measured (see `comparison`).
"""

from typing import List, NamedTuple

import numpy as np

from towers.base.reason import find_reason
from towers.base.usage_error import UsageError, check_choice
from towers.checks.repeats import find_change
from towers.checks.trial import END, GRADIENT, INPUT, LOSS, START, Trial
from towers.coupling.check import FIX, find_coupling
from towers.coupling.comparison import INCONCLUSIVE, Difference, compare, find_norm, shake
from towers.data.examples import Examples
from towers.graph.source_lines import find_line, format_op
from towers.placement.devices import build_devices
from towers.settings.arguments import with_known_names
from towers.tensorflow_v1 import RUN_ERRORS, tf
from towers.tower.batch_norm.moving_averages import BATCH_NORMS, is_moving_average
from towers.tower.model_call import Model


class CheckReport(NamedTuple):
  """The result of a check.

  Attributes:
    num_towers: of the program that was compared with one tower.
    rows: all comparisons; empty if the towers could not be built or run.
    causes: sentences on why towers, or two runs of one tower, differ; empty if they agree.
    draws: whether random ops keep a state of their own, which differs in every tower.
    only_draws: whether nothing else makes the towers differ.
    not_repeated: the first input, variable or op that differs between two runs of one tower, or ''.
      If there is one, the rows compare these two runs, and several towers have not been tried.
    device: 'CPU' or 'GPU'.
  """
  num_towers: int
  rows: List[Difference]
  causes: List[str]
  draws: bool = False
  only_draws: bool = False
  not_repeated: str = ''
  device: str = 'CPU'

  @property
  def agrees(self) -> bool:
    """Whether the towers are one tower."""
    return (bool(self.rows) and not self.not_repeated and not self.causes
            and all(row.agrees for row in self.rows))

  def format(self) -> str:
    """Returns the table of all comparisons, and the verdict."""
    compared = f'{self.num_towers} towers beside one on the same batches'
    verdict = f'{self.num_towers} towers are NOT one tower.'
    if self.not_repeated:
      compared = 'one tower beside itself, built and run twice from one seed'
      verdict = f'Your program does not repeat: two runs differ first in {self.not_repeated}.'
    elif self.agrees:
      verdict = f'{self.num_towers} towers are one tower: losses, gradients and variables agree.'
    devices = ('GPUs, where two builds may choose other algorithms, so that one tower too is '
               'compared with itself except for rounding' if self.device == 'GPU'
               else 'virtual CPU devices')
    width = max((len(row.name) for row in self.rows), default=0)
    rows = [f'  {row.name:{width}}  {row.difference:9.2g} of {row.scale:9.2g}  {row.verdict}'
            for row in self.rows]
    return '\n'.join([f'{compared}, on {devices}; norms of differences and values:', *rows,
                      ' '.join([verdict, *self.causes])])

  def __str__(self) -> str:
    return self.format()


@with_known_names('check')
def check(model: Model, examples: Examples, *, num_towers: int = 2, batch_size: int = 16,
          num_steps: int = 3, seed: int = 0, batch_norm: str = 'first', is_training: bool = True,
          device: str = 'cpu') -> CheckReport:
  """Builds a model with one tower and with several, and compares a few steps.

  `build_towers` builds the towers with its defaults: it calls the model for each, in the model's
  own precision, on variables on the host. The optimizer is plain gradient descent.

  Args:
    model: to check.
    examples: whose first `num_steps` batches are used, not shuffled.
    num_towers: of the second program.
    batch_size: the global batch of both.
    num_steps: of both programs, each step from the variables of one tower.
    seed: of initial weights and random ops.
    batch_norm: as for `build_towers`.
    is_training: for the model. With False dropout is off, so that the rest can be compared, and the
      model need not update moving averages.
    device: 'cpu' for virtual CPU devices, 'gpu', or 'auto', as for `build_devices`. On GPUs choose
      deterministic kernels first, or programs may not repeat.

  Raises:
    UsageError: one tower of a model cannot be built or run, too few GPUs, or impossible sizes.
  """
  check_choice('batch_norm', batch_norm, BATCH_NORMS)
  kind = build_devices(max(num_towers, 1), device).kind

  def build(count):
    return Trial(model if is_training else _without_updates(model), examples, num_towers=count,
                 seed=seed, batch_size=batch_size, device=kind.lower(),
                 batch_norm=batch_norm if is_training else 'first')

  return _compare_programs(build, num_towers, num_steps, kind)._replace(device=kind)


def _without_updates(model):
  """Returns the model for validation, with an update that does nothing: no check misses one."""
  def changed(batch, is_training):
    del is_training
    returned = model(batch, False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.no_op())
    return returned

  return changed


def _compare_programs(build, num_towers, num_steps, kind) -> CheckReport:
  first = build(1)
  try:
    one = first.run(num_steps)
  except RUN_ERRORS as error:
    reason = _summarize(error)
    raise UsageError(f'Not even one tower can take {num_steps} steps: {reason}') from error
  try:
    second = build(1)
  except ValueError as error:
    return CheckReport(num_towers, [], [str(error)],
                       not_repeated='the graph, which cannot be built twice')

  again = second.run(num_steps)
  change = find_change(first, second, one, again)
  changed = change and CheckReport(num_towers, _compare(one, one, again), [change[1]],
                                   not_repeated=change[0])
  if changed and kind != 'GPU':
    return changed
  noisy = second.run(num_steps, starts=_shake(one, first.program.towers[0].variables),
                     reverses=not first.draws)
  if changed and not all(row.agrees for row in _compare(one, noisy, again)):
    return changed

  try:
    parted = build(num_towers)
    several = parted.run(num_steps, starts=one)
  except ValueError as error:
    return CheckReport(num_towers, [], [f'They cannot be built: {error}'])
  except tf.errors.OpError as error:
    return CheckReport(num_towers, [], [f'They cannot take a step: {_summarize(error)}'])
  rows = _compare(one, noisy, several)
  if not np.isfinite([step[LOSS, 'loss'] for step in one]).all():
    return CheckReport(num_towers, rows, ['Even the losses of one tower are not finite.'])
  draws = ', '.join(first.stateful_draws)
  # On one tower nothing tells values of all towers from those of the batch.
  causes = _find_causes(parted, several, num_towers)
  if not causes and num_towers > 1 and not all(row.agrees for row in rows):
    causes = _find_causes(first, one, num_towers) or _find_normalised(first) or (
        [] if draws else [_find_reason(rows)])
  if not draws:
    return CheckReport(num_towers, rows, causes)
  return CheckReport(num_towers, rows, [
      f'Random ops keep a state of their own, which differs in every tower ({draws}): compare the '
      'rest with is_training=False.', *causes], draws=True, only_draws=not causes)


def _shake(steps, variables):
  """Returns steps that begin with trained variables changed in their last bits."""
  trained = {(START, variable.op.name) for variable in variables}
  random = np.random.RandomState(0)
  return [{key: shake(value, random) if key in trained else value for key, value in step.items()}
          for step in steps]


def _compare(one, noisy, several) -> List[Difference]:
  """Compares the losses, gradients and variables of all steps; returns a row for each."""
  rows = []
  for kind, title in ((LOSS, ''), (GRADIENT, 'gradient of '), (END, '')):
    values = {key: [[step.get(key) for step in steps] for steps in (several, one, noisy)]
              for key in {**one[0], **several[0]} if key[0] == kind}
    floats = [of_key for of_key in values.values() if np.asarray(of_key[1][0]).dtype.kind == 'f']
    expected, noise = ([value for of_key in floats for value in of_key[index]] for index in (1, 2))
    settings = dict(largest=max((find_norm(of_key[1]) for of_key in floats), default=0.0),
                    share=find_norm(noise, expected) / (find_norm(expected) or 1.0))
    rows += [compare(title + key[1], *of_key, **settings) for key, of_key in values.items()]
  return rows


def _find_causes(trial, steps, num_towers) -> List[str]:
  """Returns what the coupling check says of the first batches of which it says anything."""
  with trial.open() as session:
    for step in steps if num_towers > 1 and not trial.stateful_draws else ():
      trial.start_from(session, step)
      rows = list(zip(*(values for (kind, _), values in step.items() if kind == INPUT)))
      try:
        found = find_coupling(trial.program.towers, session, rows, num_parts=num_towers)
      except UsageError as error:
        return [str(error)]
      if found:
        return [*found[:-1], f'{found[-1]} {FIX}']
  return []


def _find_normalised(trial) -> List[str]:
  """Returns a sentence on layers that each tower normalises by its own batch, if there are any."""
  averages = [variable.op for variable in trial.variables.values() if is_moving_average(variable)]
  if not averages or trial.program.given.batch_norm == 'sync':
    return []
  # A layer makes its variables in a stack of its own at times.
  readers = [reader for handle in averages[0].outputs for reader in handle.consumers()]
  line = next(filter(None, map(find_line, [averages[0], *readers])), '')
  return [f'Batch normalisation takes the moments of each tower\'s own batch ({averages[0].name}'
          f'{line}): batch_norm=sync takes those of the global batch.']


def _find_reason(rows) -> str:
  """Returns a sentence on rows that differ, though no coupling is found."""
  row = next(row for row in rows if not row.agrees)
  if all(row.agrees or row.verdict == INCONCLUSIVE for row in rows):
    return (f'Rounding decides in this model: weights changed by a millionth, and examples in '
            f'another order, move {row.name} by {row.noise:.2g} of {row.scale:.2g}, so that it '
            'cannot be compared.')
  return (f'The examples of these batches do not tell why {row.name} differs: look at what the '
          'model does in branches and loops, and at variables that it changes itself.')


def _summarize(error):
  """Returns the op that failed, the reason without the stacks that TensorFlow adds, and a fix."""
  op, reason = getattr(error, 'op', None), find_reason(error)
  fix = ('. One tower takes a whole batch, several a part of it each: in place of a number of rows '
         'in the model write tf.shape(x)[0]') if 'shape' in reason else ''
  return ('' if op is None else f'{format_op(op)}: ') + reason + fix
