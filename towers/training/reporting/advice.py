"""Advice: what may help a run whose towers waited for input."""

from typing import Any

from towers.base.cores import count_cores
from towers.graph.walk import find_needed, walk_called
from towers.input.epoch_dataset import OWN_FUNCTION

# Below this share of the time, faster input gains little.
_ADVISE_FROM = 0.1


def advise(waited: float, program: Any, data: str = '') -> str:
  """Returns what may help towers that waited for a share of their time, or '' if they hardly did.

  `data` is the name of the data set, where it has one.
  """
  if waited < _ADVISE_FROM:
    return ''
  cores, examples = count_cores(), program.train_examples
  threads = program.given.input_threads or cores
  ways = []
  if program.given.staging_depth == 0:
    ways.append('staging_depth=1 makes the next batch while the towers compute')
  if examples.augmentations and examples.read and examples.arrays and not examples.unequal:
    ways.append('of_batches=True of towers.augmented, whose function then changes whole batches')
  if not program.feed.inputs.needs_threads:
    if 2 * program.plan.batch_size <= examples.num_examples:
      ways.append('a larger batch_size, since taking rows out of arrays is slow beside such short '
                  'steps')
  elif _reads_by_python(program):
    ways.append('less work in Python, which one thread does, whatever input_threads says: let a '
                'generator yield what is small, as names of files, and .map TensorFlow functions '
                'over it, or keep arrays for towers.from_arrays')
  elif threads < cores:
    ways.append(f'input_threads={cores} uses all cores, where it is {threads}')
  else:
    ways.append(f'all {cores} cores decode already: input_threads={2 * threads} helps only if '
                'disks are slow, otherwise more cores or smaller images do')
  if data == 'images':
    ways.append('python -m towers convert makes few large files of many small ones')
  if data:  # Of a command line.
    ways.append('--input_only measures the input alone, in every mode')
  return (f'the towers waited for input {waited:.0%} of the time.'
          + (f" What may help: {'; '.join(ways)}." if ways else ''))


def _reads_by_python(program):
  """Whether functions of Python make the elements of the training split, as a generator does."""
  if program.train_examples.elements is None:  # Then those are of towers.
    return False
  ops = find_needed([program.feed.inputs.initializer])
  return any('PyFunc' in node.op and not node.name.startswith(OWN_FUNCTION)
             for op in ops for _, node in walk_called(op.graph, op.node_def))
