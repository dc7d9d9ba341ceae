"""Strict JSON: any text that is no plain JSON is a ValueError.

`json.loads` also takes NaN and Infinity, raises RecursionError for deep nesting, and UnicodeError
only for some bytes.
"""

import json
from typing import Any, Union


def parse_json(text: Union[str, bytes]) -> Any:
  """Returns the value of a JSON text, of which bytes are UTF-8.

  Raises:
    ValueError: the text is no JSON, has NaN or Infinity, or is nested too deeply to read.
  """
  try:
    return json.loads(text if isinstance(text, str) else text.decode(),
                      parse_constant=_refuse_constant)
  except RecursionError:
    raise ValueError('it is nested too deeply') from None


def _refuse_constant(name: str) -> None:
  raise ValueError(f'{name} is no number of JSON')
