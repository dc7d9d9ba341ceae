"""Summaries: what TensorBoard reads, on N towers, after a kill, a rewind, and on a full disk."""

import contextlib
import errno
import importlib
import importlib.util
import os

import numpy as np
import pytest

import towers
from tensorflow_v1 import tf
from tests.harness import faults, small
from tests.harness.curves import CURVES, List, train
from tests.harness.small import Run
from towers.training.faults.run_error import RunError
from towers.training.reporting.summaries import Summaries

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


@pytest.fixture(scope='module')
def one(tmp_path_factory):
  """The points of one tower."""
  folder = tmp_path_factory.mktemp('one')
  with Run(num_towers=1, depth=0, **CURVES) as run:
    train(run, summaries=folder)
  return read(folder)


@pytest.mark.nightly(but='3-1-split')
@pytest.mark.parametrize('mode', small.MODES)
@pytest.mark.parametrize('num_towers, depth', [(3, 1), (2, 2), (3, 0), (4, 1), (8, 1)])
def test_one_set_of_tags_and_the_numbers_of_one_tower(tmp_path, one, mode, num_towers, depth):
  with Run(mode=mode, num_towers=num_towers, depth=depth, **CURVES) as run:
    train(run, summaries=tmp_path / 'many')
  many = read(tmp_path / 'many')
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
    pytest.param({}, marks=pytest.mark.nightly), dict(clip_norm=0.1), dict(accumulate=2),
    pytest.param(dict(weight_decay=0.1), marks=pytest.mark.nightly)])
def test_the_norm_is_that_of_the_averaged_gradients_before_they_are_clipped(settings):
  kept = List()
  with Run(num_towers=2, **dict(CURVES, **settings)) as run:
    train(run, metric_writers=[kept], every=1, total_steps=1)
    initial = run.initial_weights
  with Run(num_towers=1, optimizer='sgd', learning_rate=1.0) as run:
    run.train()
    weights = run.weights()
  gradients = [initial[name] - weights[name] for name in initial]
  expected = np.sqrt(sum(np.sum(gradient ** 2) for gradient in gradients))
  assert kept.samples[0].gradient_norm == pytest.approx(expected, rel=1e-5) and expected > 0.1


def test_the_norm_of_sparse_gradients_is_that_of_the_dense_ones():
  gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([4, 4]),
                              dense_shape=tf.constant([9, 1]))
  rows = tf.get_variable('rows', [9, 1])
  reduced = towers.ReducedGradients([], 1, None, [(gradient, rows)], [], [])
  with tf.Session() as session:
    assert session.run(towers.build_gradient_norm(reduced)) == pytest.approx(3.0)


def test_only_sampled_steps_compute_the_norm_and_samples_have_their_rate():
  calls, kept = [], List()
  with Run(schedule='cosine', steps=12, **CURVES) as run:
    with run.graph.as_default():
      counted = tf.py_func(lambda norm: calls.append(None) or norm, [run.program.gradient_norm],
                           tf.float32)
    run.program.gradient_norm = counted
    rates = []
    train(run, metric_writers=[kept],
          before_step=lambda step: rates.append(run.steps.learning_rate()))
  assert len(calls) == 4 and [sample.step for sample in kept.samples] == [3, 6, 9, 12]
  # rates[k] is that of step k + 2.
  assert [sample.learning_rate for sample in kept.samples] == [
      rates[step - 2] for step in (3, 6, 9, 12)]
  assert len({sample.learning_rate for sample in kept.samples}) == 4


def test_without_curves_no_step_computes_the_norm():
  with Run() as run:
    train(run)
    assert run.program.gradient_norm is None and run.steps.update is None
    assert not any('gradient_norm' in op.name for op in run.graph.get_operations())


@pytest.fixture(scope='module', params=[False, True], ids=['switch', 'tower'])
def whole(request, tmp_path_factory):
  """The settings of a run, and the points that it writes when nothing ends it."""
  settings = dict(num_towers=2 + request.param, shuffle=True, schedule='cosine', steps=12,
                  validation_tower=request.param, **CURVES)
  folder = tmp_path_factory.mktemp('whole')
  with Run(**settings) as run:
    train(run, folder=folder / 'saved', summaries=folder / 'curves')
  return settings, exact(read(folder / 'curves'))


@pytest.mark.nightly
@pytest.mark.parametrize('kill_after', [6] + [
    pytest.param(step, marks=pytest.mark.nightly) for step in (1, 3, 5, 10, 11)])
def test_a_killed_run_resumes_with_the_same_curves_and_no_point_twice(tmp_path, whole, kill_after):
  settings, expected = whole
  with Run(**settings) as run:
    train(run, folder=tmp_path / 'parts', summaries=tmp_path / 'curves', kill_after=kill_after)
  # The second time the run is complete already, and measures the end again.
  for _ in range(2 if kill_after == 6 else 1):
    with Run(**settings) as run:
      train(run, folder=tmp_path / 'parts', summaries=tmp_path / 'curves')
  points = exact(read(tmp_path / 'curves'))
  assert len({point[:2] for point in points}) == len(points)
  assert sorted(point[:2] for point in points) == sorted(point[:2] for point in expected)
  # A mean since the point before leaves out the steps before the end.
  points, expected = ([point for point in of_run if point[0] != 'train/accuracy']
                      for of_run in (points, expected))
  assert sorted(points) == sorted(expected)


def test_a_rewind_drops_later_points(tmp_path):
  poisoned = faults.poison(small.random_examples(40), 36)
  with Run(train=poisoned, on_nan='rollback', checkpoint_dir='unused', **CURVES) as run, \
      pytest.raises(RunError, match='going back 3 times has not helped'):
    train(run, folder=tmp_path / 'saved', summaries=tmp_path / 'curves', every=1, on_nan='rollback',
          save_every=3)
  points = read(tmp_path / 'curves')
  assert [step for tag, step, _ in points if tag == 'train/loss'] == [1, 2, 3, 4]
  assert np.isfinite([value for _, _, value in points]).all()


def test_a_full_disk_ends_no_run_and_leaves_the_file_whole(tmp_path):
  with Run(**CURVES) as run, contextlib.ExitStack() as disk:
    def fill(step):
      if step == 4:  # Room for a part of the next event.
        disk.enter_context(faults.full_disk(os.path.getsize(str(next(tmp_path.iterdir()))) + 20))
      if step == 10:
        disk.close()

    shown = train(run, summaries=tmp_path, before_step=fill)
  assert shown.count('summaries cannot be written') == 1 and 'step 12/12' in shown
  assert [step for tag, step, _ in read(tmp_path) if tag == 'train/loss'] == [3, 12]


def test_without_an_inode_it_warns_and_writes_a_file_once_there_is_one(tmp_path, monkeypatch):
  create, shown = os.open, []

  def no_inode(path, *mode):
    if 'tfevents' in str(path) and not shown:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return create(path, *mode)

  monkeypatch.setattr(os, 'open', no_inode)
  summaries = Summaries(str(tmp_path), first_step=0, texts={}, graph=tf.Graph(), warn=shown.append)
  summaries.validation(step=3, metrics={'loss': 1.0})
  summaries.close()
  assert 'summaries cannot be written: No space left' in shown[0] and len(shown) == 1
  assert [step for _, step, _ in read(tmp_path)] == [3]


def test_main_writes_text_and_graph_that_tensorboard_reads(tmp_path):
  import main
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
