"""A run goes on with another batch size: its step, slots, averages, history, best and examples."""

import collections

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.covering import cover
from tests.input.test_batch_sizes import check_epochs, note
from tests.training import test_train
from towers.data.examples import Buckets
from towers.input.plan import LAST_BATCHES
from towers.tensorflow_v1 import tf

NUM = 53
# Batch size and steps: mid-epoch, over several epochs, all of an epoch, and back.
CHAIN = [(16, 5), (10, 4), (24, 1), (53, 2), (12, 7), (16, 4)]
SHAPES = [dict(num_towers=1), dict(num_towers=3, input_mode='shard', staging_depth=2),
          dict(num_towers=2, input_mode='next', staging_depth=0), dict(num_towers=2, accumulate=2),
          dict(num_towers=3, variables='replicated', input_mode='next'),
          dict(num_towers=2, input_mode='shard')]


def train_part(folder, batch_size, num_steps, buckets=None, **settings):
  """Trains some steps from the newest checkpoint on; returns what each took, and their plan."""
  taken = []

  def model(batch, is_training):
    recorded = tf.py_func(lambda ids: [taken[-1].extend(ids.astype(int)), ids][1], [batch[0]],
                          tf.float32)
    with tf.control_dependencies([recorded]):
      return tf.square(tf.get_variable('weight', []) - batch[0] / NUM)

  program = small.program(
      model, validation=None, batch_size=batch_size, shuffle=True, average_weights=0.9,
      train=towers.from_arrays((np.arange(NUM, dtype=np.float32),))._replace(buckets=buckets),
      optimizer=towers.Every(3, tf.train.AdamOptimizer(0.01)), **settings)
  with program.session() as session:
    if folder.exists():
      session.restore(str(folder))
    before = small.read_variables(program, session)
    for _ in range(num_steps):
      taken.append([])
      session.train()
    session.save(str(folder))
    return taken, session.plan, before, small.read_variables(program, session)


# Chains of batch sizes from each place on, shapes from each on, what becomes of the last batch, and
# whether an epoch is sorted by length.
AXES = dict(first=[0, 1, 3], shape=range(len(SHAPES)), last_batch=LAST_BATCHES,
            kind=['plain', 'sorted'])
POINTS = {(point['first'], point['shape'], point['last_batch'], point['kind'])
          for point in cover(AXES, strength=2)}


@pytest.mark.nightly(but=['0-1-keep-plain', '0-0-drop-plain', '0-3-keep-sorted'])
@pytest.mark.timeout(120)
@pytest.mark.parametrize('first, shape, last_batch, kind', sorted({
    *POINTS, (0, 1, 'keep', 'plain'), (0, 0, 'drop', 'plain'), (0, 3, 'keep', 'sorted')} - {
        point for point in POINTS if point[2:] == ('carry', 'sorted')}))
def test_a_chain_of_batch_sizes_takes_each_example_once(first, shape, last_batch, kind, tmp_path):
  buckets = Buckets(np.arange(NUM) * 7 % 11, 2) if kind == 'sorted' else None
  taken, kept = collections.defaultdict(list), None
  for index in range(4):
    batch_size, num_steps = CHAIN[(first + index) % len(CHAIN)]
    settings = dict(SHAPES[(shape + index) % len(SHAPES)], last_batch=last_batch)
    if batch_size % settings.get('accumulate', 1):
      settings.pop('accumulate')
    of_part, plan, before, after = train_part(tmp_path / 'run', batch_size, num_steps, buckets,
                                              **settings)
    assert all(np.array_equal(before[name], value) for name, value in (kept or {}).items())
    kept = after
    first_step = int(before['global_step'])
    for step, ids in enumerate(of_part, first_step):
      expected = plan.indices_at(step, seed=0, buckets=buckets).tolist()
      # Rows that fill a batch up do not count.
      assert (set(ids) == set(expected) if last_batch == 'pad' else sorted(ids) == sorted(expected))
      note(taken, plan, step, expected)
    assert after['global_step'] == first_step + num_steps
    assert after['examples_seen'] == sum(map(len, taken.values()))
  check_epochs(taken, NUM, dict.fromkeys(taken, NUM - 1 if last_batch == 'drop' else 0))


def build(batch_size, **settings):
  return small.program(**dict(dict(
      train=small.random_examples(100), batch_size=batch_size, shuffle=True,
      optimizer=tf.train.AdamOptimizer(0.01)), **settings))


def test_a_run_keeps_its_history_and_ends_with_its_epochs(tmp_path, capsys):
  folder, recorder = str(tmp_path), small.Recorder()

  def train(batch_size, **settings):
    result = towers.train(build(batch_size), checkpoint_dir=folder, best_metric='loss',
                          callbacks=[recorder], **settings)
    return result, capsys.readouterr().out

  train(10, steps=13)
  assert [step for step, _ in recorder.validations] == [10, 13]
  # 70 are left of the second epoch: 3 steps of 20 and 10, which end in the third.
  result, shown = train(20, epochs=4)
  assert result['global_step'] == 13 + 4 + 2 * 5 and result['examples_seen'] == 130 + 14 * 20
  assert shown.count('batch_size was 10 up to step 13 and is now 20: epoch 2 goes on behind the '
                     '130 examples seen, each once') == 1
  assert 'gets 2 times the examples' in shown
  assert [step for step, _ in recorder.validations] == [10, 13, 17, 22, 27]
  history = towers.checkpoint.history.History(metric='loss')
  history.read(folder, 27)
  assert all(history.has_validated(step) for step in (22, 27))
  best = min(recorder.validations, key=lambda pair: pair[1]['loss'])[0]
  assert history.best_first()[0] == best
  result, shown = train(20, epochs=5)
  assert result['global_step'] == 32 and result['examples_seen'] == 130 + 19 * 20
  assert 'batch_size was' not in shown


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_workers_go_on_with_another_batch_size_as_one_does(tmp_path):
  script = test_train.SCRIPT.replace('CALLBACKS', '[]').replace(
      'epochs=6', 'steps=int(sys.argv[4])').replace('batch_size=8', 'batch_size=int(sys.argv[5])')
  for workers in (1, 2):
    for steps, batch_size in ((10, 8), (15, 12), (19, 7)):
      done = test_train.run(script, tmp_path / str(workers), tmp_path / 'result.json',
                            tmp_path / 'report.html', steps, batch_size, workers=workers)
      assert done.returncode == 0, done.stdout + done.stderr
  one, two = small.read_checkpoint(tmp_path / '1'), small.read_checkpoint(tmp_path / '2')
  assert one['global_step'] == two['global_step'] == 19
  small.assert_same_weights(one, two)
