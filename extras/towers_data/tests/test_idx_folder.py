"""Idx folder: the four files are found under every usual name, and must belong together."""

import os

import numpy as np
import pytest

from tests import ROOT
from tests.harness import faults
from towers import data
from towers.base.usage_error import UsageError
from towers_data.idx import idx_folder
from towers_data.idx.idx_folder import load_idx_folder
from towers_data.idx.make_sample import write_idx

_SAMPLE_DIR = os.path.join(ROOT, 'towers', 'data', 'fashion_mnist_sample')
_NAMES = {
    'train-images': 'train-images-idx3-ubyte', 'train-labels': 'train-labels-idx1-ubyte',
    't10k-images': 't10k-images-idx3-ubyte', 't10k-labels': 't10k-labels-idx1-ubyte'}


def _arrays():
  random = np.random.RandomState(0)
  return {
      'train-images': random.randint(256, size=(20, 5, 4)).astype(np.uint8),
      'train-labels': random.permutation(20).astype(np.uint8) % 10,
      't10k-images': random.randint(256, size=(10, 5, 4)).astype(np.uint8),
      't10k-labels': random.permutation(10).astype(np.uint8),
  }


def _write(folder, arrays, rename=lambda name: name):
  for role, array in arrays.items():
    write_idx(folder / rename(_NAMES[role]), array)


def _assert_loaded(data_set, arrays):
  assert (data_set.image_shape, data_set.num_classes) == ((5, 4, 1), 10)
  for examples, split in ((data_set.train, 'train'), (data_set.validation, 't10k')):
    images, labels = examples.arrays
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(images, arrays[split + '-images'][..., np.newaxis])
    np.testing.assert_array_equal(labels, arrays[split + '-labels'])
    assert examples.num_examples == len(labels)


@pytest.mark.parametrize('rename', [
    lambda name: name, lambda name: name + '.gz', lambda name: name.replace('-idx', '.idx'),
    lambda name: name.replace('-idx', '.idx') + '.gz',
    lambda name: name + '.gz' * ('labels' in name)])
def test_every_usual_name(tmp_path, rename):
  _write(tmp_path, _arrays(), rename)
  (tmp_path / 'README').write_text('not idx')
  _assert_loaded(load_idx_folder(tmp_path), _arrays())


def test_splits_are_called_by_the_name_of_the_data_set(tmp_path):
  _write(tmp_path, _arrays())
  data_set = load_idx_folder(str(tmp_path), name='mine')
  assert (data_set.train.name, data_set.validation.name) == ('mine_train', 'mine_validation')


def test_a_folder_of_the_name_of_a_file_is_not_taken_for_it(tmp_path):
  _write(tmp_path, _arrays(), lambda name: name + '.gz')
  (tmp_path / 'train-images-idx3-ubyte').mkdir()
  _assert_loaded(load_idx_folder(tmp_path), _arrays())


def test_missing_files_are_named_beside_what_the_folder_holds(tmp_path):
  _write(tmp_path, _arrays())
  (tmp_path / 't10k-labels-idx1-ubyte').rename(tmp_path / 't10k-labels.bin')
  (tmp_path / 'sub').mkdir()
  with pytest.raises(UsageError) as error:
    load_idx_folder(tmp_path)
  message = str(error.value)
  for word in ('lacks 1 of 4 files: t10k-labels-idx1-ubyte (looked for with -idx and .idx, with '
               'and without .gz)',
               'It holds sub/, t10k-images-idx3-ubyte, t10k-labels.bin, train-images',
               str(tmp_path), 'data_dir', 'dataset-fashion-mnist',
               '/usr/share/datasets/fashion-mnist'):
    assert word in message


def test_what_is_no_file_is_listed_as_such(tmp_path):
  for name, kind in (('train-images-idx3-ubyte', 'a FIFO'), ('train-labels-idx1-ubyte', 'a link')):
    faults.be_special(tmp_path / name, kind)
  with pytest.raises(UsageError, match=r'lacks 4 of 4 .* It holds train-images-idx3-ubyte \(a FIFO'
                     r'\), train-labels-idx1-ubyte \(a link to nothing\)'):
    load_idx_folder(tmp_path)


