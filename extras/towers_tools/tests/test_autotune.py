"""Autotune: it keeps the fastest settings that compute the same, and remembers them."""

import dataclasses
import json
import os
import sys

import pytest

from tests import ROOT
from tests.harness.processes import run_python
from towers.base.usage_error import UsageError
from towers.cli.flags import parse_flags
from towers.placement.cluster import Cluster
from towers.settings.config import Config
from towers_tools.trials import autotune
from towers_tools.trials import fingerprint as fingerprints
from towers_tools.trials.autotune import list_alternatives, list_fusions, tune
from towers_tools.trials.fingerprint import fingerprint
from towers_tools.trials.timed_trial import TimedTrial, format_flags

LOSSES = (2.3, 2.2, 2.1, 2.0, 1.9)
# With only variables and staging depth at their defaults, few trials are left.
FEW = Config(xla='off', graph_rewriter='off', inter_threads=2, num_towers=2, model='linear')


def test_settings_become_flags_and_come_back():
  config = Config(input_mode='shard', num_towers=8, shuffle=False, deterministic=True,
                  learning_rate=0.001, schedule='piecewise', decay_epochs=(3.0, 4.5), steps=12)
  assert parse_flags(['main.py', *format_flags(dataclasses.asdict(config))]) == config
  assert format_flags(dataclasses.asdict(Config())) == []
  assert format_flags(dict(xla='on', shuffle=False)) == ['--noshuffle', '--xla=on']


def tuned_by(speeds, config=FEW, **others):
  """Tunes by fake trials, whose speed is the product of the given factors of their settings."""
  asked = []

  def run(settings):
    asked.append(settings)
    speed = 1000.0
    for setting in settings.items():
      if setting in others:
        return others[setting]
      speed *= speeds.get(setting, 1.0)
    return TimedTrial(LOSSES, speed, config.num_towers)

  others = dict(others.get('others', {}))
  return tune(config, run), asked


def test_the_fastest_of_each_kind_is_kept_for_the_next():
  tuned, asked = tuned_by({('staging_depth', 0): 1.2, ('staging_depth', 2): 1.3,
                           ('variables', 'replicated'): 1.1, ('variables', 'balanced'): 0.7})
  assert tuned.settings == dict(staging_depth=2, variables='replicated')
  assert asked == [{},
                   dict(staging_depth=0),
                   dict(staging_depth=2),
                   dict(staging_depth=2, variables='first'),
                   dict(staging_depth=2, variables='balanced'),
                   dict(staging_depth=2, variables='replicated')]
  lines = tuned.format().splitlines()
  assert lines[0].split() == ['plain', '1,000', 'examples/s', '1.00']
  assert lines[1].split() == ['--staging_depth=0', '1,200', 'examples/s', '1.20', 'faster']
  assert lines[4].split()[-4:] == ['examples/s', '0.91', 'not', 'faster']
  assert lines[5].split() == [
      '--staging_depth=2', '--variables=replicated', '1,430', 'examples/s', '1.43', 'faster']


@pytest.mark.parametrize('trial, verdict', [
    (TimedTrial((2.3, 2.2, 2.15, 2.0, 1.9), 9e9, 2), 'disagrees: loss 2.15 in step 3, not 2.1'),
    (TimedTrial((2.3, float('nan'), 2.1, 2.0, 1.9), 9e9, 2),
     'disagrees: loss nan in step 2, not 2.2'),
    (TimedTrial(LOSSES[:3], 9e9, 2), 'disagrees: 3 losses, not 5'),
    (TimedTrial(error='ended by signal 11'), 'ended by signal 11'),
    (TimedTrial(LOSSES, 1.02 * 1500.0, 2), 'not faster'),  # It may be chance.
])
def test_trials_that_disagree_crash_or_are_hardly_faster_are_listed_and_not_kept(trial, verdict):
  tuned, _ = tuned_by({('staging_depth', 0): 1.5}, others={('variables', 'replicated'): trial})
  assert tuned.settings == dict(staging_depth=0)
  assert tuned.rows[-1].settings == dict(staging_depth=0, variables='replicated')
  assert tuned.rows[-1].verdict == verdict and verdict in tuned.format()


