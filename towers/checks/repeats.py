"""Repeats: whether a program gives the same bits when it runs twice from the same seed.

A program that does not repeat cannot be compared with anything. The check follows the data flow and
names the first value that differs:

  input batch ──► initial values ──► activations, op by op
              ──► loss ──► gradients ──► variables
"""

from typing import Any, List, NamedTuple, Optional

from towers.checks.comparison import Difference, compare_bits, same_bits
from towers.checks.trial import Outcome, Trial
from towers.graph.source import find_line

_INPUT, _NAME, _START, _OP, _SUM, _STATE = 'input', 'name', 'start', 'op', 'sum', 'state'
_ADVICE = {
    _INPUT: 'Draw random numbers of the input in towers.augmented(examples, function).',
    _NAME: 'A model must give its variables the same names in each call.',
    _START: 'Let a TensorFlow initializer draw it, which towers seeds by the variable\'s name; '
            'numpy draws another value each time.',
    _OP: 'Draw random numbers in the model by a TensorFlow op, which towers seeds by its name; '
         'numpy draws other values each time, while the graph is built or in tf.py_func.',
    _SUM: 'A kernel adds up in any order: on GPUs, choose deterministic ones (--deterministic).',
    _STATE: 'The model must compute what it assigns to it from batch, variables and seed.',
}


class Change(NamedTuple):
  """The first value that differs between two runs.

  Attributes:
    what: a noun phrase for the value.
    advice: a sentence with the fix.
  """
  what: str
  advice: str


def find_change(first: Trial, second: Trial, left: Outcome, right: Outcome) -> Optional[Change]:
  """Returns the first value that differs between two runs of one tower, or None.

  Args:
    first: one build of the program.
    second: another build.
    left: the outcome of the first.
    right: the outcome of the second, of as many steps.
  """
  steps = range(len(left.losses))
  step = next((step for step in steps if not _repeats(left, right, step)), None)
  if step is None:
    return None
  # Another run of the same graphs may differ elsewhere, or nowhere.
  ours, theirs = (trial.run(step + 1, watched=step) for trial in (first, second))
  return _find_change(first, ours, theirs, step) or _find_change(first, left, right, step)


def compare_runs(left: Outcome, right: Outcome) -> List[Difference]:
  """Compares losses, gradients and variables to the bit; returns a row for each."""
  rows = [compare_bits('loss', right.losses, left.losses)]
  for title, ours, expected in (('gradient of ', right.gradients, left.gradients),
                                ('', right.after, left.after)):
    names = list(dict.fromkeys(list(expected[0]) + list(ours[0])))
    rows += [compare_bits(title + name, _pick(ours, name), _pick(expected, name))
             for name in names]
  return rows


def _pick(steps, name) -> Any:
  """Returns a value of each step, or None if no step has it."""
  return [values[name] for values in steps] if name in steps[0] else None


def _repeats(left, right, step):
  def values(run):
    return [dict(loss=run.losses[step])] + [
        of_steps[step] for of_steps in (run.inputs, run.before, run.gradients, run.after)]

  return all(_find_first(*pair) is None for pair in zip(values(left), values(right)))


def _find_change(trial, left, right, step) -> Optional[Change]:
  """Returns the first value of a step that differs, in the order of the data flow."""
  name = _find_first(left.inputs[step], right.inputs[step])
  if name is not None:
    value = left.inputs[step][name][0]
    kind = f'{value.dtype}, {list(value.shape)}'
    return Change(f'the input batch: tensor {name} ({kind}) of step {step + 1}', _ADVICE[_INPUT])
  name = _find_first(left.before[0], right.before[0])
  if name is not None and not (name in left.before[0] and name in right.before[0]):
    return Change(f'the variable {name}, which one of two builds alone has', _ADVICE[_NAME])
  if name is not None:
    return Change(f'the initial value of the variable {name}', _ADVICE[_START])
  common = [name for name in left.activations if name in right.activations]
  name = _find_first(*({name: run.activations[name] for name in common} for run in (left, right)))
  if name is not None:
    op = trial.find_op(name)
    kind = f'{op.type}{find_line(op)}'
    return Change(f'the op {trial.shorten(op.name)} ({kind}) in step {step + 1}', _ADVICE[_OP])
  if not same_bits(left.losses[step], right.losses[step]):
    return Change(f'the loss of step {step + 1}', _ADVICE[_SUM])
  name = _find_first(left.gradients[step], right.gradients[step])
  if name is not None:
    return Change(f'the gradient of the variable {name} in step {step + 1}', _ADVICE[_SUM])
  name = _find_first(left.after[step], right.after[step])
  if name is not None:
    return Change(f'the variable {name} after step {step + 1}', _ADVICE[_STATE])
  return None


def _find_first(ours, theirs) -> Optional[str]:
  """Returns the first name whose bits differ, or that only one side has."""
  for name in list(ours) + list(theirs):
    if name not in ours or name not in theirs or not same_bits(ours[name], theirs[name]):
      return name
  return None