def test_a_full_folder_is_listed_in_brief_and_an_empty_one_as_such(tmp_path):
  with pytest.raises(UsageError, match='lacks 4 of 4 files.*It holds nothing'):
    load_idx_folder(tmp_path)
  for number in range(1000):
    (tmp_path / f'{number:04}').touch()
  with pytest.raises(UsageError, match=r'0018, 0019, \.\.\. \(1000 names in all\)') as error:
    load_idx_folder(tmp_path)
  assert '0020' not in str(error.value)


def test_a_folder_that_is_none(tmp_path):
  (tmp_path / 'file').touch()
  for path, words in ((tmp_path / 'none', 'does not exist'),
                      (tmp_path / 'file', 'is a file, not a folder'),
                      ('', "data_dir '' does not exist")):
    with pytest.raises(UsageError, match=words) as error:
      load_idx_folder(path)
    assert 'dataset-fashion-mnist' in str(error.value)


@pytest.mark.parametrize('role, change, words', [
    ('train-labels', lambda labels: labels[:19], ['20 images', '19 labels']),
    ('t10k-images', lambda images: images[:9], ['9 images', '10 labels']),
    ('train-labels', lambda labels: labels + 3, ['6 of 20 labels', '0 to 9', 'num_classes is 10',
        '13 or more']),
    ('t10k-images', lambda images: images[:, :4], ['[5, 4, 1]', '[4, 4, 1]', 'one data set']),
    ('train-images', lambda images: images[:, 0], ['uint8', '[20, 4]', '[n, height, width]']),
    ('train-images', lambda images: images.astype(np.int16), ['int16', 'uint8 images']),
    ('t10k-labels', lambda labels: labels[:, np.newaxis], ['[10, 1]', 'uint8 labels [n]']),
    ('t10k-labels', lambda labels: labels.astype(np.float32), ['float32', 'uint8 labels [n]'])])
def test_files_that_do_not_belong_together(tmp_path, role, change, words):
  arrays = _arrays()
  arrays[role] = change(arrays[role])
  _write(tmp_path, arrays)
  with pytest.raises(UsageError) as error:
    load_idx_folder(tmp_path)
  for word in [os.path.join(str(tmp_path), _NAMES[role])] + words:
    assert word in str(error.value)


def test_the_first_label_out_of_range_is_pointed_at(tmp_path):
  arrays = _arrays()
  arrays['train-labels'][[4, 7]] = 200, 10
  _write(tmp_path, arrays)
  with pytest.raises(UsageError, match='2 of 20 labels.*at index 4: 200;.*201 or more'):
    load_idx_folder(tmp_path)
  assert load_idx_folder(tmp_path, num_classes=201).num_classes == 201


def test_damage_is_told_with_the_path_of_the_file(tmp_path):
  _write(tmp_path, _arrays())
  path = tmp_path / 't10k-images-idx3-ubyte'
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(UsageError, match='t10k-images-idx3-ubyte: truncated.*200 bytes'):
    load_idx_folder(tmp_path)


@pytest.mark.parametrize('name', ['mnist', 'fashion_mnist'])
def test_a_data_dir_is_read(name):
  data_set = data.load(name, data_dir=_SAMPLE_DIR)
  assert data_set.train.num_examples == 4000
  assert data_set.train.name == name + '_train'


@pytest.mark.parametrize('is_installed', [True, False])
def test_fashion_mnist_is_found_where_debian_installs_it(is_installed, tmp_path, monkeypatch):
  folder = _SAMPLE_DIR if is_installed else str(tmp_path / 'none')
  monkeypatch.setattr(idx_folder, 'DEBIAN_FASHION_MNIST_DIR', folder)
  if is_installed:
    assert data.load('fashion_mnist').train.num_examples == 4000
  else:
    with pytest.raises(UsageError, match='needs a data_dir.*dataset-fashion-mnist'):
      data.load('fashion_mnist')
