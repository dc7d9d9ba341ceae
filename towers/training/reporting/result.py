"""The result of a run: a line to read, and JSON for programs."""

import json
from typing import Any, Dict

from towers.base.files import write_whole
from towers.base.reason import find_reason, is_about_room
from towers.training.faults.run_error import RunError


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
