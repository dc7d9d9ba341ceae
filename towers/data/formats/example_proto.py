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
_SIZES = {_FIXED64: 8, _FIXED32: 4}
# The keys of fields 1 and 2 where they are bytes.
_FIRST_BYTES, _SECOND_BYTES = 1 << 3 | _BYTES, 2 << 3 | _BYTES


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
  for key, begin, end in _fields(content, 0, len(content)):
    if key == _FIRST_BYTES:
      for entry_key, entry_begin, entry_end in _fields(content, begin, end):
        if entry_key == _FIRST_BYTES:
          name, feature_begin, feature_end = _split_entry(content, entry_begin, entry_end)
          if only is None or name in only:
            features[name] = _decode_feature(content, feature_begin, feature_end)
  return features


def _split_entry(content, begin, end):
  """Returns the name in an entry of the map, and where its feature begins and ends."""
  name, feature_begin, feature_end = '', end, end
  for key, field_begin, field_end in _fields(content, begin, end):
    if key == _FIRST_BYTES:
      name = content[field_begin:field_end].decode('utf-8')
    elif key == _SECOND_BYTES:
      feature_begin, feature_end = field_begin, field_end
  return name, feature_begin, feature_end


def _decode_feature(content, begin, end):
  values: List[Any] = []
  for key, list_begin, list_end in _fields(content, begin, end):
    if key & 7 == _BYTES:
      values = _decode_list(key >> 3, content, list_begin, list_end)
  return values


def _decode_list(list_number, content, begin, end):
  values: List[Any] = []
  for key, value, value_end in _fields(content, begin, end):
    number, kind = key >> 3, key & 7
    if number != 1:
      continue
    if list_number == 1 and kind == _BYTES:
      values.append(content[value:value_end])
    elif list_number == 2 and kind in (_BYTES, _FIXED32):
      floats = content[value:value_end]
      if len(floats) % 4:
        raise ValueError('a list of floats has %d bytes' % len(floats))
      values += struct.unpack('<%df' % (len(floats) // 4), floats)
    elif list_number == 3 and kind == _VARINT:
      values.append(_signed(value))
    elif list_number == 3 and kind == _BYTES:
      while value < value_end:
        number, value = _read_varint(content, value, value_end)
        values.append(_signed(number))
  return values


def _fields(content: bytes, position: int, end: int) -> List[Tuple[int, int, int]]:
  """Returns the fields of the message between two positions: (key, where its bytes begin, where they end).

  An int that is a varint stands in place of its beginning. Nothing is cut out, so that an image is copied once.
  """
  fields = []
  while position < end:
    key = content[position]
    if key < 128:  # Most numbers are this short; a call would take longer than all of the rest.
      position += 1
    else:
      key, position = _read_varint(content, position, end)
    kind = key & 7
    if kind == _BYTES:
      if position < end and content[position] < 128:
        value = position + 1
        position = value + content[position]
      else:
        size, value = _read_varint(content, position, end)
        position = value + size
    elif kind == _VARINT:
      value, position = _read_varint(content, position, end)
    elif kind in _SIZES:
      value = position
      position += _SIZES[kind]
    else:
      raise ValueError('there is no wire type %d' % kind)
    if position > end:
      raise ValueError('a field of %d bytes ends after %d' % (position - value, end - value))
    fields.append((key, value, position))
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


def _read_varint(content: bytes, position: int, end: int) -> Tuple[int, int]:
  value = 0
  for shift in range(0, 70, 7):
    if position >= end:
      raise ValueError('a number ends too early')
    value |= (content[position] & 127) << shift
    position += 1
    if content[position - 1] < 128:
      return value, position
  raise ValueError('a number is longer than ten bytes')


def _signed(value: int) -> int:
  value &= 2 ** 64 - 1
  return value - 2 ** 64 if value >= 2 ** 63 else value
