"""Convergence: the benchmark runs small, and several towers follow the curve of one."""

import json
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np

from benchmarks import convergence
from benchmarks.harness.colour_fashion import colour


def test_colour_hides_neither_garment_nor_class_and_repeats():
  grey = np.zeros([20, 28, 28, 1], np.uint8)
  grey[:, 10:18, 10:18] = 255
  images = colour(grey, seed=3)
  assert images.shape == (20, 32, 32, 3) and images.dtype == np.uint8
  np.testing.assert_array_equal(images, colour(grey, seed=3))
  assert (images != colour(grey, seed=4)).any()
  # The garment is one colour, another in every image, and the background is not.
  squares = images[:, 14:18, 14:18].reshape(20, -1, 3)
  assert (squares == squares[:, :1]).all() and len({tuple(square[0]) for square in squares}) == 20
  assert images[:, :8].std((1, 2)).min() > 1


def test_several_towers_lie_on_the_curve_of_one(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', [
      'convergence', '--num_train=96', '--num_validation=30', '--batch_size=32', '--towers=1,2',
      '--epochs=2', '--measure_every=2', '--model=linear', f"--output={tmp_path / 'curves'}"])
  convergence.main()
  assert 'farthest' in capsys.readouterr().out
  with open(str(tmp_path / 'curves.json')) as file:
    one, two, noisy = json.load(file)['curves']
  assert [curve['name'] for curve in (one, two, noisy)] == ['1', '2', '1 + noise']
  assert one['steps'] == two['steps'] == [2, 4, 6]
  np.testing.assert_allclose(one['loss'], two['loss'], rtol=1e-4)
  np.testing.assert_allclose(one['loss'], noisy['loss'], rtol=1e-4)
  assert one['loss'] != noisy['loss']
  np.testing.assert_allclose(one['accuracy'], two['accuracy'], atol=1 / 30 + 1e-6)
  picture = ElementTree.parse(str(tmp_path / 'curves.svg')).getroot()
  assert len(picture.findall('.//{http://www.w3.org/2000/svg}polyline')) == 3
