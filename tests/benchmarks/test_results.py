"""Results: one command trains what its file lacks, and tables what the file has."""

import pytest

from benchmarks import results
from benchmarks.harness.figures import read_figures, write_figures


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
  """A row of one step on the sample."""
  monkeypatch.setitem(results.ROWS, 'tiny', results.Row(
      'Dense 128, sample', '0.5: nowhere',
      ('--data=sample', '--model=benchmarks.harness.tutorial_net:model', '--steps=1')))


def record(run, accuracy, loss=0.5, first_losses=(2.0, 1.0), peak_bytes=8.3e8):
  return dict(run._asdict(), flags=run.flags(), steps=1875, accuracy=accuracy, loss=loss,
              first_losses=list(first_losses), seconds=61.2, cpu_seconds=33.4,
              peak_bytes=peak_bytes)


def plan(seeds, towers=(1, 2)):
  return results.plan(['tiny'], towers=towers, seeds=seeds, tensorflow='2.21.0')


def test_a_run_takes_one_step_and_is_not_taken_again(tmp_path, monkeypatch, capsys):
  arguments = ['--rows=tiny', '--seeds=1', '--towers=1', f"--json={tmp_path / 'results.json'}"]
  results.main(arguments)
  [found] = read_figures(str(tmp_path / 'results.json'))['records']
  assert (found['row'], found['towers'], found['seed'], found['steps']) == ('tiny', 1, 0, 1)
  assert found['tensorflow'] == results.find_version()
  assert 0 < found['accuracy'] < 1 and len(found['first_losses']) == 1
  assert found['cpu_seconds'] > 0.1 and found['peak_bytes'] > 1e8
  table = capsys.readouterr().out
  monkeypatch.setattr(results, 'train', lambda *_: pytest.fail('it has this run'))
  results.main(arguments)
  assert capsys.readouterr().out == table
  assert f"| 1 | 1 | {found['accuracy']:.4f} | 1 |" in table


def test_only_missing_runs_are_taken_and_each_is_kept_at_once(tmp_path, monkeypatch, capsys):
  path = str(tmp_path / 'results.json')
  runs = plan(seeds=2)
  assert [(run.seed, run.towers) for run in runs] == [(0, 1), (0, 2), (1, 1), (1, 2)]
  write_figures(path, dict(records=[record(runs[2], 0.25)]))
  taken = []

  def train(run, data_dir):
    # The second of them fails, as when it is interrupted.
    taken.append(run)
    if len(taken) == 2:
      raise SystemExit('failed')
    return record(run, 0.5)

  monkeypatch.setattr(results, 'train', train)
  monkeypatch.setattr(results, 'find_version', lambda: '2.21.0')
  with pytest.raises(SystemExit, match='failed'):
    results.main(['--rows=tiny', '--seeds=2', f'--json={path}'])
  results.main(['--rows=tiny', '--seeds=2', f'--json={path}'])
  assert taken == [runs[0], runs[1], runs[1], runs[3]]
  assert len(read_figures(path)['records']) == 4
  # Nothing is trained for a table.
  monkeypatch.setattr(results, 'train', lambda *_: pytest.fail('it prints only'))
  results.main(['--rows=tiny,vgg16', '--seeds=2', '--print', f'--json={path}'])
  out = capsys.readouterr().out
  assert '| 0.3750 ± 0.1768 | 2 |' in out
  assert out.count('| not run |') == 2


def test_runs_of_other_flags_or_another_tensorflow_are_other_runs(monkeypatch):
  run = plan(seeds=1)[0]
  records = [record(run, 0.5)]
  assert results.find(records, run) is records[0]
  assert results.find(records, run._replace(tensorflow='1.14.0')) is None
  assert results.find(records, run._replace(towers=2)) is None
  assert results.find(records, run._replace(seed=1)) is None
  monkeypatch.setitem(results.ROWS, 'tiny', results.ROWS['tiny']._replace(flags=('--steps=2',)))
  assert results.find(records, run) is None


def test_tables_have_mean_spread_medians_and_the_distance_of_towers():
  runs = plan(seeds=3)
  one, two = ([run for run in runs if run.towers == count] for count in (1, 2))
  records = [record(run, accuracy, peak_bytes=peak_bytes) for run, accuracy, peak_bytes in zip(
      one, (0.88, 0.90, 0.89), (8.1e8, 8.3e8, 8.2e8))]
  records += [record(run, accuracy, loss=0.47, first_losses=(2.0, 1.00002))
              for run, accuracy in zip(two, (0.885, 0.895))]
  _, _, first, second = results.format_table(runs, records).splitlines()
  assert first == ('| `tiny` | Dense 128, sample | 0.5: nowhere | 1 | 1,875 | 0.8900 ± 0.0100 | 3 '
                   '| 61 | 33 | 0.83 GB |')
  assert '| 2 | 1,875 | 0.8900 ± 0.0071 | 2 |' in second
  head, _, *lines = results.format_pairs(runs, records).splitlines()
  assert '| 1 tower | 2 towers |' in head
  # Seed 2 has no second run to compare with.
  assert lines == ['| `tiny` | 0 | 0.8800 | 0.8850 | 2e-05 | 0.0300 |',
                   '| `tiny` | 1 | 0.9000 | 0.8950 | 2e-05 | 0.0300 |']


def test_a_data_set_of_ones_own_folder_is_refused_without_it(tmp_path, capsys):
  with pytest.raises(SystemExit):
    results.main(['--rows=cifar10', f"--json={tmp_path / 'results.json'}"])
  assert '--rows=cifar10 needs --data_dir' in capsys.readouterr().err


@pytest.mark.parametrize('name', sorted(results.ROWS))
def test_every_row_is_a_command_of_main(name):
  from towers.training.settings.flags import parse_flags
  config = parse_flags(['main.py', *results.Run(name, 2, 3, '2.21.0').flags()])
  assert (config.num_gpus, config.seed) == (2, 3)
