"""The law: models of public repositories and scripts, untouched, are one tower on N towers.

They are equal to 1e-5, or to twice what the last bits of the inputs change on one tower.
"""

import pickle
import sys

import numpy as np
import pytest

import towers
from tests.gallery.field.training import ALL, NUM_STEPS, build, floor, train
from tests.gallery.training import Trained, largest_difference
from tests.harness import small
from tests.harness.processes import output_of
from towers.tensorflow_v1 import tf

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.parametrize('name', ALL)
def test_a_repository_trains_on_towers_as_on_one(name):
  one = train(name, 1)
  assert np.ptp(one.losses) > 1e-4
  allowed = max(1e-5, 2 * floor(name, one))
  for num_towers in (2, 3):
    assert largest_difference(one, train(name, num_towers)) <= allowed


MODES = [dict(tower_build='clone'), dict(input_mode='shard'),
         dict(input_mode='next', variables='replicated')]


@pytest.mark.parametrize('name', ALL)
def test_a_repository_is_one_tower_in_other_modes(name):
  one = train(name, 1)
  allowed = max(1e-5, 2 * floor(name, one))
  for settings in MODES:
    assert largest_difference(one, train(name, 2, **settings)) <= allowed, settings


@pytest.mark.parametrize('name', [
    name for name, repository in ALL.items() if 'last_batch' not in repository.settings])
@pytest.mark.parametrize('settings', [dict(last_batch='carry'), dict(last_batch='drop')], ids=str)
def test_a_repository_is_one_tower_with_batches_of_one_size(name, settings):
  one, three = [train(name, num_towers, **settings) for num_towers in (1, 3)]
  allowed = max(1e-5, 2 * floor(name, one, **settings))
  assert largest_difference(one, three) <= allowed


@pytest.mark.parametrize('name', ALL)
def test_a_repository_is_one_tower_on_two_workers(name, tmp_path):
  one, path = train(name, 1), tmp_path / 'trained'
  output_of('-m', 'towers', 'launch', '--workers=2', '--restarts=0', '--', sys.executable, '-m',
            'tests.gallery.field.worker', name, str(path), timeout=600)
  two = Trained(*pickle.loads(path.read_bytes()))
  assert largest_difference(one, two) <= max(1e-5, 2 * floor(name, one))


def go_on(name, num_towers, *, num_steps, folder):
  """Trains from the checkpoint in a folder, if any, and saves; returns what `train` does."""
  with tf.Graph().as_default():
    validation = towers.from_arrays(*ALL[name].arrays(), name='validation')
    program = build(name, num_towers, validation=validation)
    with program.session() as session:
      if list(folder.iterdir()):
        session.restore(str(folder))
      for _ in range(num_steps):
        session.train()
      session.save(str(folder))
      measured = session.validate()
      again = session.evaluate(validation)
      assert list(again) == list(measured)
      np.testing.assert_allclose(list(again.values()), list(measured.values()), rtol=1e-4)
      return Trained([measured['loss']], {}, small.read_variables(program, session))


# What samplers of candidates draw is not kept.
@pytest.mark.parametrize('name', [name for name in ALL if name != 'bilm'])
def test_a_repository_goes_on_and_validates_on_another_number_of_towers(name, tmp_path):
  alone, towers_folder = tmp_path / 'alone', tmp_path / 'towers'
  alone.mkdir()
  towers_folder.mkdir()
  one = go_on(name, 1, num_steps=NUM_STEPS, folder=alone)
  go_on(name, 2, num_steps=2, folder=towers_folder)
  other = go_on(name, 3, num_steps=NUM_STEPS - 2, folder=towers_folder)
  assert largest_difference(one, other) <= max(1e-5, 2 * floor(name, train(name, 1)))
