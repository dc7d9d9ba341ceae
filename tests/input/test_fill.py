"""The row of a tower without an example is an example of another tower."""

import pytest

from tests.harness import small
from tests.harness.sounds import MOST, sounds
from tests.harness.taking import take
from towers.data.composite import decode_batch
from towers.tensorflow_v1 import tf


def take_lists(examples, **settings):
  """Returns for each step each tower's examples as tuples, and how many of them count."""
  def read(tensors):
    tensors = decode_batch(tensors)
    return {**tensors, 'symbols': tf.sparse.to_dense(tensors['symbols'], -1)}

  return [[(_list(batch), count) for batch, count in by_tower]
          for by_tower in take(examples, read=read, **settings)]


def _list(batch):
  frames, lengths = batch['sound']
  assert frames.shape[1] > 0  # Few kernels take size 0.
  return [(picture, frames[:length].tolist(), length, symbols.tolist())
          for picture, frames, length, symbols in zip(batch['picture'], frames, lengths,
                                                      batch['symbols'])]


FILLED = [('split', 3, 17, 'keep', None), ('next', 8, 19, 'pad', None),
          ('shard', 3, 18, 'keep', [0, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
          ('shard', 4, 17, 'keep', None), ('shard', 8, 19, 'pad', None),
          ('next', 2, 17, 'keep', None), ('split', 8, 17, 'pad', [1, 2, 4, 16]),
          ('next', 3, 16, 'keep', [0, 1, 2, 11, 12, 13, 14])]


@pytest.mark.nightly(but='split-3-17-keep-None')
@pytest.mark.parametrize('mode, num_towers, num_examples, last_batch, bad', FILLED)
def test_an_empty_tower_has_an_example_of_another(mode, num_towers, num_examples, last_batch, bad):
  steps = take_lists(sounds(num_examples, bad=bad), mode=mode, num_towers=num_towers, num_steps=3,
                     last_batch=last_batch)
  filled = [(rows, sum((rows[:count] for rows, count in by_tower), []))
            for by_tower in steps for rows, count in by_tower if not count]
  assert any(real for _, real in filled)
  for rows, real in filled:
    assert len(rows) == 1 and (rows[0] in real or not real)


@pytest.mark.parametrize('mode', small.nightly_but(['shard'], small.MODES))
def test_a_worker_without_an_example_has_a_row_of_zeros(mode):
  # The second step has one example for both workers.
  _, by_tower = take_lists(sounds(9), mode=mode, num_towers=2, num_steps=2, num_workers=2, rank=1)
  assert by_tower == [([(b'', [], 0, [-1] * MOST)], 0)] * 2
