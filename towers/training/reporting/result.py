"""The result of a run: as `--result_file` holds it, a line to read, and what may help its input."""

import json
from typing import Any, Dict, Mapping

import numpy as np

from towers.base.cores import count_cores
from towers.base.files import write_whole
from towers.base.reason import find_reason, is_about_room
from towers.graph.walk import find_needed, walk_called
from towers.process.run_error import RunError

# Below this share of the time, faster input gains little.
_ADVISE_FROM = 0.1


def build_result(steps: Any, progress: Any, end: Any, *, trained: Dict[str, float],
                 examples_seen: int, started: float) -> Dict[str, Any]:
  """Returns what `--result_file` holds, by name.

  Args:
    steps, progress, end: the `Steps`, `Progress` and `LoopEnd` of the run.
    trained: means of the training steps since the validation before the last, by name.
    examples_seen: in all steps, those before a resume included.
    started: time.monotonic() when the process began.
  """
  from towers.tensorflow_v1 import count_compiled, tf
  program = steps.program
  all_reduce = program.gradients.all_reduce
  return dict(
      global_step=int(end.step), examples_seen=examples_seen, num_towers=len(program.towers),
      global_batch_size=program.plan.batch_size, train_loss=end.train_loss,
      **{f'train_{name}': mean for name, mean in trained.items() if name != 'loss'},
      **{f'validation_{name}': value.tolist() if isinstance(value, np.ndarray) else value
         for name, value in {'loss': None, 'accuracy': None, **end.validation}.items()},
      validation_examples=end.validation_examples, stopped=end.stopped,
      examples_per_second=progress.examples_per_second, input_wait=progress.input_wait,
      first_losses=steps.metrics.first_losses, all_reduce_bytes=all_reduce and all_reduce.num_bytes,
      setup_seconds=progress.first_step_at and progress.first_step_at - started,
      xla_compilations=count_compiled(), tensorflow_version=tf.__version__)


def write_result(path: str, result: Dict[str, Any]) -> None:
  """Writes one JSON object, atomically; a RunError holds the result where that cannot be."""
  text = json.dumps(result, indent=2)
  try:
    write_whole(path, f'{text}\n'.encode())
  except OSError as error:
    reason = find_reason(error)
    advice = 'Make room, and start' if is_about_room(reason) else 'Start'
    raise RunError(f'result_file={path} cannot be written: {reason}. The run is done, with '
                   f'this result:\n{text}\n{advice} the same command again to have it in a file: '
                   'with a checkpoint_dir it repeats no step.') from None


def format_result(result: Dict[str, Any], seconds: float) -> str:
  """Returns the last line of a run that took so long."""
  parts = [f"done: {result['global_step']:,} steps, {result['examples_seen']:,} examples, "
           f"{seconds:.1f} s"]
  if result['validation_examples']:
    parts += [f"validation {name[len('validation_'):]} {value:.4f}"
              for name, value in result.items()
              if name.startswith('validation_') and name != 'validation_examples'
              and isinstance(value, float)]
  if result['examples_per_second'] is not None:
    parts.append(f"{result['examples_per_second']:,.0f} examples/s")
  if result['input_wait'] is not None:
    parts.append(f"waited for input {result['input_wait']:.0%} of the time")
  return ', '.join(parts)


def _reads_by_python(program):
  """Whether functions of Python make the elements of the training split, as a generator does."""
  if program.train_examples.elements is None:  # Then those are of towers.
    return False
  ops = find_needed([program.feed.inputs.initializer])
  return any('PyFunc' in node.op for op in ops for _, node in walk_called(op.graph, op.node_def))


def advise(waited: float, settings: Mapping[str, Any], program: Any) -> str:
  """Returns what may help towers that waited for a share of their time, or '' if they hardly did.

  `settings` are those of the run and its program.
  """
  if waited < _ADVISE_FROM:
    return ''
  cores, examples = count_cores(), program.train_examples
  threads = settings['input_threads'] or cores
  ways = []
  if settings['staging_depth'] == 0:
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
  if settings.get('data') == 'images':
    ways.append('python -m towers.data.convert makes few large files of many small ones')
  ways.append('--input_only measures the input alone, in every mode')
  return f"the towers waited for input {waited:.0%} of the time. What may help: {'; '.join(ways)}."
