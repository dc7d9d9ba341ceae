"""Check: whether N towers of a model are one tower, and if not, what is to blame.

  one tower, twice ──► equal to the bit? ──► N towers: equal except for rounding?
                       no: the program does     no: the op, variable or
                       not repeat               collection to blame

All programs are built from the same seed and take the same few batches. Losses, gradients and all
variables of the model must agree. If two runs of one tower differ, nothing can be compared with
them, and the report names the first value that differs (see `repeats`). If several towers differ
from one, it names the cause (see `causes`). Rounding is measured (see `comparison`).
"""

import functools
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.checks.causes import Evidence, find_cause, find_state_causes
from towers.checks.comparison import DIFFERS, DROWNS, Difference, compare, find_norm
from towers.checks.repeats import compare_runs, find_change
from towers.checks.trial import LEARNING_RATE, Outcome, Trial
from towers.data.examples import Examples
from towers.graph.source import format_op
from towers.input.plan import build_plan
from towers.placement.devices import build_devices
from towers.tower.batch_norm import check_kind
from towers.tower.tower import Model

# The relative change of weights that shows the effect of rounding.
_NOISE = 1e-6


class CheckReport(NamedTuple):
  """The result of a check.

  Attributes:
    num_towers: of the program that was compared with one tower.
    rows: all comparisons; empty if the towers could not be built or run.
    causes: sentences on why towers, or two runs of one tower, differ; empty if they agree.
    draws: whether the model draws random numbers, as dropout does, which differ in every tower.
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
    return bool(self.rows) and not self.not_repeated and all(row.agrees for row in self.rows)

  def format(self) -> str:
    """Returns the table of all comparisons, and the verdict."""
    compared = f'{self.num_towers} towers beside one on the same batches'
    verdict = f'{self.num_towers} towers are NOT one tower.'
    if self.not_repeated:
      compared = 'one tower beside itself, built and run twice from one seed'
      verdict = f'Your program does not repeat: two runs differ first in {self.not_repeated}.'
    elif self.agrees:
      verdict = f'{self.num_towers} towers are one tower: losses, gradients and variables agree.'
    devices = 'GPUs' if self.device == 'GPU' else 'virtual CPU devices'
    width = max((len(row.name) for row in self.rows), default=0)
    rows = [f'  {row.name:{width}}  {row.difference:9.2g} of {row.scale:9.2g}  {row.verdict}'
            for row in self.rows]
    return '\n'.join([f'{compared}, on {devices}; norms of differences and values:', *rows,
                      ' '.join([verdict, *self.causes])])


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
    UsageError: a model of which one tower cannot be built or run, too few GPUs, or impossible
      sizes.
  """
  check_kind(batch_norm)
  counts = (1, num_towers)
  devices = {count: build_devices(count, device) for count in counts}
  plans = {count: build_plan(num_examples=examples.num_examples, batch_size=batch_size,
                             num_towers=count, name=examples.name) for count in counts}

  def build(count, *, holds_draws=False):
    return Trial(model, examples, plan=plans[count], devices=devices[count], seed=seed,
                 batch_norm=batch_norm, is_training=is_training, holds_draws=holds_draws)

  report, runs = _compare_programs(build, num_towers, num_steps)
  report = report._replace(device=devices[1].kind)
  if runs is None or report.agrees:
    return report
  if not report.draws:
    return report._replace(causes=_find_causes(runs, report.rows, batch_norm))

  # With the same draws in all towers, only other causes are left.
  held, held_runs = _compare_programs(functools.partial(build, holds_draws=True), num_towers,
                                      num_steps)
  causes = [_explain_draws(runs.first.draws)]
  if held.agrees:
    causes[0] += ' Where they draw the same numbers, they agree.'
  elif held_runs is None:
    causes += held.causes
  else:
    causes += _find_causes(held_runs, held.rows, batch_norm)
  return report._replace(only_draws=held.agrees, causes=causes)


class _Runs(NamedTuple):
  """Programs and their outcomes.

  Attributes:
    first: one tower.
    second: the same, built once more.
    third: several towers.
    one: the outcome of the first.
    noisy: the outcome of the second from `shaken` variables.
    several: the outcome of the third from the variables of the first.
    shaken: for each step the variables of the first, with weights changed a little.
  """
  first: Trial
  second: Trial
  third: Trial
  one: Outcome
  noisy: Outcome
  several: Outcome
  shaken: List[Dict[str, Any]]


