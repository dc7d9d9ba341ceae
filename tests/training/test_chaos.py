"""The judge of `python -m tests.chaos` sees what a run lost, and its dice fall alike for a seed."""

import numpy as np
import pytest

from tests.chaos import judge
from tests.chaos.chain import draw_chain
from tests.chaos.disk import Disk
from tests.chaos.team import Lost

# Examples of two steps on two towers, a validation between them, and its loss.
NOTES = [['train', '0', 'tower_0', '3', '1'], ['train', '0', 'tower_1', '2', '0'],
         ['loss', '1', (0.5).hex()],
         ['validate', '1', 'tower_0', *map(str, range(1001, 1032))],
         ['train', '1', 'tower_0', '5', '4'], ['train', '1', 'tower_1', '6'],
         ['loss', '2', (0.25).hex()]]


def read(notes, *others):
  return judge.read_life([notes, *others], is_whole=True)


def outcome(lives, expected=None, weight=1.0, rows=({'step': 1, 'loss': 0.5},), is_exact=True):
  return judge.join_lives(lives, {'weight': np.array([weight])}, list(rows), expected=expected,
                          is_exact=is_exact)


def changed(index, words):
  return [*NOTES[:index], words, *NOTES[index + 1:]]


def test_the_judge_accepts_lives_that_together_are_one():
  expected = outcome([read(NOTES)])
  assert expected.taken == {1: [1, 2, 3], 2: [4, 5, 6]} and expected.losses == {1: 0.5, 2: 0.25}
  # The first life was killed in its second step; another worker had a part of it.
  first = judge.read_life([NOTES[:5]], is_whole=False)
  second = read(NOTES[4:5] + NOTES[6:], [NOTES[5]])
  found = outcome([first, second], expected)
  judge.compare(found, expected, is_exact=True, history=True)
  judge.compare(found._replace(validations=[]), expected, is_exact=True, history=False)


@pytest.mark.parametrize('notes, changes', [
    *[(notes, {}) for notes in (
        changed(0, ['train', '0', 'tower_0', '3']),            # An example is left out,
        changed(0, ['train', '0', 'tower_0', '3', '1', '2']),  # is taken twice,
        changed(4, ['train', '1', 'tower_0', '5', '7']),       # or in place of another.
        changed(2, ['loss', '1', (0.5 + 1e-5).hex()]),
        changed(3, ['validate', '1', 'tower_0', *map(str, range(1001, 1031))]),
        changed(3, ['validate', '1', 'tower_0', '1001', *map(str, range(1001, 1032))]),
        NOTES[:4])],                                           # The last step is missing.
    *[(NOTES, changes) for changes in (
        dict(weight=1 + 1e-5), dict(rows=[]), dict(rows=[{'step': 1, 'loss': 0.6}]),
        dict(rows=[{'step': 1, 'loss': 0.5}] * 2), dict(weight=float('nan')))]])
def test_the_judge_sees_every_example_loss_and_weight_and_the_history(notes, changes):
  expected = outcome([read(NOTES)])
  with pytest.raises(Lost):
    judge.compare(outcome([read(notes)], expected, is_exact=False, **changes), expected,
                  is_exact=False, history=True)


def test_the_same_seed_draws_the_same_faults():
  chains = [draw_chain(3, index, most_lives=4) for index in range(40)]
  assert chains == [draw_chain(3, index, most_lives=4) for index in range(40)]
  assert chains != [draw_chain(4, index, most_lives=4) for index in range(40)]
  assert {chain.shape is None for chain in chains} == {True, False}
  assert all(not chain.lives[-1].faults for chain in chains)


@pytest.mark.nightly
def test_a_disk_can_be_full_for_a_while(tmp_path):
  with Disk(str(tmp_path)) as disk:
    if not disk.is_mounted:
      pytest.skip('no file system can be mounted')
    with disk.full(), pytest.raises(OSError):
      (tmp_path / 'file').write_bytes(bytes(100))
    (tmp_path / 'file').write_bytes(bytes(100))
