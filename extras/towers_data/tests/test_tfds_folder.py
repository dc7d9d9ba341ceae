"""A folder that tensorflow-datasets has prepared is read as it is, or refused by name."""

import json
import zlib

import numpy as np
import pytest

import towers
from tests.data import tfds
from tests.data.pictures import jpegs, take
from tests.data.tfds import MNIST, OLD_MNIST, classes, feature, features_dict, image, pixels, tensor
from towers import data
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf
from towers_data.png import encode_png
from towers_data.tfds_features import Feature, read_features


def test_labelled_images_are_read_as_they_are(tmp_path):
  tfds.write(tmp_path, MNIST, {'test': [tfds.digits(range(4))], 'train': [
      tfds.digits([0, 1, 2]), tfds.digits([]), tfds.digits([3, 4, 5, 6])]})
  data_set = data.load('tfds', data_dir=str(tmp_path))
  assert data_set.image_shape == (28, 28, 1) and data_set.num_classes == 10
  assert (data_set.train.num_examples, data_set.validation.num_examples) == (7, 4)
  [taken] = take(data_set.train, batch_size=7, mode='next', num_towers=3)
  assert sorted(taken) == list(range(7))
  for number, found in taken.items():
    np.testing.assert_array_equal(found, pixels(number))
  assert data.load('tfds', data_dir=tmp_path, image_size=8).image_shape == (8, 8, 1)


def test_the_schema_of_old_versions_says_the_same(tmp_path):
  read = []
  for features in (MNIST, OLD_MNIST, dict(OLD_MNIST, content=json.dumps(OLD_MNIST['content'])), {
      'type': OLD_MNIST['type'], 'content': MNIST['featuresDict'], 'proto_cls': 'FeaturesDict'}):
    (tmp_path / 'features.json').write_text(json.dumps(features))
    read.append(read_features(str(tmp_path / 'features.json')))
  assert read == 4 * [{'image': Feature('Image', 'image', 'uint8', (28, 28, 1)),
                       'label': Feature('ClassLabel', 'label', 'int64', num_classes=10)}]


DTYPES = ('bool', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64',
          'float16', 'float32', 'float64')


@pytest.mark.nightly
def test_features_of_every_kind_come_as_nested_dicts(tmp_path):
  numbers = [np.array([[0, 1, 1], [1, 0, number]]) for number in range(3)]
  kinds = [(f'{dtype}_{encoding}', dtype, encoding) for dtype in DTYPES
           for encoding in ('none', 'bytes', 'zlib')]
  features = features_dict(
      text=feature(tfds.TEXT, text={}), photo=image('24', '32', '3'), free=image('-1', '-1', '1'),
      meta=features_dict(id=feature('scalar.Scalar', tensor=dict(dtype='int32', shape={})),
                         words=tensor('string', 2), kind=classes(5)),
      **{name: tensor(dtype, 2, 3, encoding=encoding) for name, dtype, encoding in kinds})

  def encode(dtype, encoding, values):
    values = values.astype(dtype)
    stored = values.tobytes()
    return values if encoding == 'none' else zlib.compress(stored) if encoding == 'zlib' else stored

  examples = [dict({
      'text': b'text %d' % number, 'photo': jpegs(3)[number], 'free': encode_png(pixels(number, 5)),
      'meta/id': number, 'meta/kind': number, 'meta/words': np.array([b'a', b'b'], object),
  }, **{name: encode(dtype, encoding, numbers[number]) for name, dtype, encoding in kinds})
      for number in range(3)]
  tfds.write(tmp_path, features, {'train': [examples[:1], examples[1:]]})
  batch = tfds.first_batch(towers.from_tfds(tmp_path), 3)
  assert sorted(batch) == sorted(features['featuresDict']['features'])
  assert batch['text'].tolist() == [b'text 0', b'text 1', b'text 2']
  assert batch['meta']['id'].tolist() == batch['meta']['kind'].tolist() == [0, 1, 2]
  assert batch['meta']['id'].dtype == np.int32 and batch['meta']['kind'].dtype == np.int64
  assert batch['meta']['words'].tolist() == 3 * [[b'a', b'b']]
  assert batch['photo'].shape == (3, 24, 32, 3) and batch['photo'].dtype == np.uint8
  np.testing.assert_array_equal(batch['free'], np.stack([pixels(number, 5) for number in range(3)]))
  for name, dtype, _ in kinds:
    assert batch[name].dtype == dtype, name
    np.testing.assert_array_equal(batch[name], np.stack(numbers).astype(dtype), err_msg=name)


