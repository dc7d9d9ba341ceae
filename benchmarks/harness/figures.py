"""Figures of a benchmark as a JSON file, from which tables and pictures can be made again."""

import json
from typing import Any


def write_figures(path: str, content: Any) -> None:
  """Writes figures as JSON."""
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(content, file, indent=1)
    file.write('\n')


def read_figures(path: str) -> Any:
  """Returns the content of a file that `write_figures` has written."""
  with open(path, encoding='utf-8') as file:
    return json.load(file)
