"""The front door: names, data_dir, and no TensorFlow before a graph is built."""

import subprocess
import sys

import numpy as np
import pytest

from tests import ROOT
from towers import data
from towers.base.usage_error import UsageError


def test_loading_does_not_import_tensorflow():
  program = ("import sys; from towers import data; data.load('sample'); data.load('synthetic'); "
             "print('tensorflow' in sys.modules)")
  output = subprocess.check_output([sys.executable, '-c', program], cwd=ROOT,
                                   universal_newlines=True)
  assert output == 'False\n'


def test_the_sample_loads_from_any_working_directory(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  data_set = data.load('sample')
  assert (data_set.train.num_examples, data_set.validation.num_examples) == (4000, 1000)
  assert (data_set.image_shape, data_set.num_classes) == ((28, 28, 1), 10)
  assert (data_set.train.name, data_set.validation.name) == ('sample_train', 'sample_validation')


def test_synthetic_is_made_from_the_seed():
  images = [data.load('synthetic', seed=seed).train.arrays[0][:10] for seed in (0, 0, 1)]
  np.testing.assert_array_equal(images[0], images[1])
  assert not np.array_equal(images[0], images[2])


@pytest.mark.parametrize('name, data_dir, words', [
    ('cifar', None, ['data=cifar: choose', 'sample, fashion_mnist, mnist, synthetic']),
    ('mnist', None, ["'mnist'", 'needs a data_dir', 'synthetic need none', 'apt-get install']),
    ('mnist', 'no/folder', ["data_dir 'no/folder' does not exist"]),
    ('sample', 'my/folder', ["'sample'", "'my/folder'", 'leave data_dir out']),
    ('synthetic', 'my/folder', ["'synthetic'", "'my/folder'", 'leave data_dir out'])])
def test_what_a_user_can_get_wrong(name, data_dir, words):
  with pytest.raises(UsageError) as error:
    data.load(name, data_dir=data_dir)
  for word in words:
    assert word in str(error.value)
