"""The binary files of CIFAR: every pixel in its place, damage by the policy."""

import io

import numpy as np
import pytest

from tests.data.test_arrays import _run_epoch
from towers import data
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords
from towers_data.cifar import CIFARS, load_cifar


def write(folder, name, images, labels):
  """Writes all files in the format's layout, label(s) before planes, training images in turn."""
  layout = CIFARS[name]
  folder.mkdir(exist_ok=True)
  for files, part in ((layout.train, slice(0, -4)), (layout.validation, slice(-4, None))):
    for number, file in enumerate(files):
      content = b''.join(
          bytes([9] * (layout.num_labels - 1) + [label]) + image.transpose(2, 0, 1).tobytes()
          for image, label in list(zip(images[part], labels[part]))[number::len(files)])
      (folder / file).write_bytes(content)


@pytest.fixture
def pictures():
  random = np.random.RandomState(0)
  return random.randint(256, size=(14, 32, 32, 3)).astype(np.uint8), random.randint(10, size=14)


@pytest.mark.nightly(but='True-cifar10')
@pytest.mark.parametrize('name', sorted(CIFARS))
@pytest.mark.parametrize('is_unpacked', [False, True])
def test_images_and_labels_come_out_as_they_went_in(tmp_path, pictures, name, is_unpacked):
  images, labels = pictures
  write(tmp_path / CIFARS[name].folder if is_unpacked else tmp_path, name, images, labels)
  data_set = data.load(name, data_dir=tmp_path)
  assert (data_set.train.num_examples, data_set.validation.num_examples) == (10, 4)
  assert data_set.image_shape == (32, 32, 3) and data_set.num_classes == CIFARS[name].num_classes
  got_images, got_labels = _run_epoch(data_set.validation, batch_size=3)
  np.testing.assert_array_equal(got_images, images[10:])
  np.testing.assert_array_equal(got_labels, labels[10:])
  got_images, got_labels = _run_epoch(data_set.train, batch_size=4)
  num_files = len(CIFARS[name].train)
  order = [number for file in range(num_files) for number in range(10)[file::num_files]]
  np.testing.assert_array_equal(got_images, images[order])
  np.testing.assert_array_equal(got_labels, labels[order])


def test_damage_is_named_or_left_out(tmp_path, pictures):
  write(tmp_path, 'cifar10', *pictures)
  path = tmp_path / 'data_batch_3.bin'
  content = bytearray(path.read_bytes())
  content[3073] = 10
  path.write_bytes(bytes(content[:-1]))  # Two records: the second is short, and of no class.
  with pytest.raises(UsageError, match='data_batch_3.bin: record 1 at byte 3073: truncated: 3,072'):
    data.load('cifar10', data_dir=tmp_path)
  path.write_bytes(bytes(content))
  with pytest.raises(UsageError, match='data_batch_3.bin: record 1 at byte 3073: the label 10 lies '
                                       'outside 0 to 9'):
    data.load('cifar10', data_dir=tmp_path)
  (tmp_path / 'data_batch_1.bin').write_bytes(b'')
  log = io.StringIO()
  data_set = load_cifar('cifar10', tmp_path, bad_records=BadRecords('skip', log))
  assert data_set.train.num_examples == 7
  assert 'data_batch_1.bin' in log.getvalue() and 'label 10' in log.getvalue()
  order = [1, 6, 2, 3, 8, 4, 9]
  np.testing.assert_array_equal(data_set.train.arrays[0], pictures[0][order])
  for number in range(1, 6):
    (tmp_path / (f'data_batch_{number}.bin')).write_bytes(b'\0' * 3072)
  with pytest.raises(UsageError, match='nothing to read'):
    load_cifar('cifar10', tmp_path, bad_records=BadRecords('skip', log))


def test_missing_files_are_listed(tmp_path):
  with pytest.raises(UsageError, match="'cifar10' needs a data_dir.*data_batch_1.bin"):
    data.load('cifar10')
  (tmp_path / 'train.bin').write_bytes(b'')
  with pytest.raises(UsageError, match='lacks 6 of 6 files: data_batch_1.bin.*It holds train.bin'):
    data.load('cifar10', data_dir=tmp_path)
  with pytest.raises(UsageError, match='lacks 1 of 2 files: test.bin'):
    data.load('cifar100', data_dir=tmp_path)
