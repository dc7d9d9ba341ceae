"""Summaries: what TensorBoard reads, on N towers, after a kill, a rewind, and on a full disk."""

import contextlib
import errno
import importlib
import importlib.util
import os

import numpy as np
import pytest

import main
import towers
from tests.harness import faults, small
from towers import data, models
from towers.placement.counters import get_examples_seen
from towers.reduce.clip import build_gradient_norm
from towers.reduce.gradients import ReducedGradients
from towers.tensorflow_v1 import tf
from towers.training.reporting.summaries import Summaries
from towers.training_graph import TrainingGraph

# These depend on the clock.
TIMED = ('train/examples_per_second', 'train/input_wait')


def read(folder):
  """Returns (tag, step, value) of all points in a folder, as TensorBoard reads them."""
  points = []
  for name in sorted(os.listdir(str(folder))):
    for event in tf.train.summary_iterator(os.path.join(str(folder), name)):
      if event.HasField('session_log') and event.session_log.status == tf.SessionLog.START:
        points = [point for point in points if point[1] < event.step]
      for value in event.summary.value:
        if value.HasField('simple_value'):
          points.append((value.tag, event.step, value.simple_value))
  return points


def exact(points):
  return [point for point in points if point[0] not in TIMED]


def sinking_rate(plan):
  return 1 / (10 + tf.cast(get_examples_seen(), tf.float32))


def train(summary_dir=None, kill_after=None, callbacks=(), settings=(), **run):
  """Trains the small program with curves, in which a run may be killed."""
  kills = [small.killing(kill_after)] if kill_after else []
  with contextlib.suppress(small.Killed):
    towers.train(small.program(**dict(settings)), summary_dir=summary_dir and str(summary_dir),
                 callbacks=[*callbacks, *kills], **dict(small.CURVES, **run))


@pytest.fixture(scope='module')
def one(tmp_path_factory):
  """The points of one tower."""
  folder = tmp_path_factory.mktemp('one')
  train(folder, settings=dict(num_towers=1, staging_depth=0))
  return read(folder)


@pytest.mark.nightly(but='3-1-split')
@pytest.mark.parametrize('mode', small.MODES)
@pytest.mark.parametrize('num_towers, depth', [(3, 1), (2, 2), (3, 0), (4, 1), (8, 1)])
def test_one_set_of_tags_and_the_numbers_of_one_tower(tmp_path, one, mode, num_towers, depth):
  train(tmp_path, settings=dict(input_mode=mode, num_towers=num_towers, staging_depth=depth))
  many = read(tmp_path)
  assert [point[:2] for point in exact(many)] == [point[:2] for point in exact(one)]
  assert {tag for tag, _, _ in many} == {
      'train/loss', 'train/learning_rate', 'train/gradient_norm', 'train/examples_per_second',
      'train/input_wait', 'train/accuracy', 'validation/loss', 'validation/accuracy'}
  assert [step for tag, step, _ in many if tag == 'train/loss'] == [3, 6, 9, 12]
  assert [step for tag, step, _ in many if tag == 'validation/loss'] == [5, 10, 12]
  np.testing.assert_allclose([point[2] for point in exact(many)],
                             [point[2] for point in exact(one)], atol=1e-5)


@pytest.mark.nightly(but='settings2')
@pytest.mark.parametrize('settings', [
    {}, dict(clip_norm=0.1), dict(accumulate=2), dict(weight_decay=0.1)])
def test_the_norm_is_that_of_the_averaged_gradients_before_they_are_clipped(settings, tmp_path):
  train(tmp_path, settings=settings, summary_every='1steps', steps=1)
  with small.Run(num_towers=1, optimizer='sgd', learning_rate=1.0) as run:
    run.train()
    expected = np.sqrt(sum(np.sum((weights - run.initial_weights[name]) ** 2)
                           for name, weights in run.weights().items()))
  [found] = [value for tag, _, value in read(tmp_path) if tag == 'train/gradient_norm']
  assert found == pytest.approx(expected, rel=1e-5) and expected > 0.1


def test_the_norm_of_sparse_gradients_is_that_of_the_dense_ones():
  with tf.Graph().as_default(), tf.Session() as session:
    gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([4, 4]),
                                dense_shape=tf.constant([9, 1]))
    reduced = ReducedGradients(
        [], 1, None, [(gradient, tf.get_variable('rows', [9, 1]))], [], [])
    assert session.run(build_gradient_norm(reduced)) == pytest.approx(3.0)


