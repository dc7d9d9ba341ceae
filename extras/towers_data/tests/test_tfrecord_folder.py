"""TFRecords in ImageNet's layout: whole sets of files, the range of labels, data_set.json."""

import contextlib
import json
import os
import tempfile

import pytest

from tests.data.pictures import damage, take, write_tfrecords
from tests.harness import faults
from towers import data
from towers.base.json_files import seal
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError
from towers_data.labelled_example import decode_labelled, encode_labelled
from towers_data.tfrecord_folder import DESCRIPTION, find_shards


def write(folder, validation='validation'):
  write_tfrecords(folder, 'train', [[0, 1, 2], [3, 4], [5, 999]])
  write_tfrecords(folder, validation, [[7, 8, 9, 10]])
  return folder


@pytest.mark.nightly(but='val')
@pytest.mark.parametrize('validation', ['validation', 'val'])
def test_imagenets_layout_is_read_as_it_is(tmp_path, validation):
  data_set = data.load('tfrecord', data_dir=write(tmp_path, validation), image_size=8)
  assert (data_set.train.num_examples, data_set.validation.num_examples) == (7, 4)
  assert data_set.num_classes == 1000 and data_set.image_shape == (8, 8, 3)
  assert '3 + 1 TFRecord files' in data_set.source and 'exact shares' in data_set.source
  [taken] = take(data_set.train, batch_size=7)
  assert sorted(taken) == [0, 1, 2, 3, 4, 5, 999]
  assert data.load('tfrecord', data_dir=tmp_path).image_shape == (224, 224, 3)


@pytest.mark.parametrize('kind', ['a FIFO', 'a device', 'a link'])
def test_a_shard_that_is_no_file_is_named(kind, tmp_path):
  [shard] = write(tmp_path).glob('validation-*')
  faults.be_special(shard, kind)
  what = 'No such file' if kind == 'a link' else f'it is {kind}, not a file'
  with pytest.raises(UsageError, match=f'{shard.name}: cannot be read: {what}'):
    data.load('tfrecord', data_dir=tmp_path)


@pytest.mark.parametrize('name', ['images', 'tfrecord', 'fashion_mnist'])
def test_a_folder_that_cannot_be_listed_is_told(name):
  """Of mode 300, by another user than root, who may list all."""
  with tempfile.TemporaryDirectory(dir='/tmp') as folder, contextlib.ExitStack() as closing:
    inner = os.path.join(folder, 'data')
    for part in ('train', 'validation'):
      os.makedirs(os.path.join(inner, part))
    os.chmod(folder, 0o711)
    os.chmod(inner if name != 'images' else os.path.join(inner, 'train'), 0o333)
    if os.geteuid() == 0:
      os.seteuid(65534)
      closing.callback(os.seteuid, 0)
    with pytest.raises(UsageError, match=r'cannot be (read|listed).*Permission denied'):
      data.load(name, data_dir=inner)


def test_settings_win_over_the_description_and_it_over_imagenet(tmp_path):
  write(tmp_path)
  description = dict(format='towers data set 1', num_classes=20, first_label=1, channels=1,
                     image_size=12, shards={})
  (tmp_path / DESCRIPTION).write_text(json.dumps(description))
  data_set = data.load('tfrecord', data_dir=tmp_path)
  assert data_set.num_classes == 20 and data_set.image_shape == (12, 12, 1)
  data_set = data.load('tfrecord', data_dir=tmp_path, num_classes=1001, first_label=0, image_size=9)
  assert data_set.num_classes == 1001 and data_set.image_shape == (9, 9, 1)
  [taken] = take(data_set.validation, batch_size=4)
  assert sorted(taken) == [8, 9, 10, 11]


def test_labels_lie_from_the_first_one_on_up_to_the_number_of_classes():
  for label in range(7, 10):
    decoded = decode_labelled(encode_labelled(b'image', label), num_classes=3, first_label=7)
    assert decoded == (b'image', label - 7)
  for label in (6, 10):
    with pytest.raises(BadRecordError, match=f'the label {label} lies outside 7 to 9'):
      decode_labelled(encode_labelled(b'image', label), num_classes=3, first_label=7)


def test_damaged_lengths_are_found_at_the_start(tmp_path):
  damage(write(tmp_path) / 'train-00000-of-00003', 3)
  with pytest.raises(UsageError, match='train-00000-of-00003: record 0 at byte 0'):
    data.load('tfrecord', data_dir=tmp_path)
  assert data.load('tfrecord', data_dir=tmp_path, on_bad_record='skip').train.num_examples == 4


@pytest.mark.parametrize('names, words', [
    ([], 'no file of the split train .*holds nothing'),
    (['train-00000-of-00001'],
     r'no file of the split validation \(validation-\*, val-\*, test-\*\)'),
    (['train-00000-of-00003', 'train-00002-of-00003', 'validation'],
     'lacks 1 of 3 files of train.*00001-of-00003'),
    (['train-00000-of-00001', 'train-00000-of-00002', 'val'], 'several conversions')])
def test_sets_that_are_not_whole_are_refused(tmp_path, names, words):
  for name in names:
    (tmp_path / name).write_bytes(b'')
  with pytest.raises(UsageError, match=words):
    find_shards(str(tmp_path))


def test_names_without_numbers_and_files_beside_them(tmp_path):
  for name in ('train.tfrecord', 'train_extra.tfrecord', 'trainer', 'training.log', 'val.tfrecord',
               'labels.txt', 'train.json', '.train-00000-of-00001.7.tmp', 'validation.md'):
    (tmp_path / name).write_bytes(b'')
  found = {split: list(map(os.path.basename, paths))
           for split, paths in find_shards(str(tmp_path)).items()}
  assert found == dict(train=['train.tfrecord', 'train_extra.tfrecord'],
                       validation=['val.tfrecord'])


@pytest.mark.parametrize('content', [
    '', '[]', '{}', '{"format": "other"}',
    *(json.dumps(dict(dict(format='towers data set 1', shards={}, num_classes=3, first_label=0,
                           channels=3), **wrong))
      for wrong in (dict(shards=[]), dict(num_classes=1), dict(channels=7))),
    seal(dict(format='towers data set 1', shards={}, num_classes=13, first_label=0,
              channels=3)).replace('13', '18')])
def test_a_damaged_description_is_named(tmp_path, content):
  (write(tmp_path) / DESCRIPTION).write_text(content)
  with pytest.raises(UsageError, match='data_set.json: damaged'):
    data.load('tfrecord', data_dir=tmp_path)


def test_fewer_records_than_the_description_counts_are_told(tmp_path):
  description = dict(format='towers data set 1', num_classes=20, first_label=1, channels=3,
                     image_size=12,
                     shards={'train-00001-of-00003': dict(records=3, bytes=0, crc32=0)})
  (write(tmp_path) / DESCRIPTION).write_text(json.dumps(description))
  with pytest.raises(UsageError, match='train-00001-of-00003.*has 2 records.*counts 3'):
    data.load('tfrecord', data_dir=tmp_path)
