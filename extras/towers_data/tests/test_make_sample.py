"""The sample: balanced, in no order by class, and what the script makes of the full set."""

import os

import numpy as np
import pytest

from tests import ROOT
from towers import extras
from towers_data.idx.idx_file import read_idx
from towers_data.idx.idx_folder import DEBIAN_FASHION_MNIST_DIR, load_idx_folder
from towers_data.idx.make_sample import choose, write_idx

_SAMPLE_DIR = os.path.join(ROOT, 'towers', 'data', 'fashion_mnist_sample')
_NAMES = ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz', 't10k-images-idx3-ubyte.gz',
          't10k-labels-idx1-ubyte.gz')


def run(arguments):
  return extras.run('python -m towers make_sample', arguments)


def test_the_sample_is_balanced_and_in_no_order_by_class():
  sample = load_idx_folder(_SAMPLE_DIR)
  for examples, num_per_class in ((sample.train, 400), (sample.validation, 100)):
    labels = examples.arrays[1]
    np.testing.assert_array_equal(np.bincount(labels), [num_per_class] * 10)
    # Of shuffled labels one in ten equals the one before it; of sorted ones nearly all do.
    assert 0.05 < np.mean(labels[1:] == labels[:-1]) < 0.15
    for batch in np.split(labels, 10):
      assert len(np.unique(batch)) == 10


def test_the_sample_is_small_and_bears_its_licence():
  assert sum(os.path.getsize(os.path.join(_SAMPLE_DIR, name)) for name in _NAMES) < 2.5e6
  with open(os.path.join(_SAMPLE_DIR, 'LICENSE')) as file:
    notice = file.read()
  assert 'MIT License' in notice and 'Copyright (c) 2017 Zalando SE' in notice


def test_chosen_are_the_first_of_each_class_shuffled_the_same_every_time():
  labels = np.random.RandomState(3).permutation(np.repeat(np.arange(10), 50))
  chosen = choose(labels, 7)
  for label in range(10):
    np.testing.assert_array_equal(np.sort(chosen[labels[chosen] == label]),
                                  np.flatnonzero(labels == label)[:7])
  assert len(chosen) == 70
  np.testing.assert_array_equal(choose(labels, 7), chosen)
  assert list(chosen) != sorted(chosen)


@pytest.mark.skipif(
    not os.path.isdir(DEBIAN_FASHION_MNIST_DIR),
    reason='the full Fashion-MNIST (Debian: dataset-fashion-mnist) is not installed')
def test_the_script_reproduces_the_sample_from_the_full_set(tmp_path):
  assert run(['--data_dir=' + DEBIAN_FASHION_MNIST_DIR, f"--output_dir={tmp_path / 'made'}"]) == 0
  assert sorted(os.listdir(str(tmp_path / 'made'))) == sorted(_NAMES)
  for name in _NAMES:
    # Unpacked, since another zlib may pack the same content in other bytes.
    made, committed = read_idx(tmp_path / 'made' / name), read_idx(os.path.join(_SAMPLE_DIR, name))
    assert made.dtype == committed.dtype
    np.testing.assert_array_equal(made, committed)


def test_a_set_that_is_too_small_or_missing_ends_with_a_message(tmp_path, capsys):
  assert run([f"--data_dir={tmp_path / 'none'}", f'--output_dir={tmp_path}']) == 2
  assert 'No such file' in capsys.readouterr().err
  for split, num_per_class in (('train', 400), ('t10k', 100)):
    labels = np.repeat(np.arange(10, dtype=np.uint8), num_per_class)[:-1]
    write_idx(tmp_path / (split + '-labels-idx1-ubyte.gz'), labels)
    write_idx(tmp_path / (split + '-images-idx3-ubyte.gz'), np.zeros([len(labels), 2, 2], np.uint8))
  assert run([f'--data_dir={tmp_path}', f'--output_dir={tmp_path}']) == 2
  assert 'has 399 examples of class 9, and the sample takes 400' in capsys.readouterr().err
