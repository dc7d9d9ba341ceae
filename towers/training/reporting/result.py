"""The result of a run: a line to read, and JSON for programs."""

import json
from typing import TYPE_CHECKING, Any, Dict

from towers.base.files import write_whole
from towers.base.reason import find_reason, is_about_room
from towers.training.faults.run_error import RunError

if TYPE_CHECKING:  # The command line answers --help and --doctor without TensorFlow.
  from towers.training.reporting.progress import Progress
  from towers.training.stepping.steps import Steps
  from towers.training_graph import TrainingGraph


def build_result(program: 'TrainingGraph', steps: 'Steps', progress: 'Progress', end: Any, *,
                 examples_seen: int, started: float) -> Dict[str, Any]:
  """Returns what `--result_file` holds, by name.

  Args:
    program: that has trained.
    steps: of its session.
    progress: of the run.
    end: of the loop, a `LoopEnd`.
    examples_seen: in all steps, those before a resume included.
    started: time.monotonic() when the process began.
  """
  from tensorflow_v1 import tf
  all_reduce = program.gradients.all_reduce
  return dict(
      global_step=int(end.step), examples_seen=examples_seen, num_towers=len(program.towers),
      global_batch_size=program.plan.batch_size, train_loss=end.train_loss,
      **{f'validation_{name}': end.validation.get(name)
         for name in dict.fromkeys(['loss', 'accuracy', *end.validation])},
      validation_examples=end.validation_examples,
      examples_per_second=progress.examples_per_second, input_wait=progress.input_wait,
      first_losses=steps.first_losses, all_reduce_bytes=all_reduce and all_reduce.num_bytes,
      setup_seconds=progress.first_step_at and progress.first_step_at - started,
      tensorflow_version=tf.__version__)


def write_result(path: str, result: Dict[str, Any]) -> None:
  """Writes one JSON object, atomically.

  Raises:
    RunError: the file cannot be written; the message holds the result.
  """
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
  """Returns the last line of a run.

  Args:
    result: of the run.
    seconds: of the whole run.
  """
  parts = [f"done: {result['global_step']:,} steps, {result['examples_seen']:,} examples, "
           f"{seconds:.1f} s"]
  if result['validation_examples']:
    parts += [f"validation {name[len('validation_'):]} {value:.4f}"
              for name, value in result.items()
              if name.startswith('validation_') and name != 'validation_examples'
              and value is not None]
  if result['examples_per_second'] is not None:
    parts.append(f"{result['examples_per_second']:,.0f} examples/s")
  if result['input_wait'] is not None:
    parts.append(f"waited for input {result['input_wait']:.0%} of the time")
  return ', '.join(parts)
