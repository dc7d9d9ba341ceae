"""The timeline: the traced steps, a lane for each part of the line, and unchanged training."""

import contextlib
import json

import pytest

import main
import towers
from tests.harness import faults, small
from tests.training.reporting import test_summaries
from towers.base.usage_error import UsageError
from towers.settings.timetable import parse_trace_steps
from towers.tensorflow_v1 import tf
from towers_tools.timeline import Event, find_lane, format_trace


def traced(path, trace_steps='2:3', *, steps=5, callbacks=(), settings=(), **run):
  """Trains some steps; returns their losses."""
  losses = []
  towers.train(small.program(**dict(settings)), steps=steps, trace_steps=trace_steps,
               trace_file=str(path), quiet=True, validate_every='100steps',
               callbacks=[lambda step, loss: losses.append(loss), *callbacks], **run)
  return losses


def read(path):
  """Returns the lanes from top to bottom, and for each its bars as (row, start, end, name, op)."""
  events = json.loads(path.read_text())['traceEvents']
  order = {event['pid']: event['args']['sort_index'] for event in events
           if event['name'] == 'process_sort_index'}
  names = {event['pid']: event['args']['name'] for event in events
           if event['name'] == 'process_name'}
  bars = {names[pid]: [] for pid in sorted(names, key=order.get)}
  for event in events:
    if event['ph'] == 'X':
      bars[names[event['pid']]].append((event['tid'], event['ts'], event['ts'] + event['dur'],
                                        event['name'], event['args'].get('op')))
  return bars


@pytest.mark.nightly(but='2-1-2-next')
@pytest.mark.parametrize('mode', small.MODES)
@pytest.mark.parametrize('num_towers, depth, accumulate',
                         [(2, 1, 2), (1, 0, 1), (3, 1, 1), (2, 2, 2)])
def test_lanes_stand_in_the_order_of_the_line(tmp_path, mode, num_towers, depth, accumulate):
  traced(tmp_path / 'trace.json', settings=dict(
      input_mode=mode, num_towers=num_towers, staging_depth=depth, accumulate=accumulate))
  bars = read(tmp_path / 'trace.json')
  assert list(bars) == (['session.run', 'input'] + ['staging'] * (depth > 0) +
                        [f'tower {tower}' for tower in range(num_towers)] + ['update'])
  # With 13 examples in batches of 8, an epoch's second step has 5: micro-batches of 4 and 1.
  assert [bar[3] for bar in bars['session.run']] == [
      f'step {step}' for step in (2, 3) for _ in range(accumulate)]
  for tower in range(num_towers):
    ops = [bar[4] for bar in bars[f'tower {tower}']]
    assert {op.split('/')[0] for op in ops} == {f'tower_{tower}'}
    assert any('MatMul' in op for op in ops)
  assert any(bar[4].startswith('apply/') for bar in bars['update'])
  assert any('next_train' in bar[4] for bar in bars['input'])
  # Each tower has a get and a put for each micro-batch.
  gets = [bar for bar in bars.get('staging', []) if bar[4].endswith('StagingArea_get')]
  puts = [bar for bar in bars.get('staging', []) if bar[4].endswith('StagingArea_put')]
  assert len(gets) == len(puts) == (2 * accumulate * num_towers if depth else 0)


def test_bars_lie_within_their_runs_and_do_not_overlap_in_a_row(tmp_path):
  traced(tmp_path / 'trace.json', settings=dict(num_towers=3))
  bars = read(tmp_path / 'trace.json')
  runs = bars.pop('session.run')
  for lane, lane_bars in bars.items():
    for row in {bar[0] for bar in lane_bars}:
      in_row = sorted(bar[1:3] for bar in lane_bars if bar[0] == row)
      assert all(before[1] <= after[0] for before, after in zip(in_row, in_row[1:]))
    if lane != 'input':  # Whose threads work ahead.
      assert all(runs[0][1] - 1000 <= bar[1] and bar[2] <= runs[-1][2] + 1000 for bar in lane_bars)


@pytest.mark.nightly(but='reuse')
@pytest.mark.parametrize('settings', [
    dict(tower_build='reuse'), dict(staging_depth=0, input_mode='next', accumulate=2)],
    ids=['reuse', 'next'])
