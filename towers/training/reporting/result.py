"""The result of a run: as `--result_file` holds it, and a line to read."""

import json
from typing import Any, Dict

import numpy as np

from towers.base.files import write_whole
from towers.base.later import compiled_cache, tf
from towers.base.reason import find_reason, is_about_room
from towers.process.run_error import RunError


def build_result(run: Any, progress: Any, loop: Any, *, trained: Dict[str, float],
                 started: float) -> Dict[str, Any]:
  """Returns what `--result_file` holds, by name, of a `Run` whose `Loop` has ended.

  `trained` are the means of the training steps since the validation before the last, and the
  process has `started` by time.monotonic().
  """
  session, program = run.session, run.program
  all_reduce, first_step_at = program.gradients.all_reduce, progress.first_step_at
  return dict(
      global_step=run.step, examples_seen=session.examples_seen,
      num_towers=len(program.towers), global_batch_size=program.plan.batch_size,
      train_loss=None if loop.loss is None else float(loop.loss),
      **{f'train_{name}': mean for name, mean in trained.items() if name != 'loss'},
      **{f'validation_{name}': value.tolist() if isinstance(value, np.ndarray) else value
         for name, value in {'loss': None, **run.validation}.items()},
      validation_examples=run.validation_examples, best=run.best, stopped=loop.stopped,
      examples_per_second=progress.examples_per_second, input_wait=progress.input_wait,
      first_losses=session.training_metrics.first_losses,
      all_reduce_bytes=None if all_reduce is None else all_reduce.num_bytes,
      setup_seconds=None if first_step_at is None else first_step_at - started,
      xla_compilations=compiled_cache.count_compiled(), tensorflow_version=tf.__version__)


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
