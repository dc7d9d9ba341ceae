"""Writes a folder as tensorflow-datasets prepares it."""

import json

import numpy as np

from tests.harness.taking import take
from towers.tensorflow_v1 import tf
from towers_data.png import encode_png

_MODULE = 'tensorflow_datasets.core.features.'
IMAGE, LABEL = 'image_feature.Image', 'class_label_feature.ClassLabel'
TENSOR, TEXT = 'tensor_feature.Tensor', 'text_feature.Text'


def feature(kind, **content):
  return {'pythonClassName': _MODULE + kind, **content}


def tensor(dtype, *shape, encoding='none'):
  return feature(TENSOR, tensor=dict(dtype=dtype, encoding=encoding,
                                     shape={'dimensions': list(map(str, shape))} if shape else {}))


def features_dict(**features):
  return feature('features_dict.FeaturesDict', featuresDict={'features': features})


def image(height='28', width='28', channels='1', dtype='uint8'):
  return feature(IMAGE, image=dict(shape={'dimensions': [height, width, channels]}, dtype=dtype,
                                   encodingFormat='png'))


def classes(num):
  return feature(LABEL, classLabel=dict(numClasses=str(num)))


# As MNIST's is written today, and as older versions wrote it.
MNIST = features_dict(image=image(), label=classes(10))
OLD_MNIST = {'type': _MODULE + 'features_dict.FeaturesDict', 'content': {
    'image': {'type': _MODULE + IMAGE, 'content': {
        'shape': [28, 28, 1], 'dtype': 'uint8', 'encoding_format': 'png'}},
    'label': {'type': _MODULE + LABEL, 'content': {'num_classes': 10}}}}


def write(folder, features, examples_of, **info):
  """Writes a folder; for each split `examples_of` has a list of files, lists of examples."""
  described = []
  for split, files in examples_of.items():
    for index, examples in enumerate(files):
      path = folder / f'my_set-{split}.tfrecord-{index:05d}-of-{len(files):05d}'
      with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
          writer.write(serialize(example))
    described.append(dict(name=split, numBytes='1', shardLengths=[str(len(file)) for file in files],
                          filepathTemplate='{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}'))
  (folder / 'features.json').write_text(json.dumps(features))
  (folder / 'dataset_info.json').write_text(json.dumps(dict(dict(
      name='my_set', version='3.0.1', fileFormat='tfrecord', splits=described), **info)))
  return folder


def serialize(example):
  """Returns an Example as tensorflow-datasets does: ints of any size as int64, floats as float."""
  made = tf.train.Example()
  for name, values in example.items():
    stored = made.features.feature[name]
    values = np.ravel(np.array(values, object) if isinstance(values, bytes) else values)
    if values.dtype.kind in 'biu':
      stored.int64_list.value.extend(map(int, values))
    elif values.dtype.kind == 'f':
      stored.float_list.value.extend(values)
    else:
      stored.bytes_list.value.extend(values)
  return made.SerializeToString()


def pixels(number, size=28):
  return np.full([size, size, 1], number * 20, np.uint8)


def digits(numbers):
  return [{'image': encode_png(pixels(number)), 'label': number} for number in numbers]


def first_batch(examples, num):
  [[(tensors, _)]] = take(examples, batch_size=num)
  return tensors
