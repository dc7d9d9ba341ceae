"""Causes: sentences on why several towers of a model differ from one.

The search follows values op by op, from the batch to the loss. The ops between the last values that
are the same for each example and the first that are not show the cause: a product of the batch with
itself, or a sum over the batch. If all values are the same for each example, the ops from there to
the loss show it.
"""

from typing import Dict, List, NamedTuple, Sequence, Set

import numpy as np

from tensorflow_v1 import Operation
from towers.checks.comparison import AGREES, DROWNS, Difference, compare, find_axes, join_shares
from towers.checks.trial import Outcome, Trial
from towers.graph.source import find_line

# Their outputs depend on shapes, not on values.
_SHAPES = ('Shape', 'ShapeN', 'Size', 'Rank')
_DIVISIONS = ('RealDiv', 'Div', 'DivNoNan')
# Kinds of activations: the same for each example as in one tower, or not; one value for each pair
# of examples, or one for the batch.
_SAME, _OTHER, _PAIRS, _WHOLE, _UNKNOWN = 'same', 'other', 'pairs', 'whole', 'unknown'
_NORM_FIX = 'For batch normalisation use towers.tower.batch_norm_layer with batch_norm=sync'


class Evidence(NamedTuple):
  """A step in which several towers differ from one.

  Attributes:
    step: its index.
    trial: the program of one tower.
    one: the outcome of one tower.
    noisy: its outcome with weights changed in their last bits.
    several: the outcome of several towers.
  """
  step: int
  trial: Trial
  one: Outcome
  noisy: Outcome
  several: Outcome


def find_cause(evidence: Evidence, *, is_rounding: bool = False) -> List[str]:
  """Returns a sentence on the first op whose values differ, or on the loss.

  Args:
    evidence: of the step.
    is_rounding: whether rounding may explain that losses and gradients differ; then no sentence is
      about them.
  """
  kinds: Dict[str, str] = {}
  for name in evidence.one.activations:
    kinds[name] = _find_kind(evidence, name)
    if kinds[name] == _OTHER:
      return [_explain_values(evidence, kinds, name)]
  return [] if is_rounding else [_explain_loss(evidence, kinds)]


def find_state_causes(trial: Trial, rows: Sequence[Difference]) -> List[str]:
  """Returns a sentence for each untrained variable that differs."""
  trained = {variable.op.name for variable in trial.towers[0].variables}
  return [_explain_state(trial, row.name) for row in rows
          if not row.agrees and row.name in trial.variables and row.name not in trained]


def _find_kind(evidence, name):
  """Returns the kind of an activation, from its shapes and values."""
  whole, shares, counts = _pick(evidence, name)
  if not shares:
    return _UNKNOWN
  axes = find_axes(shares, whole)
  if not whole.ndim or (not axes and len(counts) > 1):
    return _WHOLE
  if len(axes) == 2 and all(share.shape[axis] * sum(counts) == whole.shape[axis] * count
                            for axis in axes for share, count in zip(shares, counts)):
    return _PAIRS
  if not np.issubdtype(whole.dtype, np.floating):
    return _UNKNOWN  # It may be an example's index in the batch, which rightly differs.
  orders = list(join_shares(shares, counts, whole))
  if not orders:
    return _UNKNOWN
  noisy = evidence.noisy.activations[name][0]
  verdicts = [compare(name, order, whole, noisy).verdict for order in orders]
  return _SAME if AGREES in verdicts else _UNKNOWN if DROWNS in verdicts else _OTHER


def _pick(evidence, name):
  """Returns one tower's value, and the values and counts of the towers with examples."""
  whole = np.asarray(evidence.one.activations[name][0])
  shares = [np.asarray(share) for share in evidence.several.activations.get(name, [])]
  counts = evidence.several.counts[evidence.step]
  pairs = [(share, count) for share, count in zip(shares, counts) if count]
  return whole, [share for share, _ in pairs], [count for _, count in pairs]


