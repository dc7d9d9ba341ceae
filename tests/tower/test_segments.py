"""Segments: a plan of cuts keeps little, and every segment has something to compute again."""

import numpy as np
import pytest

from towers.tower.recomputing.segments import Activation, Cutter, estimate_peak, find_segment


def in_a_row(count, num_bytes=10):
  return [Activation(index, index + 1, num_bytes, True) for index in range(count)]


@pytest.mark.parametrize('count', [9, 50, 400])
def test_of_equal_layers_in_a_row_about_two_roots_are_left(count):
  activations = in_a_row(count)
  assert estimate_peak(activations, []) == 10 * count
  peak = estimate_peak(activations, Cutter(activations).cut_best())
  assert peak <= 1.15 * 2 * 10 * np.sqrt(count)


def test_a_cut_avoids_what_is_taken_far_behind_it():
  # Blocks of four, each with an input that its last op takes.
  activations = [Activation(index, index + (4 if index % 4 == 0 else 1), 10, True)
                 for index in range(40)]
  cutter = Cutter(activations)
  for number in (2, 5, 10):
    for cut in cutter.cut(number):
      assert cut % 4 == 0


def test_what_cannot_be_computed_again_is_kept_and_what_is_not_read_costs_nothing():
  fixed = [activation._replace(is_fixed=True) for activation in in_a_row(20)]
  assert Cutter(fixed).cut_best() == [] and Cutter(fixed).most == 0
  assert estimate_peak(fixed, [10]) == 200
  unread = [activation._replace(is_read=False) for activation in in_a_row(20)]
  assert estimate_peak(unread, []) == 0


@pytest.mark.parametrize('seed', range(5))
def test_there_are_as_many_segments_as_asked_for(seed):
  random = np.random.RandomState(seed)
  begins = np.sort(random.randint(60, size=40))
  activations = [Activation(int(begin), int(begin + random.randint(9)), int(random.randint(1000)),
                            bool(random.randint(4)), not random.randint(5)) for begin in begins]
  cutter = Cutter(activations)
  for number in range(2, cutter.most + 1):
    cuts = cutter.cut(number)
    assert len(set(cuts)) == number - 1 and cuts == sorted(cuts)
    filled = {find_segment(activation.begin, cuts) for activation in activations
              if activation.is_read and not activation.is_fixed}
    assert filled == set(range(number))
  best = estimate_peak(activations, Cutter(activations).cut_best())
  assert best <= estimate_peak(activations, [])
