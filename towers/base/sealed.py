"""Sealed files: small files of JSON with a checksum, so that damage never passes for data.

  {"checksum": 2846305141, "validations": […], "rollbacks": […]}

The checksum is that of the other members, in the order of their names, so it holds however the text
is laid out. A file without one, by hand or of an earlier version, passes. An unknown member does
not: one byte may have changed the checksum's own name.
"""

import json
import zlib
from typing import Any, Dict, Optional, Sequence

from towers.base.regular_file import open_regular
from towers.base.whole_file import write_whole

_CHECKSUM = 'checksum'


def seal(content: Dict[str, Any], *, indent: Optional[int] = None) -> str:
  """Returns the text of a JSON object and its checksum."""
  return json.dumps({_CHECKSUM: _sum(content), **content}, indent=indent)


def unseal(text: str, members: Sequence[str]) -> Dict[str, Any]:
  """Returns the object of a text of `seal`, without the checksum.

  Args:
    text: of JSON.
    members: the names that the object may have.

  Raises:
    ValueError: the text is damaged, or no JSON object.
  """
  try:
    content = json.loads(text)
    if not isinstance(content, dict):
      raise ValueError('it is no JSON object')
    stated = content.pop(_CHECKSUM, None)
    if stated is not None and stated != _sum(content):
      raise ValueError('its checksum is wrong')
    if not set(content) <= set(members):
      raise ValueError(f'it has an unknown member {min(set(content) - set(members))!r}')
  except RecursionError:
    raise ValueError('it is nested too deeply') from None
  return content


def write_sealed(path: str, content: Dict[str, Any], *, indent: Optional[int] = None) -> None:
  """Writes a JSON object with its checksum, whole or not at all.

  Raises:
    OSError: and leaves an existing file as it was.
  """
  write_whole(path, (seal(content, indent=indent) + '\n').encode())


def read_sealed(path: str, members: Sequence[str]) -> Dict[str, Any]:
  """Returns the object of a file of `write_sealed`; `members` as in `unseal`.

  Raises:
    OSError: the file cannot be read, or is no regular file.
    ValueError: it is damaged.
  """
  with open_regular(path) as file:
    return unseal(file.read().decode('utf-8'), members)


def _sum(content):
  return zlib.crc32(json.dumps(content, sort_keys=True).encode())
