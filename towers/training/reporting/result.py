"""The result of a run, as a line for people and as JSON for programs."""

import json
from typing import Any, Dict

from towers.base.whole_file import write_whole


def write_result(path: str, result: Dict[str, Any]) -> None:
  """Writes one JSON object, whole or not at all."""
  write_whole(path, (json.dumps(result, indent=2) + '\n').encode())


def format_result(result: Dict[str, Any], seconds: float) -> str:
  """Returns the last line of a run.

  Args:
    result: the JSON object's values.
    seconds: that the whole run took.
  """
  parts = ['done: {:,} steps, {:,} examples, {:.1f} s'.format(result['global_step'], result['examples_seen'], seconds)]
  if result['validation_examples']:
    parts += ['validation %s %.4f' % (name[len('validation_'):], value) for name, value in result.items()
              if name.startswith('validation_') and name != 'validation_examples']
  if result['examples_per_second'] is not None:
    parts.append('{:,.0f} examples/s'.format(result['examples_per_second']))
  if result['input_wait'] is not None:
    parts.append('waited for input {:.0%} of the time'.format(result['input_wait']))
  return ', '.join(parts)
