"""Labelled example: the record of ImageNet's TFRecords, an encoded image and its label.

  image/encoded        bytes of a JPEG or PNG, a feature of a tf.train.Example
  image/class/label    an int, which counts from 1 in ImageNet, where 0 is the background

Other features, such as bounding boxes and names, are ignored.

  Example { Features features = 1 }             Feature { BytesList bytes_list = 1 | FloatList = 2 |
  Features { map<string, Feature> feature = 1 }           Int64List int64_list = 3 }

TensorFlow's class decodes: its parsing op crashes the process on some damaged Examples on 2.21 (a
length of more than 2^31 bytes is enough). It does not encode, since its import takes seconds and
`towers_data.convert` forks, which is safe without TensorFlow alone.
"""

from typing import Any, List, Mapping, Sequence, Tuple, Union

from towers.data.bad_records import BadRecordError
from towers.data.formats.example import read_example
from towers.data.formats.tfrecord import Records
from towers_data.encoded_images import ImageSource

IMAGE_FEATURE, LABEL_FEATURE = 'image/encoded', 'image/class/label'
_FEATURES = (IMAGE_FEATURE, LABEL_FEATURE)
_BYTES = 2  # The wire type of whatever has a length.


def encode_labelled(image: bytes, label: int) -> bytes:
  """Returns a record."""
  return encode_example({IMAGE_FEATURE: image, LABEL_FEATURE: label})


def labelled_source(records: Records, *, num_classes: int, first_label: int,
                    names: Tuple[str, str] = _FEATURES) -> ImageSource:
  """Returns the images of records, and labels, as `decode_labelled` does of each."""
  def decode(record):
    try:
      if isinstance(record, BadRecordError):
        raise record
      return decode_labelled(record, num_classes=num_classes, first_label=first_label, names=names)
    except BadRecordError as error:
      return error

  return ImageSource(len(records), lambda indices: [*map(decode, records.read(indices))],
                     records.place)


def decode_labelled(record: bytes, *, num_classes: int, first_label: int,
                    names: Tuple[str, str] = _FEATURES) -> Tuple[bytes, int]:
  """Returns the image of a serialized Example, and its label, 0 … num_classes - 1.

  `first_label` is that in the record which becomes 0, and `names` are those of the two features.

  Raises:
    BadRecordError: it is no Example, lacks a feature, or has a label out of range.
  """
  features = read_example(record).features.feature
  found: List[Any] = []
  for name, kind in zip(names, (bytes, int)):
    stored = features[name].WhichOneof('kind') if name in features else None
    values: Sequence[Any] = getattr(features[name], stored).value if stored else ()
    if len(values) != 1 or not isinstance(values[0], kind):
      times = f'{len(values)} times' + (f', of {type(values[0]).__name__}' if values else '')
      others = ', '.join(sorted(features)) or 'no others'
      raise BadRecordError(f'the feature {name} is needed once, of {kind.__name__}; it is there '
                           f'{times}, and there are {others}')
    found.append(values[0])
  image, label = found
  if not first_label <= label < first_label + num_classes:
    raise BadRecordError(f'the label {label} lies outside {first_label} to '
                         f'{first_label + num_classes - 1}, which first_label={first_label} and '
                         f'num_classes={num_classes} allow')
  return image, label - first_label


def encode_example(features: Mapping[str, Union[int, bytes]]) -> bytes:
  """Returns a serialized Example of single ints and byte strings; equal features, equal bytes."""
  entries = b''
  for name, value in sorted(features.items()):
    if isinstance(value, bytes):
      feature = _field(1, _field(1, value))
    else:
      feature = _field(3, _field(1, _varint(value & (2 ** 64 - 1))))
    entries += _field(1, _field(1, name.encode()) + _field(2, feature))
  return _field(1, entries)


def _field(number: int, content: bytes) -> bytes:
  return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
  encoded = bytearray()
  while value > 127:
    encoded.append(value & 127 | 128)
    value >>= 7
  encoded.append(value)
  return bytes(encoded)
