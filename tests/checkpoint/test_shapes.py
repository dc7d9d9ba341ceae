"""A run resumes in any shape at any step without losing or repeating an example, or else warns."""

import pytest

from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import Checkpoints
from towers.checkpoint.history import History
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf

# Seven steps an epoch, the last of two examples. Parts of three steps begin all over an epoch.
NUM, BATCH, PART = 50, 8, 3
CHAIN = [dict(mode='split', num_towers=2), dict(mode='shard', num_towers=4, depth=2),
         dict(mode='next', num_towers=3, depth=0, placement='first'),
         dict(mode='shard', num_towers=2, num_workers=2),
         dict(mode='split', num_towers=1, num_workers=3),
         dict(num_towers=2, accumulate=2, placement='balanced'),
         dict(mode='shard', num_towers=3, placement='replicated'),
         dict(num_towers=3, validation_tower=True), dict(mode='shard', num_towers=8)]


def settings_of(**settings):
  return dict(dict(train=small.random_examples(NUM), batch_size=BATCH, shuffle=True,
                   seed=3, average_weights=0.9), **settings)


def checkpoints_of(run, folder, warn=pytest.fail):
  return Checkpoints(str(folder), keep=5, writes=run.program.workers.rank == 0, warn=warn,
                     data=small.data_of(run.program), averages=run.program.averages)


def restore(run, folder, warn=pytest.fail):
  with run.graph.as_default():
    run.opened.resume(checkpoints_of(run, folder, warn))
    run.opened.start()


def train_part(shape, folder, is_first):
  """Trains some steps in a shape from the newest checkpoint on; returns losses and weights."""
  shape = settings_of(**shape)
  if shape.get('num_workers', 1) > 1:
    with InProcessCluster(**shape) as cluster:
      cluster.each(lambda run: restore(run, folder))
      losses = [cluster.train() for _ in range(PART)]
      save(cluster.runs[0], folder)
      return losses, all_weights(cluster.runs[0])
  with small.Run(**shape) as run:
    if not is_first:
      restore(run, folder)
    losses = [run.train() for _ in range(PART)]
    save(run, folder)
    return losses, all_weights(run)


def save(run, folder):
  with run.graph.as_default():
    checkpoints_of(run, folder).save(run.opened.snapshot())


def test_the_other_workers_are_told_what_the_chief_has_restored(tmp_path):
  def resume(run):
    checkpoints, history = checkpoints_of(run, tmp_path, warn=print), History()
    assert run.opened.resume(checkpoints, history) == str(tmp_path / 'model.ckpt-3')
    assert checkpoints.has_saved(3) and not checkpoints.has_saved(2)
    small.assert_same_weights(run.weights(), weights, tolerance=0)
    return run.opened.step, history.format()

  with small.Run(**settings_of()) as run, run.graph.as_default():
    run.train(3)
    weights, history = run.weights(), History()
    history.add(2, dict(loss=0.5))
    checkpoints = checkpoints_of(run, tmp_path)
    checkpoints.write(run.opened.snapshot(), history)
    checkpoints.close()
  with InProcessCluster(**settings_of(num_workers=2)) as cluster:
    assert cluster.each(resume) == [(3, history.format())] * 2
    (tmp_path / 'model.ckpt-3.index').unlink()
    (tmp_path / 'model.ckpt-3.sums').unlink()

    def refuse(run):
      with pytest.raises(UsageError) as error:
        run.opened.resume(checkpoints_of(run, tmp_path, warn=print))
      return str(error.value)

    first, second = cluster.each(refuse)
    assert first.startswith('No checkpoint in') and second == f'The chief restores nothing: {first}'


def all_weights(run):
  """Returns weights, and their averages."""
  return {**run.weights(), **{name + '/average': value for name, value in run.averages().items()}}


@pytest.mark.nightly(but='short')
@pytest.mark.parametrize('chain, optimizer', [
    (CHAIN[::6], 'adam'), (CHAIN, 'adam'), (CHAIN[::-1], 'momentum')],
                         ids=['short', 'long', 'back'])
def test_a_chain_of_shapes_is_one_uninterrupted_tower(chain, optimizer, tmp_path):
  losses, tolerance = [], dict(adam=1e-5, momentum=2e-6)[optimizer]
  for index, shape in enumerate(chain):
    of_part, weights = train_part(dict(shape, optimizer=optimizer), tmp_path, is_first=index == 0)
    losses += of_part
  with small.Run(**settings_of(num_towers=1, optimizer=optimizer)) as one:
    assert losses == pytest.approx([one.train() for _ in losses], abs=tolerance)
    small.assert_same_weights(weights, all_weights(one), tolerance)
    small.assert_moved(one.initial_weights, one.weights())


def write_checkpoint(folder, *, steps, recorded=True, **settings):
  with small.Run(**settings_of(num_towers=1, **settings)) as run, run.graph.as_default():
    run.train(steps)
    if recorded:
      checkpoints_of(run, folder).save(run.opened.snapshot())
    else:
      Checkpoints(str(folder), keep=5).save(run.opened.snapshot())


def warnings_of(folder, **settings):
  """Returns what a run that resumes is warned of, but for data that is not recorded."""
  found = []
  with small.Run(**settings_of(num_towers=2, **settings)) as run, run.graph.as_default():
    assert checkpoints_of(run, folder, found.append).restore(run.session)
  return [text for text in found if 'training data' not in text]


@pytest.mark.nightly
def test_another_order_in_the_middle_of_an_epoch_is_named(tmp_path):
  write_checkpoint(tmp_path, steps=9)
  assert warnings_of(tmp_path) == warnings_of(tmp_path, mode='shard', accumulate=2) == []
  [warning] = warnings_of(tmp_path, seed=4)
  assert 'after 16 of its 50 examples' in warning and 'model.ckpt-9' in warning
  assert 'shuffled with seed=3' in warning and 'this run is shuffled with seed=4' in warning
  assert 'resume with the settings that it was written with' in warning
  [warning] = warnings_of(tmp_path, shuffle=False)
  assert 'this run is not shuffled' in warning
  elements = small.random_examples(NUM)._replace(
      elements=lambda *_: tf.data.Dataset.range(NUM), shuffle_buffer=10)
  [warning] = warnings_of(tmp_path, train=elements)
  assert 'this run is shuffled by a buffer of 10 with seed=3' in warning


def test_a_checkpoint_of_an_earlier_version_is_named_in_the_middle_of_an_epoch(tmp_path):
  write_checkpoint(tmp_path, steps=2, recorded=False)
  [warning] = warnings_of(tmp_path)
  assert 'as those of earlier versions of towers' in warning and '16 of its 50 examples' in warning
  assert 'resume with the version that wrote it until the epoch ends' in warning
  assert warnings_of(tmp_path, shuffle=False) == []


@pytest.mark.nightly(but='True')
@pytest.mark.parametrize('recorded', [True, False])
def test_at_the_start_of_an_epoch_any_order_takes_each_example_once(recorded, tmp_path):
  write_checkpoint(tmp_path, steps=7, recorded=recorded)
  assert warnings_of(tmp_path, seed=4) == warnings_of(tmp_path, shuffle=False) == []


def test_a_later_version_of_the_permutation_is_another_order():
  order = build_inputs(
      small.id_examples(10), plan=build_plan(num_examples=10, batch_size=2, num_towers=1),
      shuffle=True, seed=-1).order
  assert type(order).from_array(order.to_array()) == order
  assert not order.is_same(order._replace(version=order.version + 1))
  assert order._replace(seed=None).is_same(order._replace(seed=None, version=99))