class Looks(towers.Callback):
  """Keeps what it sees after each step."""

  def __init__(self, look):
    self.look, self.seen = look, []

  def on_step(self, run):
    self.seen.append(self.look(run))


def falling(rate):
  return tf.train.AdamOptimizer(tf.train.exponential_decay(
      rate, tf.train.get_or_create_global_step(), 3, 0.9))


@pytest.mark.parametrize('settings, names', [
    (dict(learning_rate=sinking_rate, optimizer=lambda rate: tf.train.MomentumOptimizer(rate, 0.9)),
     ['learning_rate']),
    (dict(learning_rate=0.1, optimizer=falling), ['learning_rate']),
    (dict(learning_rate=sinking_rate, optimizer={'hidden/': falling, '': tf.train.AdamOptimizer}),
     ['learning_rate/hidden', 'learning_rate'])], ids=['given', 'own', 'groups'])
def test_only_sampled_steps_compute_the_norm_and_samples_have_their_rates(
    settings, names, tmp_path, monkeypatch):
  calls, build_norm = [], TrainingGraph.build_gradient_norm

  def build_counted(program):
    build_norm(program)
    program.gradient_norm = tf.py_func(
        lambda norm: calls.append(None) or norm, [program.gradient_norm], tf.float32)

  monkeypatch.setattr(TrainingGraph, 'build_gradient_norm', build_counted)
  looks = Looks(lambda run: run.session.learning_rates())  # Those of the next step.
  train(tmp_path, callbacks=[looks], settings=settings)
  assert len(calls) == 4
  rates = {(tag[len('train/'):], step): value for tag, step, value in read(tmp_path)
           if tag.startswith('train/learning_rate')}
  assert rates == {(name, step): pytest.approx(seen) for step in (3, 6, 9, 12)
                   for name, seen in looks.seen[step - 2].items()}
  assert set(looks.seen[0]) == set(names)
  assert len(rates) == len(set(rates.values())) == 4 * len(names)


def test_without_curves_no_step_computes_the_norm():
  looks = Looks(lambda run: (run.program.gradient_norm, run.session.calls.update, [
      op.name for op in run.program.graph.get_operations() if 'gradient_norm' in op.name]))
  train(callbacks=[looks])
  assert looks.seen == [(None, None, [])] * 12


@pytest.fixture(scope='module', params=[False, True], ids=['switch', 'tower'])
def whole(request, tmp_path_factory):
  """The settings of a run, and the points that it writes when nothing ends it."""
  settings = dict(num_towers=2 + request.param, validation_tower=request.param, shuffle=True,
                  learning_rate=sinking_rate,
                  optimizer=lambda rate: tf.train.MomentumOptimizer(rate, 0.9))
  folder = tmp_path_factory.mktemp('whole')
  train(folder / 'curves', settings=settings, checkpoint_dir=str(folder / 'saved'))
  return settings, exact(read(folder / 'curves'))


@pytest.mark.nightly
@pytest.mark.parametrize('kill_after', [6, 1, 3, 5, 10, 11])
def test_a_killed_run_resumes_with_the_same_curves_and_no_point_twice(tmp_path, whole, kill_after):
  settings, expected = whole
  # The third time the run is complete already, and measures the end again.
  for kill in [kill_after, None, None]:
    train(tmp_path / 'curves', settings=settings, checkpoint_dir=str(tmp_path / 'parts'),
          kill_after=kill)
  points = exact(read(tmp_path / 'curves'))
  assert len({point[:2] for point in points}) == len(points)
  assert sorted(point[:2] for point in points) == sorted(point[:2] for point in expected)
  # A mean since the point before leaves out the steps before the end.
  points, expected = ([point for point in of_run if point[0] != 'train/accuracy']
                      for of_run in (points, expected))
  assert sorted(points) == sorted(expected)