def test_tracing_does_not_change_training(tmp_path, settings):
  def train(name, trace_steps):
    folder, curves = str(tmp_path / name), str(tmp_path / name / 'curves')
    losses = traced(tmp_path / f'{name}.json', trace_steps, settings=settings,
                    checkpoint_dir=folder, summary_dir=curves, summary_every='3steps')
    points = test_summaries.exact(test_summaries.read(curves))
    return losses, points, {variable: value.tolist()
                            for variable, value in small.read_checkpoint(folder).items()}

  # Step 3 is measured and traced at once.
  found = train('traced', '2:3')
  assert found == train('plain', None) and (tmp_path / 'traced.json').exists()
  assert ('train/gradient_norm', 3) in [point[:2] for point in found[1]]


@pytest.mark.nightly(but=['resumed', 'late'])
@pytest.mark.parametrize('trace_steps, resumes, written', [
    ('2:4', True, ['step 3', 'step 4']), ('4:9', False, ['step 4', 'step 5']),
    ('40:40', False, None)], ids=['resumed', 'short', 'late'])
def test_a_run_that_traced_some_of_the_steps_writes_them(
    trace_steps, resumes, written, tmp_path, capsys):
  folder = str(tmp_path / 'saved') if resumes else None
  if resumes:
    traced(None, None, steps=2, checkpoint_dir=folder)
  traced(tmp_path / 'trace.json', trace_steps, checkpoint_dir=folder)
  warning = ("WARNING: no step from 40 to 40 was run, so "
             f"{tmp_path / 'trace.json'} is not written")
  assert (warning in capsys.readouterr().out) == (written is None)
  if written:
    assert [bar[3] for bar in read(tmp_path / 'trace.json')['session.run']] == written


def test_a_full_disk_is_a_warning(tmp_path, capsys):
  with contextlib.ExitStack() as disk:
    losses = traced(tmp_path / 'trace.json', callbacks=[
        lambda step, loss: disk.enter_context(faults.full_disk()) if step == 1 else None])
  assert len(losses) == 5 and capsys.readouterr().out.count('cannot be written') == 1


@pytest.mark.parametrize('op, device, lane', [
    ('tower_3/conv1/Conv2D', '/job:localhost/replica:0/task:0/device:GPU:3', 'tower 3'),
    ('tower_3/conv1/Conv2D:Conv2D', '/device:GPU:3/stream:all', 'tower 3 on its GPU'),
    ('stage_train_1/stage_train_1/StagingArea_put', '', 'staging'),
    ('put_train/NoOp_1', '', 'staging'),
    ('switch_1/cond/stage_train_1/StagingArea_get', '', 'staging'),
    ('switch_2/cond/Merge', '', 'staging'),
    ('next_train/split', '', 'input'),
    ('switch/cond/next_validation/IteratorGetNext', '', 'input'),
    ('Iterator::Prefetch::ParallelMap', '/host:CPU', 'input'),
    ('average/AddN', '', 'update'),
    ('logits/weights/read', '', 'update'),
    ('validation/AddN', '', 'validation'),
    ('my_tower_1/add', '', 'update'),
    ('apply/cond/switch_f', '', 'update')])
def test_lanes_follow_from_names(op, device, lane):
  assert find_lane(op, device) == lane


def test_lanes_of_many_towers_are_sorted_by_number_with_their_gpus():
  lanes = ['update', 'tower 10', 'tower 2 on its GPU', 'tower 2', 'validation', 'staging',
           'session.run']
  events = [Event(lane, 'Op', 5, 1, {}) for lane in lanes]
  names = [event['args']['name'] for event in json.loads(format_trace(events))['traceEvents']
           if event['name'] == 'process_name']
  assert names == ['session.run', 'staging', 'tower 2', 'tower 2 on its GPU', 'tower 10', 'update',
                   'validation']


def test_steps_are_a_range_that_is_checked(capsys, tmp_path):
  assert parse_trace_steps('7') == (7, 7) and parse_trace_steps('7:9') == (7, 9)
  for text in ('0:3', '5:4', 'some', '1:101', '-1', '3:', '1.5'):
    with pytest.raises(UsageError, match='trace_steps=.*as 10:12'):
      parse_trace_steps(text)
  with tf.Graph().as_default():
    assert main.main(['main.py', '--trace_steps=2', '--trace_file=/sys/nowhere/trace.json']) == 2
    assert 'trace_file=/sys/nowhere/trace.json' in capsys.readouterr().err
    assert main.main(['main.py', '--device=cpu', '--model=linear', '--batch_size=400', '--steps=3',
                      '--trace_steps=2', f"--trace_file={tmp_path / 'trace.json'}"]) == 0
  assert [bar[3] for bar in read(tmp_path / 'trace.json')['session.run']] == ['step 2']
