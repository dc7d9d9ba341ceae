"""Numpy's files are mapped, not read; what numpy writes of numbers is taken, and nothing else."""

import io
import mmap

import numpy as np
import pytest

from tests.data.test_arrays import _run_epoch
from towers import data
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords
from towers_data.npy_folder import load_npy, map_npy


def write(folder, images, labels, num_validation=3):
  for split, part in (('train', slice(0, -num_validation)), ('validation',
                                                             slice(-num_validation, None))):
    np.save(str(folder / (split + '_images.npy')), images[part])
    np.save(str(folder / (split + '_labels.npy')), labels[part])


@pytest.mark.parametrize('dtype', [np.uint8, np.float32])
@pytest.mark.parametrize('shape', [(5, 4, 3), (5, 4)])
def test_both_splits_come_out_as_they_went_in(tmp_path, dtype, shape):
  images = (np.random.RandomState(0).uniform(size=(11,) + shape) * 255).astype(dtype)
  write(tmp_path, images, np.arange(11) % 7)
  data_set = data.load('npy', data_dir=tmp_path)
  assert data_set.image_shape == (5, 4, 3 if len(shape) == 3 else 1) and data_set.num_classes == 7
  for examples, part in ((data_set.train, slice(0, 8)), (data_set.validation, slice(8, 11))):
    got_images, got_labels = _run_epoch(examples, batch_size=5)
    np.testing.assert_array_equal(got_images.reshape(images[part].shape), images[part])
    np.testing.assert_array_equal(got_labels, np.arange(11)[part] % 7)
    assert got_images.dtype == dtype and got_labels.dtype == np.int32
    holder = examples.arrays[0]
    while isinstance(holder, np.ndarray):
      holder = holder.base
    assert isinstance(holder, mmap.mmap)


@pytest.mark.parametrize('array', [
    np.arange(6), np.float64([[1, 2]]), np.zeros([3, 1, 2], 'f2'), np.array([True, False]),
    np.zeros([2], 'c8'), np.arange(5, dtype='>i4'), np.zeros([1] * 20, np.uint8)],
    ids=lambda array: array.dtype.str)
def test_whatever_numpy_writes_of_numbers_is_mapped(tmp_path, array):
  path = str(tmp_path / 'array.npy')
  np.save(path, array)
  mapped = map_npy(path)
  np.testing.assert_array_equal(mapped, array)
  assert mapped.dtype == array.dtype and not mapped.flags.writeable
  with open(path, 'wb') as file:
    np.lib.format.write_array(file, array, version=(2, 0))
  np.testing.assert_array_equal(map_npy(path), array)


@pytest.mark.parametrize('change, words', [
    (lambda content: b'', 'npy'), (lambda content: b'PK' + content, 'npy'),
    (lambda content: content[:-1], 'npy'), (lambda content: content[:40], 'npy'),
    (lambda content: content + b'x', 'declares int64 of shape .7, 2.*240 bytes.*has 241'),
    (lambda content: content.replace(b'(7, 2)', b'(7,-2)'), 'npy'),
    (lambda content: content.replace(b'(7, 2)', b'(8, 2)'), 'npy'),
    (lambda content: content.replace(b'<i8', b'|O8'), 'npy'),
    (lambda content: content[:-8].replace(b'<i8', b'|S8').replace(b'(7', b'(6'), 'holds strings'),
    (lambda content: content.replace(b'(7, 2)', b'(0, 2)'), 'at least 1 example'),
    (lambda content: content.replace(b'False', b'True').replace(b'   \n', b'    \n'), 'Fortran'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_damaged_files_are_refused(tmp_path, change, words):
  path = tmp_path / 'array.npy'
  np.save(str(path), np.arange(14).reshape(7, 2))
  path.write_bytes(change(path.read_bytes()))
  with pytest.raises(UsageError, match=words) as error:
    map_npy(str(path))
  assert str(path) in str(error.value)


def test_wrong_labels_are_named_or_left_out(tmp_path):
  images, labels = np.arange(11 * 8, dtype=np.uint8).reshape(11, 2, 4), np.arange(11)
  labels[[2, 5]] = -1, 300
  write(tmp_path, images, labels)
  with pytest.raises(UsageError, match='train_labels.npy: record 2.*label -1 lies outside 0 to 19'):
    load_npy(tmp_path, num_classes=20, bad_records=BadRecords('fail'))
  data_set = load_npy(tmp_path, num_classes=20, bad_records=BadRecords('skip', io.StringIO()))
  assert data_set.train.num_examples == 6
  got_images, got_labels = _run_epoch(data_set.train, batch_size=4)
  np.testing.assert_array_equal(got_labels, [0, 1, 3, 4, 6, 7])
  np.testing.assert_array_equal(got_images[..., 0], images[[0, 1, 3, 4, 6, 7]])


@pytest.mark.parametrize('images, labels, words', [
    (np.zeros([9, 4], np.uint8), np.arange(9), r'uint8 of shape \[6, 4\]'),
    (np.zeros([9, 4, 4], np.int64), np.arange(9), 'int64.*astype'),
    (np.zeros([9, 4, 4], np.uint8), np.zeros([9, 2], int), 'swapped'),
    (np.zeros([9, 4, 4], np.uint8), np.zeros([9]), 'swapped'),
    (np.zeros([9, 4, 4], np.uint8), np.arange(8), '6 images.*5 labels')])
def test_what_does_not_belong_together_is_refused(tmp_path, images, labels, words):
  write(tmp_path, images, labels)
  with pytest.raises(UsageError, match=words):
    data.load('npy', data_dir=tmp_path)


def test_missing_files_are_listed(tmp_path):
  np.save(str(tmp_path / 'train_images.npy'), np.zeros(3))
  with pytest.raises(UsageError, match='lacks 3 of 4 files: train_labels.npy.*It holds '
                                       'train_images.npy'):
    data.load('npy', data_dir=tmp_path)
