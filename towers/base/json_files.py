"""JSON that somebody else may have written: read with a bound on its size and a schema.

A small file beside checkpoints or data carries a checksum of its other members, in the order of
their names, so it holds however the text is laid out. A file without one, by hand or of an earlier
version, passes. An unknown member does not: one byte may have changed the checksum's own name.

A schema says of what kind each member is:

  int      a count: whole, from 0 to 2**63 - 1          [kind]              a list of these
  float    a number, NaN and infinity included          (kind, kind)        one of these
  str      a text                                       {'step': int}       an object, with these
  None     null                                         {…, str: float}     … and any other names
  object   anything
"""

import json
import zlib
from typing import Any, Callable, Dict, Mapping, Optional, Union

from towers.base.files import open_regular, write_whole
from towers.base.output import write_line

_CHECKSUM = 'checksum'
_MOST_BYTES = 1 << 26
_MOST = 1 << 63
_LONGEST = 60


def parse_json(text: Union[str, bytes]) -> Any:
  """Returns the value of a JSON text; raises a ValueError, also for NaN and for deep nesting."""
  try:
    return json.loads(text if isinstance(text, str) else text.decode(),
                      parse_constant=_refuse_constant)
  except RecursionError:
    raise ValueError('it is nested too deeply') from None


def _refuse_constant(name):
  raise ValueError(f'{name} is no number of JSON')


def seal(content: Mapping[str, Any], *, indent: Optional[int] = None) -> str:
  """Returns the text of a JSON object and its checksum."""
  return json.dumps({_CHECKSUM: _sum(content), **content}, indent=indent)


def unseal(text: str, schema: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns the object of a text of `seal`; a member that is missing counts as null.

  Raises:
    ValueError: the text is damaged, or not of that schema.
  """
  try:
    content = json.loads(text)
    if not isinstance(content, dict):
      raise ValueError('it is no JSON object')
    stated = content.pop(_CHECKSUM, None)
    if stated is not None and stated != _sum(content):
      raise ValueError('its checksum is wrong')
  except RecursionError:
    raise ValueError('it is nested too deeply') from None
  for name in {**schema, **content}:
    if name not in schema:
      raise ValueError(f'it has an unknown member {name[:_LONGEST]!r}')
    if not _is_of(content.get(name), schema[name]):
      shown = json.dumps(content[name])[:_LONGEST] if name in content else 'missing'
      raise ValueError(f'its {name} is {shown}')
  return content


def write_sealed(path: str, content: Mapping[str, Any], *, indent: Optional[int] = None) -> None:
  """Writes a JSON object with its checksum, whole or not at all; raises OSError."""
  write_whole(path, (seal(content, indent=indent) + '\n').encode())


def read_sealed(path: str, schema: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns what `unseal` does of a file of `write_sealed`; raises OSError or ValueError too."""
  return unseal(read_text(path), schema)


def recall(path: str, schema: Mapping[str, Any], otherwise: str,
           warn: Callable[[str], None] = write_line) -> Optional[Dict[str, Any]]:
  """Returns a sealed file's object, or None; of a damaged one it warns (`otherwise`)."""
  try:
    return read_sealed(path, schema)
  except FileNotFoundError:
    pass
  except (OSError, ValueError) as error:
    warn(f'WARNING: {path} cannot be read ({error}): {otherwise}')
  return None


def read_text(path: str) -> str:
  """Returns the text of a file; raises as `read_sealed` does."""
  with open_regular(path) as file:
    content = file.read(_MOST_BYTES + 1)
  if len(content) > _MOST_BYTES:
    raise ValueError(f'it has more than {_MOST_BYTES >> 20} MiB')
  return content.decode('utf-8')


def _is_of(value, kind):
  """Whether a value is of a schema's kind; as deep as the schema, however deep the value is."""
  if isinstance(kind, tuple):
    return any(_is_of(value, one) for one in kind)
  if isinstance(kind, list):
    return isinstance(value, list) and all(_is_of(one, kind[0]) for one in value)
  if isinstance(kind, dict):
    return (isinstance(value, dict) and all(name in value for name in kind if name is not str) and
            all(_is_of(one, kind.get(name, kind.get(str, ()))) for name, one in value.items()))
  if kind is int:
    return type(value) is int and 0 <= value < _MOST
  if kind is float:
    return type(value) is float or type(value) is int and abs(value) < _MOST
  return value is None if kind is None else isinstance(value, kind)


def _sum(content):
  return zlib.crc32(json.dumps(content, sort_keys=True).encode())