@pytest.mark.nightly
def test_sequences_are_padded(tmp_path):
  def sequence(inner, length='-1'):
    return feature('sequence_feature.Sequence', sequence={'feature': inner, 'length': length})

  tfds.write(tmp_path, features_dict(
      tokens=tensor('int32', -1), tags=sequence(classes(5)), boxes=sequence(tensor('float32', 4)),
      words=sequence(feature(tfds.TEXT, text={})), pair=sequence(tensor('int64'), '2'),
      raw=tensor('int16', -1, encoding='bytes')), {'train': [[dict(
          tokens=np.arange(size), tags=np.full(size, 4), words=np.array([b'a'] * size, object),
          boxes=np.ones([size, 4]), pair=np.array([7, 8]), raw=np.full(size, 3, np.int16).tobytes(),
      ) for size in (2, 0, 3)]]})
  batch = tfds.first_batch(towers.padded(towers.from_tfds(tmp_path)), 3)
  assert batch['tokens'].tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 2]]
  assert batch['tags'].tolist() == [[4, 4, 0], [0, 0, 0], [4, 4, 4]]
  assert batch['words'].tolist() == [[b'a', b'a', b''], [b''] * 3, [b'a'] * 3]
  assert batch['boxes'].shape == (3, 3, 4) and batch['boxes'].sum() == 20
  assert batch['pair'].tolist() == [[7, 8]] * 3
  assert batch['raw'].tolist() == [[3, 3, 0], [0] * 3, [3] * 3]
  assert batch['tokens'].dtype == np.int32 and batch['raw'].dtype == np.int16
  with pytest.raises(tf.errors.OpError, match=r'shape \[0, 4\].*towers.padded'):
    tfds.first_batch(towers.from_tfds(tmp_path), 3)


def test_what_is_not_read_is_refused_by_name(tmp_path):
  def refuse(words, features=MNIST, read=towers.from_tfds, **info):
    files = {'train': [tfds.digits([1])]}
    with pytest.raises(UsageError, match='(?s)' + words):
      read(tfds.write(tmp_path, features, files, **info))

  def load(folder):
    data.load('tfds', data_dir=folder)

  with pytest.raises(UsageError, match='lacks 2 of 2 files: features.json.*holds nothing.*version'):
    towers.from_tfds(tmp_path)
  refuse("'boxes' is a Sequence of images.*tfds.load", features_dict(
      boxes=feature('sequence_feature.Sequence', sequence={'feature': tensor('int64', -1)})))
  refuse("'meta/sound' is of the class Audio", features_dict(meta=features_dict(
      sound=feature('audio_feature.Audio', audio={}))))
  refuse(r"'tokens' is of shape \[2, None\]", features_dict(tokens=tensor('int64', 2, -1)))
  refuse("'depth' is an image of float32", features_dict(depth=image(dtype='float32')))
  refuse("'x' has dtype complex64", features_dict(x=tensor('complex64')))
  refuse("'text' is text that is encoded", {'type': 'FeaturesDict', 'content': {'text': {
      'type': tfds.TEXT, 'content': {'encoder': 'SubwordTextEncoder'}}}})
  refuse('class Tensor, and only a FeaturesDict', tensor('int64'))
  refuse('features.json: cannot be read', [1])
  refuse('format array_record, and only tfrecord', fileFormat='array_record')
  refuse('dataset_info.json: cannot be read', splits=None)
  refuse('dataset_info.json: cannot be read', splits=[
      dict(name='train', shardLengths=['1'], filepathTemplate='{0}')])
  refuse('2 of 2 files of the split .train. are missing.*train.tfrecord-00000-of-00002', splits=[
      dict(name='train', shardLengths=['1', '1'])])
  refuse('has 1 records, and dataset_info.json counts 2', splits=[
      dict(name='train', shardLengths=['2'])])
  refuse("no split 'other'; choose one of train", read=lambda folder: towers.from_tfds(
      folder, 'other'))
  refuse('no split validation, val, test', read=load)
  refuse('one feature of the class Image; there are 2: a, b', features_dict(
      a=image(), b=image(), label=classes(3)), read=load)
  refuse('one feature of the class ClassLabel; there are 0', features_dict(
      image=image(), label=tensor('int64')), read=load)


@pytest.mark.nightly
def test_supervised_keys_choose_among_several_images(tmp_path):
  examples = [dict(example, mask=encode_png(pixels(9))) for example in tfds.digits([1, 2])]
  keys = {'tuple': {'items': [{'featureKey': 'image'}, {'featureKey': 'label'}]}}
  for supervised in (keys, {'input': 'image', 'output': 'label'}):
    tfds.write(tmp_path, features_dict(mask=image(), image=image(), label=classes(10)), {
        'train': [examples], 'validation': [examples]}, supervisedKeys=supervised)
    [taken] = take(data.load('tfds', data_dir=tmp_path).train, batch_size=2)
    np.testing.assert_array_equal(taken[2], pixels(2))
