"""Find batch: the largest batch that fits, by steps that run."""

import functools
import json
import os

import pytest

from tests.harness import capped_run
from tests.harness.processes import run_python
from towers.base.usage_error import UsageError
from towers.placement.devices import Devices
from towers.settings.config import Config
from towers_tools.free_memory import find_free_memory
from towers_tools.trials import find_batch as tool
from towers_tools.trials.find_batch import find_batch, search
from towers_tools.trials.timed_trial import TimedTrial

FITS = TimedTrial(examples_per_second=1.0)
TOO_LARGE = TimedTrial(error='Out of memory in the first step, after 0 steps. Try less')
CPUS = ['/device:CPU:0', '/device:CPU:1', '/device:CPU:2']


@pytest.mark.parametrize('first', [1, 5, 64])
@pytest.mark.parametrize('most', [64, 70, 1000])
@pytest.mark.parametrize('largest', [0, 1, 5, 40, 63, 64, 65, 71, 500, 1000])
def test_a_search_ends_between_what_runs_and_what_does_not(first, largest, most):
  tried = []

  def fits(rows):
    tried.append(rows)
    return rows <= largest

  best, beyond = search(fits, first, most)
  assert tried[0] == first and len(tried) == len(set(tried)) <= 15 and max(tried) <= most
  if largest >= most:
    assert (best, beyond) == (most, None)
  else:
    assert best <= largest < beyond and beyond - best <= max(best // 16, 1) and beyond in tried
    assert best in tried or best == largest == 0


def find(monkeypatch, num_towers=2, trial=FITS, largest=None, num_examples=1000, kind='CPU',
         **settings):
  """Returns what is found, and the changes of the trials, which run up to a batch size."""
  tried = []

  def run_trial(config, changes, *, environment, **_):
    tried.append(dict(changes, **environment))
    return trial if largest is None or changes['batch_size'] <= largest else TOO_LARGE

  monkeypatch.setattr(tool, 'run_trial', run_trial)
  monkeypatch.setattr(tool, 'find_free_memory', lambda: 1000 << 20)
  config = Config(find_batch=True, device='cpu', num_towers=num_towers, **settings)
  found = find_batch(config, Devices(kind, CPUS[:num_towers], ''), num_examples=num_examples,
                     command=['x'])
  return json.loads(json.dumps(found)), tried


@pytest.mark.parametrize('num_towers, accumulate', [(1, 1), (3, 2)])
def test_trials_have_the_settings_of_the_run(monkeypatch, capsys, num_towers, accumulate):
  parts = num_towers * accumulate
  found, [first, *_] = find(monkeypatch, num_towers, largest=25 * parts, accumulate=accumulate)
  assert first['batch_size'] == 64 // parts * parts and first['num_towers'] == num_towers
  assert first['accumulate'] == accumulate and first['on_nan'] == 'skip'
  assert found == dict(batch_size=25 * parts, examples_per_tower=25, too_many_per_tower=26,
                       num_towers=num_towers, accumulate=accumulate)
  assert f'--batch_size={25 * parts}' in capsys.readouterr().out


def test_a_batch_is_no_larger_than_the_data(monkeypatch):
  found, tried = find(monkeypatch, num_examples=13)
  assert [changes['batch_size'] for changes in tried] == [12]
  assert found['examples_per_tower'] == 6 and found['too_many_per_tower'] is None


@pytest.mark.parametrize('settings, words', [
    (dict(num_examples=1), 'at least one example each, and there are 1'),
    (dict(largest=0), 'not even 1 example per tower fits'),
    (dict(trial=TimedTrial(error='exit code 2')), 'do not run: exit code 2')])
def test_what_cannot_be_found_is_an_error_that_says_why(monkeypatch, settings, words):
  with pytest.raises(UsageError, match=words):
    find(monkeypatch, **settings)


def test_a_trial_takes_no_more_memory_than_it_may(monkeypatch):
  pool = 'TF_CPU_BFC_MEM_LIMIT_IN_MB'
  monkeypatch.delenv(pool, raising=False)
  _, [first, *_] = find(monkeypatch)
  assert first['TF_CPU_ALLOCATOR_USE_BFC'] == '1' and first[pool] == '900'
  _, [first, *_] = find(monkeypatch, tower_megabytes=100)
  assert first[pool] == '200'  # All virtual CPU devices have one pool.
  _, [first, *_] = find(monkeypatch, kind='GPU', tower_megabytes=100)
  assert first['gpu_memory'] == '100' and pool not in first
  monkeypatch.setenv(pool, '300')
  _, [first, *_] = find(monkeypatch)
  assert first[pool] == '300'
  monkeypatch.setattr(tool, 'find_free_memory', lambda: None)
  with pytest.raises(UsageError, match='give tower_megabytes'):
    tool._limit_memory(None, Devices('CPU', CPUS, ''), 3)


def test_a_container_may_have_less_than_the_machine(tmp_path):
  meminfo = tmp_path / 'meminfo'
  find_free = functools.partial(find_free_memory, str(meminfo), str(tmp_path))
  assert find_free() is None
  meminfo.write_text('MemTotal:       2000 kB\nMemAvailable:       1000 kB\n')
  assert find_free() == 1000 * 1024
  (tmp_path / 'memory.current').write_text('300000\n')
  for limit, expected in [('max', 1000 * 1024), ('500000', 200000), ('200000', 0)]:
    (tmp_path / 'memory.max').write_text(limit + '\n')
    assert find_free() == expected
  # Pages of files give way.
  (tmp_path / 'memory.stat').write_text('anon 1\ninactive_file 250000\nactive_file 2\n')
  assert find_free() == 150000
  (tmp_path / 'memory').mkdir()
  (tmp_path / 'memory' / 'memory.limit_in_bytes').write_text('400000\n')
  (tmp_path / 'memory' / 'memory.usage_in_bytes').write_text('390000\n')
  (tmp_path / 'memory' / 'memory.stat').write_text('inactive_file 1\ntotal_inactive_file 5000\n')
  assert find_free() == 15000


@pytest.mark.nightly
@pytest.mark.timeout(600)  # Some ten trials, one after the other.
def test_what_is_found_is_at_the_edge_of_what_fits(tmp_path):
  num_towers = 2
  result_file = str(tmp_path / 'found.json')
  flags = ['--device=cpu', f'--num_gpus={num_towers}', f'--data={capped_run.HERE}:load',
           f'--model={capped_run.HERE}:model', '--optimizer=adam', '--steps=2', '--quiet']

  def run(*more, cap=None):
    limits = {} if cap is None else dict(
        TF_CPU_ALLOCATOR_USE_BFC='1', TF_CPU_BFC_MEM_LIMIT_IN_MB=str(cap))
    done = run_python('main.py', *flags, *more, env=dict(os.environ, **limits), timeout=300)
    return done.returncode, done.stderr

  assert run('--find_batch', f'--result_file={result_file}', cap=300) == (0, '')
  with open(result_file) as file:
    found = json.load(file)
  best, beyond = found['examples_per_tower'], found['too_many_per_tower']
  assert best < beyond <= best + max(best // 16, 1)
  # The sizes of its tensors are known: at the least four of 64 x 64 values wait for the gradients.
  assert 4 * 4 * 64 * 64 * best * num_towers < 300 << 20
  # The order of ops is another one in each run: at the edge itself a batch fits now and then.
  assert run(f'--batch_size={best * 7 // 8 * num_towers}', cap=300)[0] == 0
  assert run(f'--batch_size={beyond * 3 // 2 * num_towers}', cap=300)[0] in (3, -11)
