"""Example proto: `tf.train.Example` as bytes and back, without TensorFlow.

TensorFlow's own parsing op is not used, since that of 2.21 crashes the process on some damaged Examples (a length of
more than 2^31 bytes is enough); this here says what is wrong with them instead. It takes some microseconds a record,
beside some milliseconds for a photo.

  encode_example({'image/encoded': jpeg_bytes, 'image/class/label': 7})
  decode_example(content, ['image/class/label'])      # {'image/class/label': [7]}

  Example { Features features = 1 }                     Feature { BytesList bytes_list = 1 | FloatList = 2 |
  Features { map<string, Feature> feature = 1 }                   Int64List int64_list = 3 }
"""

import struct
from typing import Any, Container, Dict, List, Mapping, Optional, Tuple, Union

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def encode_example(features: Mapping[str, Union[int, bytes]]) -> bytes:
  """Returns a serialized Example of single ints and byte strings, in sorted order: equal features give equal bytes."""
  entries = b''
  for name, value in sorted(features.items()):
    if isinstance(value, bytes):
      feature = _field(1, _field(1, value))
    else:
      feature = _field(3, _field(1, _varint(value & (2 ** 64 - 1))))
    entries += _field(1, _field(1, name.encode()) + _field(2, feature))
  return _field(1, entries)


def decode_example(content: bytes, only: Optional[Container[str]] = None) -> Dict[str, List[Any]]:
  """Returns the features of a serialized Example: lists of bytes, floats or ints.

  Args:
    content: the Example.
    only: the names that are asked for, or None for all; what others hold is not looked at.

  Raises:
    ValueError: these bytes are no Example.
  """
  features: Dict[str, List[Any]] = {}
  for number, kind, value in _fields(content):
    if (number, kind) == (1, _BYTES):
      for entry_number, entry_kind, entry in _fields(value):
        if (entry_number, entry_kind) == (1, _BYTES):
          name, feature = _split_entry(entry)
          if only is None or name in only:
            features[name] = _decode_feature(feature)
  return features


def _split_entry(entry):
  """Returns the name in an entry of the map, and its feature as bytes."""
  name, feature = '', b''
  for number, kind, value in _fields(entry):
    if (number, kind) == (1, _BYTES):
      name = value.decode('utf-8')
    elif (number, kind) == (2, _BYTES):
      feature = value
  return name, feature


def _decode_feature(feature):
  values: List[Any] = []
  for number, kind, content in _fields(feature):
    if kind == _BYTES:
      values = _decode_list(number, content)
  return values


def _decode_list(list_number, content):
  values: List[Any] = []
  for number, kind, value in _fields(content):
    if number != 1:
      continue
    if list_number == 1 and kind == _BYTES:
      values.append(value)
    elif list_number == 2 and kind in (_BYTES, _FIXED32):
      content = value if kind == _BYTES else struct.pack('<I', value)
      if len(content) % 4:
        raise ValueError('a list of floats has %d bytes' % len(content))
      values += struct.unpack('<%df' % (len(content) // 4), content)
    elif list_number == 3 and kind == _VARINT:
      values.append(_signed(value))
    elif list_number == 3 and kind == _BYTES:
      position = 0
      while position < len(value):
        number, position = _read_varint(value, position)
        values.append(_signed(number))
  return values


def _fields(content: bytes) -> List[Tuple[int, int, Any]]:
  """Returns (field number, wire type, value) of a message: an int, or bytes."""
  fields = []
  position = 0
  while position < len(content):
    key, position = _read_varint(content, position)
    kind = key & 7
    value: Any
    if kind == _VARINT:
      value, position = _read_varint(content, position)
    elif kind in (_FIXED64, _FIXED32, _BYTES):
      size = 8 if kind == _FIXED64 else 4
      if kind == _BYTES:
        size, position = _read_varint(content, position)
      value = content[position:position + size]
      position += size
      if len(value) < size:
        raise ValueError('a field of %d bytes ends after %d' % (size, len(value)))
      if kind != _BYTES:
        value = int.from_bytes(value, 'little')
    else:
      raise ValueError('there is no wire type %d' % kind)
    fields.append((key >> 3, kind, value))
  return fields


def _field(number: int, content: bytes) -> bytes:
  return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
  encoded = bytearray()
  while value > 127:
    encoded.append(value & 127 | 128)
    value >>= 7
  encoded.append(value)
  return bytes(encoded)


def _read_varint(content: bytes, position: int) -> Tuple[int, int]:
  if position < len(content) and content[position] < 128:  # Most of them are this short.
    return content[position], position + 1
  value = 0
  for shift in range(0, 70, 7):
    if position >= len(content):
      raise ValueError('a number ends too early')
    value |= (content[position] & 127) << shift
    position += 1
    if content[position - 1] < 128:
      return value, position
  raise ValueError('a number is longer than ten bytes')


def _signed(value: int) -> int:
  value &= 2 ** 64 - 1
  return value - 2 ** 64 if value >= 2 ** 63 else value