def test_a_rewind_drops_later_points(tmp_path, monkeypatch, capsys):
  data_set = data.DataSet(faults.poison(small.random_examples(40), 36), small.random_examples(11),
                          image_shape=(1, 1, small.NUM_FEATURES), num_classes=small.NUM_CLASSES)
  monkeypatch.setitem(data.DATA_SETS, 'synthetic', lambda settings: data_set)
  monkeypatch.setattr(models, 'build_classifier', lambda *_, **__: small.model)
  with tf.Graph().as_default():
    assert main.main([
        'main.py', '--data=synthetic', '--device=cpu', '--batch_size=8', '--noshuffle',
        '--steps=12', '--on_nan=rollback', '--validate_every=5steps', '--checkpoint_every=3steps',
        '--summary_every=1steps', f"--checkpoint_dir={tmp_path / 'saved'}",
        f"--summary_dir={tmp_path / 'curves'}", '--quiet']) == 3
  assert 'going back 3 times has not helped' in capsys.readouterr().err
  points = read(tmp_path / 'curves')
  assert [step for tag, step, _ in points if tag == 'train/loss'] == [1, 2, 3, 4]
  assert np.isfinite([value for _, _, value in points]).all()


def test_a_full_disk_ends_no_run_and_leaves_the_file_whole(tmp_path, capsys):
  with contextlib.ExitStack() as disk:
    def fill(step, loss):
      if step == 3:  # Room for a part of the next event.
        disk.enter_context(faults.full_disk(os.path.getsize(str(next(tmp_path.iterdir()))) + 20))
      if step == 6:  # Room for one, and then for a part again.
        disk.close()
      if step == 7:
        disk.enter_context(faults.full_disk(os.path.getsize(str(next(tmp_path.iterdir()))) + 20))
      if step == 9:
        disk.close()

    train(tmp_path, callbacks=[fill])
  shown = capsys.readouterr().out
  assert shown.count('summaries cannot be written') == 1 and 'done: 12 steps' in shown
  assert [step for tag, step, _ in read(tmp_path) if tag == 'train/loss'] == [3, 12]


def test_without_an_inode_it_warns_and_writes_a_file_once_there_is_one(tmp_path, monkeypatch):
  create, shown = os.open, []

  def no_inode(path, *mode):
    if 'tfevents' in str(path) and not shown:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return create(path, *mode)

  monkeypatch.setattr(os, 'open', no_inode)
  summaries = Summaries(str(tmp_path), first_step=0, texts={}, graph=tf.Graph(), warn=shown.append)
  summaries.validated(step=3, metrics={'loss': 1.0})
  summaries.on_close(None)
  assert 'summaries cannot be written: No space left' in shown[0] and len(shown) == 1
  assert [step for _, step, _ in read(tmp_path)] == [3]


def test_main_writes_text_and_graph_that_tensorboard_reads(tmp_path):
  assert main.main(['main.py', '--model=linear', '--batch_size=400', '--steps=4', '--device=cpu',
                    f"--summary_dir={tmp_path / 'run'}", '--summary_every=2']) == 0
  [name] = os.listdir(str(tmp_path / 'run'))
  events = list(tf.train.summary_iterator(str(tmp_path / 'run' / name)))
  texts = {value.tag: tf.make_ndarray(value.tensor).item().decode() for event in events
           for value in event.summary.value if value.metadata.plugin_data.plugin_name == 'text'}
  settings = texts['configuration'].splitlines()
  assert '**summary_every** | **2**' in settings and 'momentum | 0.9' in settings
  assert '/device:CPU:1' in texts['run']
  [graph] = [tf.GraphDef.FromString(event.graph_def) for event in events if event.graph_def]
  scopes = {node.name.split('/')[0] for node in graph.node}
  assert {'tower_0', 'tower_1', 'stage_sample_train_0', 'average', 'apply'} <= scopes
  for tag in ('train/loss', 'train/learning_rate', 'train/gradient_norm',
              'train/examples_per_second'):
    assert [step for name, step, _ in read(tmp_path / 'run') if name == tag] == [2, 4]
  if importlib.util.find_spec('tensorboard') is None:
    return  # Only the tf1 environment has it.
  accumulator = importlib.import_module('tensorboard.backend.event_processing.event_accumulator')
  board = accumulator.EventAccumulator(str(tmp_path / 'run'))
  board.Reload()
  assert [point.step for point in board.Scalars('train/gradient_norm')] == [2, 4]
  tags = board.Tags()['tensors']
  assert board.Graph().node and 'run/text_summary' in tags + [f'{tag}/text_summary' for tag in tags]
