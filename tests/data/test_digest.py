"""The digest tells splits of equal size apart, and no copies of one on two machines."""

import os

import numpy as np
import pytest

from tests.data import pictures
from towers.data.arrays import from_arrays
from towers.data.bad_records import BadRecords
from towers.data.digest import Digest, digest_examples, take_digest
from towers_data.image_folder import load_image_folder
from towers_data.tfrecord_folder import load_tfrecord_folder

IMAGES = np.arange(100 * 6, dtype=np.float32).reshape(100, 6)
LABELS = np.arange(100, dtype=np.int32)
SETTINGS = dict(image_size=8, max_image_pixels=1 << 20)


@pytest.mark.parametrize('change', ['first', 'last', 'dtype', 'shape', 'order'])
def test_other_arrays_of_equal_size_have_another_digest(change):
  images = IMAGES.copy()
  if change in ('first', 'last'):
    images[0 if change == 'first' else -1, 3] += 1
  images = {'dtype': images.astype(np.float64), 'shape': images.reshape(100, 2, 3),
            'order': images[::-1]}.get(change, images)
  expected = digest_examples(from_arrays(IMAGES, LABELS))
  assert digest_examples(from_arrays(IMAGES.copy(), LABELS)) == expected
  assert digest_examples(from_arrays(images, LABELS)) != expected


def test_every_label_counts_and_some_rows_of_more_than_fit():
  images = np.zeros([3000, 100, 100], np.uint8)  # 30 MB.
  before = take_digest(from_arrays(images, np.arange(3000)))
  for label in (1, 1498, 2998):
    labels = np.arange(3000)
    labels[label] += 1
    after = take_digest(from_arrays(images, labels))
    assert before.explain_other(after).endswith('3,000, of other content in array 2 of 2')
  assert Digest.from_array(before.to_array()) == before
  images[-1, -1, -1] = 1
  assert take_digest(from_arrays(images, np.arange(3000))).parts[1] == before.parts[1]
  assert take_digest(from_arrays(images, np.arange(3000))).parts[0] != before.parts[0]


def test_strings_count_by_what_they_say():
  names = [f'name {index}' for index in range(5)]
  expected = digest_examples(from_arrays({'name': names}))
  assert digest_examples(from_arrays({'name': [f'name {index}' for index in range(5)]})) == expected
  assert digest_examples(from_arrays({'name': names[::-1]})) != expected


def write_images(folder, images):
  for split in ('train', 'validation'):
    for label in range(2):
      (folder / split / f'class{label}').mkdir(parents=True)
      for number in range(2):
        path = folder / split / f'class{label}' / f'{number}.jpg'
        path.write_bytes(images[2 * label + number])
        os.utime(str(path), (number, number))


def write_records(folder, images):
  folder.mkdir()
  for split in ('train', 'validation'):
    pictures.write_tfrecords(folder, split, [[0, 1], [1, 0]], images)


@pytest.mark.parametrize('write, load', [
    (write_images, load_image_folder), (write_records, load_tfrecord_folder)])
def test_copies_of_files_are_equal_and_other_files_are_not(write, load, tmp_path):
  images, others = pictures.jpegs(4), pictures.jpegs(4)[::-1]
  digests = []
  for name, content in (('a', images), ('b', images), ('c', others)):
    write(tmp_path / name, content)
    loaded = load(tmp_path / name, bad_records=BadRecords('fail'), **SETTINGS)
    digests.append(digest_examples(loaded.train))
    assert digests[-1].startswith('4 examples, ')
  assert digests[0] == digests[1] != digests[2]


def test_a_file_that_cannot_be_read_ends_no_digest(tmp_path):
  write_images(tmp_path / 'a', pictures.jpegs(4))
  loaded = load_image_folder(tmp_path / 'a', bad_records=BadRecords('fail'), **SETTINGS)
  before = digest_examples(loaded.train)
  (tmp_path / 'a' / 'train' / 'class0' / '0.jpg').unlink()
  assert digest_examples(loaded.train) != before
