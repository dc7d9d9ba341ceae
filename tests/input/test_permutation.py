"""The permutation of an epoch: each number once, uniform, as checkpoints count on."""

import itertools
import math

import numpy as np
import pytest

from towers.input.epoch_order.permutation import permute

EPOCHS = 1000


@pytest.mark.nightly(but=7)
@pytest.mark.parametrize('size', [1, 2, 3, 7, 100, 1000, 60000, 1281167])
def test_each_number_comes_once(size):
  for seed, epoch in ((0, 0), (2 ** 64 + 5, 1), (-1, 10 ** 9)):
    numbers = permute(np.arange(size), size=size, seed=seed, epoch=epoch)
    np.testing.assert_array_equal(np.sort(numbers), np.arange(size))


@pytest.mark.parametrize('size', [7, 10 ** 9, 2 ** 61])
def test_numbers_are_below_any_size(size):
  positions = np.unique(np.linspace(0, size - 1, 500).astype(np.int64))
  for seed, epoch in ((3, 0), (-2 ** 63, 12)):
    numbers = permute(positions, size=size, seed=seed, epoch=epoch)
    assert numbers.min() >= 0 and numbers.max() < size and len(set(numbers)) == len(positions)


def test_the_order_is_what_checkpoints_count_on():
  # A run resumes in it. If it has to change, raise the version in input/epoch_order/order.py.
  assert permute(np.arange(10), size=10, seed=0, epoch=0).tolist() == [9, 6, 5, 1, 3, 2, 0, 4, 8, 7]
  assert permute(np.arange(7), size=7, seed=3, epoch=2).tolist() == [2, 3, 6, 0, 4, 5, 1]
  assert permute([0, 10 ** 9 - 1], size=10 ** 9, seed=-1, epoch=5).tolist() == [
      555623454, 405028142]


@pytest.fixture(scope='module', params=[('epochs', 100), ('seeds', 100), ('epochs', 97)], ids=str)
def orders(request):
  """The orders of many epochs of one seed, or of one epoch by many seeds: `[EPOCHS, size]`."""
  kind, size = request.param
  return np.stack([permute(np.arange(size), size=size,
                           **(dict(seed=7, epoch=number) if kind == 'epochs' else
                              dict(seed=number, epoch=0))) for number in range(EPOCHS)])


def assert_uniform(counts, degrees):
  """Asserts that cells are filled alike: chi-square is within four standard deviations."""
  counts = np.asarray(counts, np.float64)
  chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
  assert abs(chi_square - degrees) < 4 * math.sqrt(2 * degrees), (chi_square, degrees)


@pytest.mark.nightly(but="('epochs', 100)")
def test_each_number_is_at_each_position_equally_often(orders):
  size = orders.shape[1]
  cells = np.arange(size) * size + orders
  # All rows and all columns have the same sums.
  assert_uniform(np.bincount(cells.ravel(), minlength=size ** 2), (size - 1) ** 2)


@pytest.mark.parametrize('apart', [1, 2, 10, 11])
def test_neighbours_differ_by_all_numbers_equally_often(orders, apart):
  # The network takes positions apart into two halves of 10 numbers each.
  size = orders.shape[1]
  differences = (orders[:, apart:] - orders[:, :-apart]) % size
  assert_uniform(np.bincount(differences.ravel(), minlength=size)[1:], size - 2)


def test_an_order_tells_nothing_about_the_next(orders):
  size = orders.shape[1]
  differences = (orders[1:] - orders[:-1]) % size
  assert_uniform(np.bincount(differences.ravel(), minlength=size), size - 1)


def test_seeds_and_epochs_are_not_interchangeable():
  orders = {tuple(permute(np.arange(40), size=40, seed=seed, epoch=epoch))
            for seed, epoch in itertools.product(range(20), range(20))}
  assert len(orders) == 400
