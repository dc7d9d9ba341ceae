"""A folder of class folders: classes in the order of their names, images in the order of theirs."""

import numpy as np
import pytest

from tests.data.pictures import jpegs, picture, take
from tests.harness import faults
from towers import data
from towers.base.usage_error import UsageError
from towers_data.png import encode_png

CLASSES = ('ant', 'bee', 'cow')


def write(folder, validation='validation', per_class=(3, 1)):
  images = jpegs(12)
  for split, begin, count in (('train', 0, per_class[0]), (validation, 9, per_class[1])):
    for number, name in enumerate(CLASSES):
      (folder / split / name).mkdir(parents=True)
      for image in range(count):
        (folder / split / name / (f'{image}.JPG')).write_bytes(images[begin + number * count +
                                                                      image])
  return folder


@pytest.mark.nightly(but='val')
@pytest.mark.parametrize('validation', ['validation', 'val', 'test'])
def test_both_splits_are_found(tmp_path, validation):
  write(tmp_path, validation)
  (tmp_path / 'train' / 'bee' / '9.png').write_bytes(encode_png(picture(11)))
  (tmp_path / 'train' / 'bee' / 'notes.txt').write_bytes(b'no image')
  (tmp_path / 'train' / 'bee' / '._0.jpg').write_bytes(b'what some archives leave')
  data_set = data.load('images', data_dir=tmp_path, image_size=16)
  assert (data_set.train.num_examples, data_set.validation.num_examples) == (10, 3)
  assert data_set.image_shape == (16, 16, 3) and data_set.num_classes == 3
  taken = take(data_set.train, batch_size=1)
  assert [list(step) for step in taken] == [[0]] * 3 + [[1]] * 4 + [[2]] * 3
  blue = [float(image[..., 2].mean()) for step in taken for image in step.values()]
  np.testing.assert_allclose(blue,
                             [number * 37 % 256 for number in (0, 1, 2, 3, 4, 5, 11, 6, 7, 8)],
                             atol=3)
  assert data.load('images', data_dir=tmp_path).image_shape == (224, 224, 3)


@pytest.mark.nightly
@pytest.mark.parametrize('augment', ['cifar', pytest.param('imagenet', marks=pytest.mark.nightly)])
def test_training_is_augmented_and_validation_never(tmp_path, augment):
  write(tmp_path)
  plain, augmented = (data.load('images', data_dir=tmp_path, image_size=16, augment=kind)
                      for kind in ('none', augment))
  for split, is_augmented in (('train', True), ('validation', False)):
    # One example a step, since labels are no numbers of examples here.
    left, right = (take(getattr(data_set, split), batch_size=1) for data_set in (plain, augmented))
    differs = [(ours[label] != theirs[label]).any()
               for ours, theirs in zip(left, right) for label in ours]
    assert any(differs) == is_augmented


def test_an_image_that_is_no_file_is_told(tmp_path, capsys):
  write(tmp_path)
  faults.be_special(tmp_path / 'train' / 'ant' / '9.jpg', 'a FIFO')
  faults.be_special(tmp_path / 'train' / 'bee' / '9.jpg', 'a link')
  data_set = data.load('images', data_dir=tmp_path, image_size=16, on_bad_record='skip')
  assert sum(map(len, take(data_set.train, batch_size=1))) == 9
  told = capsys.readouterr().err
  assert 'ant/9.jpg: record 0 at byte 0: cannot be read: it is a FIFO, not a file' in told
  assert 'bee/9.jpg: record 0 at byte 0: cannot be read: No such file' in told


def test_what_is_missing_is_named(tmp_path):
  with pytest.raises(UsageError, match="data_dir.*'images' needs a folder|needs a data_dir"):
    data.load('images')
  with pytest.raises(UsageError, match='does not exist'):
    data.load('images', data_dir=tmp_path / 'none')
  (tmp_path / 'train').mkdir()
  with pytest.raises(UsageError, match=r'lacks the folder validation \(or val, or test\).*holds '
                                       r'train/'):
    data.load('images', data_dir=tmp_path)
  (tmp_path / 'val' / 'dog').mkdir(parents=True)
  with pytest.raises(UsageError, match='val: the classes dog have no folder in train'):
    data.load('images', data_dir=tmp_path)
  (tmp_path / 'train' / 'dog').mkdir()
  with pytest.raises(UsageError, match='dog: no JPEG or PNG.*holds nothing'):
    data.load('images', data_dir=tmp_path)
  (tmp_path / 'train' / 'dog' / '1.jpg').write_bytes(b'')
  with pytest.raises(UsageError, match='val: no folder of a class with JPEGs'):
    data.load('images', data_dir=tmp_path)
