"""Figures of a benchmark as a JSON file,."""

import json
from typing import Any


def write_figures(path: str, content: Any) -> None:
  """Writes figures as JSON."""
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(content, file, indent=1)
    file.write('\n')
