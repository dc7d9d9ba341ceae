"""Tfds features: the schema that tensorflow-datasets keeps beside its records, as `features.json`.

  {"pythonClassName": "….features_dict.FeaturesDict", "featuresDict": {"features": {
    "image": {"pythonClassName": "….image_feature.Image",
              "image": {"shape": {"dimensions": ["28", "28", "1"]}, "dtype": "uint8"}},
    "label": {"pythonClassName": "….class_label_feature.ClassLabel",
              "classLabel": {"numClasses": "10"}}}}}

Older versions wrote `{"type": …, "content": …}` instead, with snake_case names. A record is a
`tf.train.Example` whose features are named by the paths to them, as `image` or `meta/id`.

Format: `feature.proto`, `example_serializer.py` and `features/` of tensorflow-datasets.
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

from towers.base.json_files import parse_json, read_text
from towers.base.later import tf
from towers.base.usage_error import UsageError
from towers_data.encoded_images import is_png

# What a tensor is stored as in an Example, by what it is; 'bytes' and 'zlib' store all as strings.
_INTS = ('bool', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64')
_FLOATS = ('float16', 'float32', 'float64')
_STRINGS = ('string', 'object')
# What decode_raw lacks on 1.14, and what has the same bits.
_RAW = {'bool': 'uint8', 'uint32': 'int32', 'uint64': 'int64'}
_CHANNELS = (1, 3)
_OTHERWISE = ('Let tensorflow-datasets read it: towers.from_dataset(lambda: tfds.load(…)), or give '
              'towers.from_tfrecords a function that parses it.')


class Feature(NamedTuple):
  """One tensor of an example.

  A size is None where it differs between examples: those of an image, or the first one of a Tensor.
  """
  kind: str  # 'Image', 'ClassLabel', 'Text' or 'Tensor', as a Sequence of others than images is.
  path: str  # To it in the example, and its name in a record.
  dtype: str  # As numpy names it, or 'string'.
  shape: Tuple[Optional[int], ...] = ()
  encoding: str = 'none'  # Of a Tensor: 'none', 'bytes' or 'zlib'.
  num_classes: int = 0  # Of a ClassLabel.


# By name, as the examples are nested.
Features = Dict[str, Union[Feature, Any]]


def read_features(path: str) -> Features:
  """Returns the features that a features.json describes.

  Raises:
    UsageError: it is missing or damaged, or has a feature that towers do not read.
  """
  try:
    kind, content = _open(parse_json(read_text(path)))
    if kind != 'FeaturesDict':
      raise UsageError(f'{path}: examples are of the class {kind}, and only a FeaturesDict is '
                       f'read. {_OTHERWISE}')
    return _read_dict(content, '', path)
  except UsageError:
    raise
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    raise UsageError(f'{path}: cannot be read as what tensorflow-datasets writes: '
                     f'{type(error).__name__}: {error}') from None


def _open(feature: Dict[str, Any]) -> Tuple[str, Dict[str, Any]]:
  """Returns the class of a feature without its module, and its content."""
  if 'pythonClassName' in feature:
    name = feature['pythonClassName']
    [content] = [value for value in feature.values() if isinstance(value, dict)]
    if 'jsonFeature' in feature:
      content = parse_json(content['json'])
  else:
    name, content = feature['type'], feature['content']
    content = parse_json(content) if isinstance(content, str) else content
  return name.split('.')[-1], content


def _read_dict(content, prefix, path) -> Features:
  features = content['features'] if set(content) == {'features'} and not any(
      key in content['features'] for key in ('type', 'pythonClassName')) else content
  read: Features = {}
  for name, feature in features.items():
    kind, inner = _open(feature)
    read[name] = (_read_dict(inner, f'{prefix}{name}/', path) if kind == 'FeaturesDict' else
                  _read_feature(kind, inner, prefix + name, path))
  return read


def _read_feature(kind, content, name, path) -> Feature:
  def refuse(what):
    raise UsageError(f"{path}: the feature '{name}' {what}. {_OTHERWISE}")

  if kind == 'Sequence':
    inner = _read_feature(*_open(content['feature']), name, path)
    length = _read_shape([content.get('length') or -1])
    if inner.kind == 'Image' or None in inner.shape or inner.encoding != 'none':
      refuse('is a Sequence of images, of sizes that differ or of encoded tensors')
    return Feature('Tensor', name, inner.dtype, length + inner.shape)
  if kind not in ('Image', 'ClassLabel', 'Text', 'Tensor', 'Scalar'):
    refuse(f'is of the class {kind}, and those that are read are Image, ClassLabel, Text, Tensor, '
           'Scalar, Sequence of one of these, and FeaturesDict')
  if kind == 'ClassLabel':
    num_classes = content.get('numClasses', content.get('num_classes'))
    return Feature(kind, name, 'int64', num_classes=int(num_classes or 0))
  if kind == 'Text':
    if any(content.values()):
      refuse('is text that is encoded as integers')
    return Feature(kind, name, 'string')

  dtype = content.get('dtype') or 'uint8'
  shape = _read_shape(content.get('shape') or ())
  if kind == 'Image':
    if len(shape) != 3 or shape[-1] not in _CHANNELS or dtype != 'uint8':
      refuse(f'is an image of {dtype} and shape {list(shape)}, and those that are read are of '
             'uint8 with 1 or 3 channels')
    return Feature(kind, name, dtype, shape)
  encoding = content.get('encoding') or 'none'
  if dtype not in _INTS + _FLOATS + _STRINGS or encoding not in ('none', 'bytes', 'zlib'):
    refuse(f"has dtype {dtype} and encoding '{encoding}', which are not read")
  if None in shape[1:] or content.get('optional'):
    refuse(f'is of shape {list(shape)}, and only its first size may differ between examples')
  return Feature('Tensor', name, 'string' if dtype in _STRINGS else dtype, shape, encoding)


def _read_shape(shape) -> Tuple[Optional[int], ...]:
  sizes = shape.get('dimensions', ()) if isinstance(shape, dict) else shape
  return tuple(None if size is None or int(size) < 0 else int(size) for size in sizes)


def flatten_features(features: Features) -> Dict[str, Feature]:
  """Returns all features by their paths."""
  flat: Dict[str, Feature] = {}
  for feature in features.values():
    flat.update({feature.path: feature} if isinstance(feature, Feature) else
                flatten_features(feature))
  return flat


def parse_record(record: Any, features: Features) -> Dict[str, Any]:
  """Returns the example of a record, a scalar string tensor, as tensorflow-datasets would."""
  flat = flatten_features(features)
  stored = tf.io.parse_single_example(
      record, {path: _stored_as(feature) for path, feature in flat.items()})

  def pack(part):
    return {name: _decode(feature, stored[feature.path]) if isinstance(feature, Feature) else
            pack(feature) for name, feature in part.items()}

  return pack(features)


def _stored_as(feature):
  """Returns how a feature is parsed from a record."""
  if feature.kind in ('Image', 'Text') or feature.encoding != 'none':
    return tf.io.FixedLenFeature([], tf.string)
  dtype = tf.int64 if feature.dtype in _INTS else (
      tf.float32 if feature.dtype in _FLOATS else tf.string)
  if feature.shape[:1] == (None,):
    return tf.io.FixedLenSequenceFeature(feature.shape[1:], dtype, allow_missing=True)
  return tf.io.FixedLenFeature(feature.shape, dtype)


def _decode(feature, stored):
  if feature.kind == 'Image':
    return _decode_image(feature, stored)
  dtype = tf.as_dtype(feature.dtype)
  if feature.encoding == 'none':
    return stored if stored.dtype == dtype else tf.cast(stored, dtype)
  if feature.encoding == 'zlib':
    stored = tf.io.decode_compressed(stored, 'ZLIB')
  raw = tf.as_dtype(_RAW.get(feature.dtype, feature.dtype))
  tensor = tf.reshape(tf.io.decode_raw(stored, raw),
                      [-1 if size is None else size for size in feature.shape])
  if raw == dtype:
    return tensor
  return tf.cast(tensor, dtype) if dtype == tf.bool else tf.bitcast(tensor, dtype)


def _decode_image(feature, content):
  channels = feature.shape[-1]
  # The accurate transform gives the same pixels in every version of libjpeg.
  image = tf.cond(
      is_png(content),
      lambda: tf.image.decode_png(content, channels=channels),
      lambda: tf.image.decode_jpeg(content, channels=channels, dct_method='INTEGER_ACCURATE'))
  height, width, _ = feature.shape
  if height and width:
    # Fails where it is of another size.
    return tf.reshape(image, [height, width, channels])
  image.set_shape(feature.shape)
  return image
