"""Repeats: whether a program gives the same bits when it runs twice from the same seed.

A program that does not repeat cannot be compared with anything. The check names the first value
that differs, in the order of the data flow.
"""

from typing import Optional, Sequence, Tuple

from towers.checks.trial import END, GRADIENT, INPUT, LOSS, OP, START, Step, Trial
from towers.coupling.comparison import same_bits
from towers.graph.source_lines import find_line

_NAMES = {LOSS: 'the loss of step {}', GRADIENT: 'the gradient of the variable {1} in step {0}',
          END: 'the variable {1} after step {0}', START: 'the initial value of the variable {1}'}
_SUM = 'A kernel adds up in any order: on GPUs, choose deterministic ones (--deterministic).'
_ADVICE = {
    INPUT: 'Draw random numbers of the input in towers.augmented(examples, function), which seeds '
           'them; give an order of its own, as of a generator or an interleave, a seed.',
    START: 'Let a TensorFlow initializer draw it, which towers seeds by the variable\'s name; '
           'numpy draws another value each time.',
    OP: 'Draw random numbers in the model by a TensorFlow op, which towers seeds by its name; '
        'numpy draws other values each time, while the graph is built or in tf.py_func.',
    LOSS: _SUM,
    GRADIENT: _SUM,
    END: 'The model must compute what it assigns to it from batch, variables and seed.'}


def find_change(first: Trial, second: Trial, left: Sequence[Step], right: Sequence[Step]
                ) -> Optional[Tuple[str, str]]:
  """Returns the first value that differs between two runs of one tower, and a sentence with the
  fix; or None. Left and right are the steps of two builds.
  """
  differing = (index for index, pair in enumerate(zip(left, right)) if _find_first(*pair))
  index = next(differing, None)
  if index is None:
    return None
  # Another run of the same graphs may differ elsewhere, or nowhere.
  ours, theirs = (trial.run(index + 1, watched=index)[index] for trial in (first, second))
  key = _find_first(ours, theirs) or _find_first(left[index], right[index])
  kind, name = key
  if kind == START and (key not in ours or key not in theirs):
    return (f'the variable {name}, which one of two builds alone has',
            'A model must give its variables the same names in each call.')
  if kind == INPUT:
    [value, *_] = ours[key]
    what = (f'the input batch: tensor {name} ({value.dtype}, {list(value.shape)}) of step '
            f'{index + 1}')
  elif kind == OP:
    name = name.split(':')[0]
    op = first.program.graph.get_operation_by_name(first.program.towers[0].scope + name)
    what = f'the op {name} ({op.type}{find_line(op)}) in step {index + 1}'
  else:
    what = _NAMES[kind].format(index + 1, name)
  return what, _ADVICE[kind]


def _find_first(ours, theirs):
  """Returns the first key whose bits differ, or that of a variable that only one side has."""
  alone = [key for key in ours.keys() ^ theirs.keys() if key[0] == START]
  different = (key for key in ours if key in theirs and not same_bits(ours[key], theirs[key]))
  return min(alone) if alone else next(different, None)
