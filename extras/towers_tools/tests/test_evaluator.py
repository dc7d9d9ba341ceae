"""The evaluator: it measures the workers' checkpoints to the last step, and changes nothing."""

import json

import pytest

import main
from tests.harness import faults, small
from towers.base.json_files import seal
from towers.checkpoint.checkpoints import list_steps
from towers.checkpoint.history import HISTORY, History
from towers.tensorflow_v1 import tf
from towers_tools.evaluator import EVALUATIONS, Evaluations, _is_over, _load_newest

FLAGS = ['main.py', '--data=synthetic', '--model=linear', '--device=cpu', '--num_gpus=2',
         '--steps=6', '--validate_every=2steps', '--checkpoint_every=2steps']
EVALUATOR = json.dumps(
    dict(cluster=dict(worker=['a:1', 'b:1']), task=dict(type='evaluator', index=0)))


def run(flags):
  with tf.Graph().as_default():
    return main.main(FLAGS + flags)


def rows(folder):
  return {row['step']: row for row in json.loads((folder / EVALUATIONS).read_text())['evaluations']}


@pytest.mark.parametrize('flags', [
    pytest.param([], marks=pytest.mark.nightly),
    pytest.param(['--variables=replicated', '--validation=none', '--optimizer=adam'],
                 marks=pytest.mark.nightly),
    ['--validation=tower', '--num_gpus=3', '--input_mode=shard', '--staging_depth=0',
     '--average_weights=0.5']])
def test_it_measures_what_validation_measures(flags, tmp_path, monkeypatch, capsys):
  assert run([f'--checkpoint_dir={tmp_path}'] + flags) == 0
  saved = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != 'lock'}
  monkeypatch.setenv('TF_CONFIG', EVALUATOR)
  summaries = tmp_path / 'summaries'
  assert run([f'--checkpoint_dir={tmp_path}', f'--summary_dir={summaries}'] + flags) == 0
  assert 'evaluation of step 6: loss' in capsys.readouterr().out
  assert list((summaries / 'evaluation').iterdir())
  assert sorted(rows(tmp_path)) == [6]
  if '--validation=none' not in flags:
    validations = json.loads((tmp_path / HISTORY).read_text())['validations']
    [expected] = [row for row in validations if row['step'] == 6]
    assert rows(tmp_path)[6] == pytest.approx(expected, abs=1e-6)
  for name, content in saved.items():
    assert (tmp_path / name).read_bytes() == content
  # Started again, it has nothing left to do.
  assert run([f'--checkpoint_dir={tmp_path}'] + flags) == 0
  assert 'evaluation of' not in capsys.readouterr().out


def test_the_newest_that_can_be_read_is_taken(tmp_path, capsys):
  folder = str(tmp_path)
  with small.program().session() as session:
    while session.step < 10:
      session.train()
      if session.step in (2, 4, 10):
        session.save(folder)
    assert _load_newest(session, folder, after=4) and session.step == 10
    assert not _load_newest(session, folder, after=10)
    faults.truncate(tmp_path / 'model.ckpt-10.data-00000-of-00001', 1)
    assert _load_newest(session, folder, after=2) and session.step == 4
    assert 'WARNING: ' in capsys.readouterr().out
    expected = small.read_checkpoint(tmp_path / 'model.ckpt-4')
    small.assert_same_weights({name: expected[name] for name in small.read_variables(
        session.program, session)}, small.read_variables(session.program, session), tolerance=0)
    assert not _load_newest(session, folder, after=4)
    assert not _load_newest(session, str(tmp_path / 'none'), after=-1)


def test_it_ends_with_the_last_step_or_when_the_workers_have_stopped_early(tmp_path):
  def is_over(measured_step):
    return _is_over(str(tmp_path), measured_step, 100, early_stopping=2)

  assert is_over(100) and not is_over(60)
  history = History(metric='loss', patience=2)
  for step, loss in ((20, 1.0), (40, 2.0), (60, 3.0)):
    history.add(step, dict(loss=loss))
  (tmp_path / HISTORY).write_text(history.format())
  (tmp_path / 'model.ckpt-60.index').write_text('')
  assert list_steps(str(tmp_path)) == [60]
  assert not is_over(40) and is_over(60)


def test_it_ends_by_the_metric_that_the_workers_have_found(tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr('towers_tools.evaluator._is_over',
                      lambda *_, best_metric, **__: asked.append(best_metric) or True)
  monkeypatch.setenv('TF_CONFIG', EVALUATOR)
  assert run([f'--checkpoint_dir={tmp_path}', '--best_metric=validation_accuracy']) == 0
  assert asked == ['max:accuracy']


@pytest.mark.parametrize('text', ['', '[', '{}', '[{"loss": 1}]', '[1]', seal(
    {'evaluations': [{'loss': 0.5, 'step': 60}]}).replace('60', '90')])
def test_a_damaged_file_of_evaluations_is_replaced(text, tmp_path):
  (tmp_path / EVALUATIONS).write_text(text)
  evaluations = Evaluations(str(tmp_path))
  assert evaluations.last_step() == -1
  evaluations.add(7, dict(loss=0.5))
  assert Evaluations(str(tmp_path)).rows == [dict(loss=0.5, step=7)]


def test_without_a_folder_there_is_nothing_to_measure(monkeypatch, capsys):
  monkeypatch.setenv('TF_CONFIG', EVALUATOR)
  assert run([]) == 2
  assert 'give it the checkpoint_dir of the workers' in capsys.readouterr().err