def _compare_programs(build, num_towers, num_steps) -> Tuple[CheckReport, Optional[_Runs]]:
  """Compares the programs that `build(number of towers)` builds.

  Returns no runs if the report already names the cause.
  """
  first = build(1)
  try:
    one = first.run(num_steps)
  except tf.errors.OpError as error:
    reason = _summarize(error)
    raise UsageError(f'Not even one tower can take {num_steps} steps: {reason}') from error
  try:
    second = build(1)
  except ValueError as error:
    return CheckReport(num_towers, [], [str(error)],
                       not_repeated='the graph, which cannot be built twice'), None

  again = second.run(num_steps)
  change = find_change(first, second, one, again)
  if change is not None:
    return CheckReport(num_towers, compare_runs(one, again), [change.advice],
                       not_repeated=change.what), None

  try:
    third = build(num_towers)
    several = third.run(num_steps, starts=one.before)
  except ValueError as error:
    return CheckReport(num_towers, [], [f'They cannot be built: {error}']), None
  except tf.errors.OpError as error:
    return CheckReport(num_towers, [], [f'They cannot take a step: {_summarize(error)}']), None

  shaken = _shake(one.before, first.towers[0].variables)
  noisy = second.run(num_steps, starts=shaken)
  rows = _compare_outcomes(one, noisy, several, range(num_steps))
  return (CheckReport(num_towers, rows, [], draws=bool(first.draws)),
          _Runs(first, second, third, one, noisy, several, shaken))


def _shake(starts, variables):
  """Returns the variables of each step, with trained ones changed in their last bits."""
  trained = {variable.op.name for variable in variables}
  random = np.random.RandomState(0)

  def shake(value):
    signs = random.choice([-1, 1], size=value.shape)
    return value * (1 + _NOISE * signs).astype(value.dtype)

  return [{name: shake(value) if name in trained else value for name, value in start.items()}
          for start in starts]


def _compare_outcomes(one, noisy, several, steps, *, with_variables=True):
  """Compares the losses, gradients and variables of steps; returns a row for each."""
  def pick(attribute, name=None):
    of_steps = ([getattr(outcome, attribute)[step] for step in steps]
                for outcome in (several, one, noisy))
    return [values if name is None else [value.get(name) for value in values]
            for values in of_steps]

  gradients = {name: pick('gradients', name) for name in one.gradients[0]}
  expected, noise = ([value for values in gradients.values() for value in values[index]]
                     for index in (1, 2))
  largest = max((find_norm(values[1]) for values in gradients.values()), default=0.0)
  share = find_norm(noise, expected) / (find_norm(expected) or 1.0)
  rows = [compare('loss', *pick('losses'))]
  rows += [compare('gradient of ' + name, *values, largest=largest, share=share)
           for name, values in gradients.items()]
  if with_variables:
    moved = {name: LEARNING_RATE * row.allowed for name, row in zip(gradients, rows[1:])}
    rows += [compare(name, *pick('after', name), slack=moved.get(name, 0.0))
             for name in one.after[0]]
  return rows


def _find_causes(runs: _Runs, rows: List[Difference], batch_norm: str) -> List[str]:
  """Returns sentences on a known cause, or on the first op that differs."""
  if not np.isfinite(runs.one.losses).all():
    return ['Even the losses of one tower are not finite.']
  if runs.first.batch_norms and batch_norm != 'sync':
    layers = ', '.join(runs.first.batch_norms[:3])
    return [f'Batch normalisation takes the moments of each tower\'s own batch ({layers}): '
            'batch_norm=sync takes those of the global batch.']
  causes = (_find_first_cause(runs, is_rounding=all(row.verdict != DIFFERS for row in rows))
            or find_state_causes(runs.first, rows))
  return causes or [
      f'Rounding decides in this model: weights changed by a millionth move {row.name} by '
      f'{row.noise:.2g} of {row.scale:.2g}, so that it cannot be compared.'
      for row in rows if row.verdict == DROWNS][:1]


def _find_first_cause(runs, is_rounding):
  """Returns sentences on the first step whose loss or gradients differ."""
  outcomes = (runs.one, runs.noisy, runs.several)
  for step in range(len(runs.one.losses)):
    rows = _compare_outcomes(*outcomes, [step], with_variables=False)
    if not all(row.agrees for row in rows):
      pairs = ((runs.first, runs.one.before), (runs.second, runs.shaken),
               (runs.third, runs.one.before))
      watched = [trial.run(step + 1, starts=starts, watched=step) for trial, starts in pairs]
      return find_cause(Evidence(step, runs.first, *watched), is_rounding=is_rounding)
  return []


def _explain_draws(names):
  return (f'Random ops draw other numbers in every tower, as they should ({", ".join(names[:3])}): '
          'compare the rest with is_training=False.')


def _summarize(error):
  """Returns the op that failed and the reason, without the stacks that TensorFlow adds."""
  lines = error.message.split('Node: ')[-1].splitlines()
  line = next((line for line in lines
               if line.strip() and not line.startswith(("'", 'Graph execution error'))), '')
  return line if error.op is None else f'{format_op(error.op)}: {line}'
