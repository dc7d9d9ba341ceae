"""The result of a run, as a line for people and as JSON for programs."""

import json
import os
from typing import Any, Dict, Optional

from data.whole_file import write_whole
from usage_error import UsageError


def check_result_file(path: Optional[str]) -> None:
  """Raises a UsageError now if a result could not be written to `path` at the end."""
  if path is None:
    return
  folder = os.path.dirname(os.path.abspath(path))
  if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
    raise UsageError('result_file=%s cannot be written: %s. Choose a file in a folder that exists and can be written.'
                     % (path, 'it is a folder' if os.path.isdir(path) else 'there is no folder %s that can be written'
                        % folder))


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