def test_rounding_is_no_disagreement():
  other = TimedTrial(tuple(loss * (1 + 1e-5) for loss in LOSSES), 2000.0, 2)
  tuned, _ = tuned_by({}, others={('staging_depth', 2): other})
  assert tuned.settings == dict(staging_depth=2)


def tried(num_towers=2, **chosen):
  """Returns the values to try by setting, in their order."""
  found = {}
  for alternatives in list_alternatives(Config(**chosen), num_towers):
    for settings in alternatives:
      for name, value in settings.items():
        found.setdefault(name, []).append(value)
  return found


def test_what_the_user_chose_is_not_tried():
  names = {'xla', 'graph_rewriter', 'inter_threads', 'intra_threads', 'staging_depth', 'variables'}
  assert set(tried()) == names
  for chosen in (dict(xla='off'), dict(graph_rewriter='on'), dict(staging_depth=2),
                 dict(variables='first')):
    assert set(tried(**chosen)) == names - set(chosen)
  assert set(tried(inter_threads=2)) == names - {'inter_threads', 'intra_threads'}


@pytest.mark.parametrize('device, gpus, num_towers, expected', [
    ('gpu', ['one'], 1, ['first']), ('auto', ['one'], 1, ['first']), ('auto', [], 1, None),
    ('cpu', ['one'], 1, None), ('auto', ['one'], 2, ['first', 'balanced', 'replicated'])])
def test_weights_beside_a_tower_are_tried_on_a_gpu(device, gpus, num_towers, expected, monkeypatch):
  monkeypatch.setattr(autotune, 'list_gpus', lambda: gpus)
  assert tried(num_towers, device=device).get('variables') == expected


def test_threads_of_an_op_are_tried_up_to_a_towers_part_of_the_cores(monkeypatch):
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(8))
  for num_towers, more in ((1, {(8, 8)}), (4, {(8, 2)}), (8, set()), (9, set())):
    found = tried(num_towers)
    assert set(zip(found['inter_threads'], found['intra_threads'])) == {
        (8, 1), (1, 8), (16, 1)} | more


def test_sizes_of_fused_gradients_are_tried_where_they_change_something():
  for all_reduce_bytes, sizes in ((10 ** 6, []), (10 ** 6 + 4, [1.0]), (4 * 10 ** 6, [1.0]),
                                  (5 * 10 ** 6, [1.0, 16.0]), (10 ** 9, [1.0, 16.0, 64.0])):
    expected = [[dict(fusion_megabytes=size) for size in sizes]] if sizes else []
    assert list_fusions(Config(), all_reduce_bytes) == expected
  assert list_fusions(Config(fusion_megabytes=2.0), 10 ** 9) == []


def test_plain_settings_that_do_not_run_are_an_error():
  with pytest.raises(UsageError, match='as they are do not run: no such file'):
    tune(FEW, lambda settings: TimedTrial(error='no such file'))


def test_the_fingerprint_depends_on_what_matters(monkeypatch, tmp_path):
  plain = fingerprint(Config())
  assert fingerprint(Config(steps=7, checkpoint_dir='/tmp/x', autotune=True)) == plain
  clusters = [['a:1', 'b:1'], ['a:1', 'a:2'], ['a:1', 'a:2', 'a:3'], ['a:1', 'a:2', 'b:1']]
  different = [fingerprint(Config(), cluster=Cluster(addresses)) for addresses in clusters]
  assert fingerprint(Config(), cluster=Cluster(['c:7', 'd:8'], 1)) == different[0]
  different += [plain] + [fingerprint(Config(**changed)) for changed in (
      dict(model='linear'), dict(batch_size=65), dict(num_towers=3), dict(input_mode='next'),
      dict(xla='off'))]
  monkeypatch.setenv('TF_XLA_FLAGS', '--tf_xla_auto_jit=2')
  different.append(fingerprint(Config()))
  monkeypatch.undo()
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(77))
  different.append(fingerprint(Config()))
  monkeypatch.undo()
  monkeypatch.setattr(fingerprints, 'ROOT', str(tmp_path))
  (tmp_path / 'towers').mkdir()
  for source in ('a = 1', 'a = 2'):
    (tmp_path / 'towers' / 'apply.py').write_text(source)
    different.append(fingerprint(Config()))
  assert len(set(different)) == len(different)