def _explain_values(evidence, kinds, first):
  trial = evidence.trial
  op = trial.find_op(first)
  between = _find_between(trial, kinds, op)
  intro = ('The first values that differ for the same examples are those of '
           f'{_format(trial, op)}: ')
  pairs = next((other for other in between if _has(trial, other.outputs, kinds, _PAIRS)), None)
  if pairs is not None:
    return intro + (
        f'{_format(trial, pairs)}, has a value for each pair of examples, [batch, batch], as '
        'in-batch negatives and attention over the batch do, and a tower has only pairs of its '
        'own examples. Larger batches make the towers more alike; nothing makes them one.')
  sums = next((other for other in between if _sums_up(trial, other, kinds)), None)
  if sums is not None or op.type.startswith('FusedBatchNorm'):
    subject = 'it' if sums in (None, op) else _format(trial, sums) + ','
    return intro + (f'{subject} takes batch statistics, and a tower has only its own examples. '
                    f'{_NORM_FIX}; leave out any other sum over the batch.')
  return intro + 'it, or an input of it, depends on the other examples of the batch.'


def _explain_loss(evidence, kinds):
  """Returns a sentence on the loss, if each example has the same values."""
  trial = evidence.trial
  losses = [outcome.losses[evidence.step]
            for outcome in (evidence.several, evidence.one, evidence.noisy)]
  if compare('loss', *losses).agrees:
    return 'The loss agrees and its gradient does not: the gradient of an op depends on the batch.'
  for op in _find_between(trial, kinds, trial.towers[0].sums['loss'].op):
    if op.type in _DIVISIONS and _counts_otherwise(evidence, op.inputs[1], by_size=False):
      return _explain_mean(trial, op, 'divides by')
    if op.type == 'Mean' and _counts_otherwise(evidence, op.inputs[0], by_size=True):
      return _explain_mean(trial, op, 'takes the mean of')
  return ('The model gives each example the same values, and adds them up in another way: return '
          'one loss per example, [batch], or their mean.')


def _explain_mean(trial, op, does):
  return (f'The model gives each example the same values, and {_format(trial, op)}, {does} a '
          'number that is not in proportion to the examples, such as the tokens of a batch: then '
          'the mean of the towers\' means is not that of one tower. Return towers.Weighted(losses, '
          'weights) with a loss and a weight for each token: the sum of all weights of the global '
          'batch divides. Or return one loss per example, [batch].')


def _explain_state(trial, name):
  """Returns a sentence on a variable that the model itself changes."""
  changes = [op for op in trial.variables[name].handle.consumers()
             if trial.owns(op) and ('Assign' in op.type or 'Scatter' in op.type)]
  if not changes:
    return f'The variable {name} differs, and no op of the model seems to change it.'
  return (f'Only the first tower changes the variable {name}{find_line(changes[0])}, by its own '
          f'examples: of all UPDATE_OPS only its own run. {_NORM_FIX}, or with mean for moving '
          'averages alone.')


def _find_between(trial, kinds, last) -> List[Operation]:
  """Returns the ops between the values that are the same for each example and `last`.

  They are in the graph's order.
  """
  between: Set[Operation] = set()
  pending = [last]
  while pending:
    op = pending.pop()
    if op not in between:
      between.add(op)
      pending.extend(tensor.op for tensor in op.inputs if trial.owns(tensor.op)
                     and kinds.get(trial.shorten(tensor.name)) != _SAME)
  return [op for op in trial.graph.get_operations() if op in between]


def _sums_up(trial, op, kinds):
  """Returns whether an op makes a value of the whole batch from those of examples."""
  return (op.type not in _SHAPES and _has(trial, op.inputs, kinds, _SAME) and
          _has(trial, [tensor for tensor in op.outputs if tensor.dtype.is_floating], kinds, _WHOLE))


def _has(trial, tensors, kinds, kind):
  return any(trial.owns(tensor.op) and kinds.get(trial.shorten(tensor.name)) == kind
             for tensor in tensors)


def _counts_otherwise(evidence, tensor, *, by_size):
  """Returns whether a number, or a tensor's size, is not in proportion to the examples.

  A number that is the same in every batch does not count.
  """
  trial = evidence.trial
  name = trial.shorten(tensor.name)
  if not trial.owns(tensor.op) or name not in evidence.one.activations:
    return False
  whole, shares, counts = _pick(evidence, name)
  if not by_size and any(value.size != 1 for value in [whole] + shares):
    return False
  total, *numbers = [float(value.size if by_size else value.reshape(()))
                     for value in [whole] + shares]
  is_fixed = all(number == total for number in numbers)
  return not is_fixed and not np.allclose(np.multiply(numbers, sum(counts)),
                                          np.multiply(total, counts))


def _format(trial, op):
  return trial.shorten(op.name) + find_line(op)