def test_the_fingerprint_covers_all_packages():
  packages = {name for name in os.listdir(ROOT)
              if os.path.exists(os.path.join(ROOT, name, '__init__.py'))}
  assert packages - {'tests', 'benchmarks', 'examples'} == set(fingerprints._SOURCE)


# A fake main.py: notes its flags in a file beside it, and crashes, hangs or fails by them.
FAKE_MAIN = '''
import json, os, sys, time
flags = dict(flag.lstrip('-').partition('=')[::2] for flag in sys.argv[1:])
with open(os.path.join(os.path.dirname(__file__), 'asked'), 'a') as file:
  file.write(' '.join(sys.argv[1:]) + '\\n')
if flags.get('variables') == 'first':
  os.abort()
if flags.get('variables') == 'balanced':
  time.sleep(60)
if flags.get('staging_depth') == '2':
  print('towers: error: no room', file=sys.stderr)
  sys.exit(3)
speed = 3000.0 if flags.get('variables') == 'replicated' else 1000.0
json.dump(dict(first_losses=[2.0], examples_per_second=speed, num_towers=2),
          open(flags['result_file'], 'w'))
'''


def test_trials_are_processes_that_may_crash_or_hang_and_are_remembered(
    tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(autotune, '_LIMIT_SECONDS', 2.0)
  monkeypatch.setattr(autotune, '_LIMIT_FACTOR', 0.0)
  (tmp_path / 'main.py').write_text(FAKE_MAIN)
  # Trials write to no file of the run.
  files = dict.fromkeys(('checkpoint_dir', 'summary_dir', 'report', 'trace_file', 'export_dir',
                         'result_file'), str(tmp_path / 'mine'))
  config = Config(xla='off', graph_rewriter='off', inter_threads=2, num_towers=2, batch_size=100,
                  epochs=90.0, autotune=True, on_nan='rollback', trace_steps='2:3', **files)
  for words in ('trials of 40 steps', 'remembered in'):
    tuned = autotune.autotune(config, command=[sys.executable, str(tmp_path / 'main.py')])
    assert (tuned.variables, tuned.staging_depth) == ('replicated', 1)
    assert (tuned.autotune, tuned.epochs) == (False, 90.0)
    assert {getattr(tuned, name) for name in files} == {str(tmp_path / 'mine')}
    shown = capsys.readouterr().out
    assert words in shown and 'the same as --variables=replicated' in shown
    for words in ('ended by signal 6', 'not done after 2 s', '  no room', '3.00  faster'):
      assert words in shown
  asked = (tmp_path / 'asked').read_text().splitlines()
  # A pilot, the plain settings, two depths, three placements; and no trial twice.
  assert len(asked) == 7
  assert all('--validation=none' in line and 'mine' not in line and '--autotune' not in line
             for line in asked)
  assert '--steps=8' in asked[0]
  assert all('--steps=40' in line and '--xla=off' in line for line in asked[1:])
  # A damaged file is a warning, and one digit is damage.
  [path] = (tmp_path / 'cache' / 'towers' / 'autotune').iterdir()
  good = path.read_text()
  for damaged in ('{', '{"settings": {"variables": "everywhere"}, "rows": [[{}, 1.0, ""]]}',
                  '{"settings": {}, "rows": []}', good.replace('3000', '9000')):
    path.write_text(damaged)
    assert autotune._recall(str(path)) is None
    assert 'the trials are made again' in capsys.readouterr().out


@pytest.mark.nightly
def test_it_tunes_and_trains(tmp_path):
  flags = ['--autotune', '--xla=off', '--inter_threads=2', '--staging_depth=0', '--num_gpus=1',
           '--model=linear', '--steps=3', f"--result_file={tmp_path / 'result.json'}"]
  done = run_python('main.py', *flags, env=dict(os.environ, XDG_CACHE_HOME=str(tmp_path)),
                    timeout=200)
  assert done.returncode == 0, done.stderr
  # The run has three losses; the trials run longer, so they compare more.
  for words in ('autotune: trials of', 'plain ', '--graph_rewriter=on', '--graph_rewriter=off',
                'autotune: the same as', 'done: 3 steps'):
    assert words in done.stdout
  assert 'disagrees' not in done.stdout
  result = json.loads((tmp_path / 'result.json').read_text())
  assert result['global_step'] == 3 and len(result['first_losses']) == 3
