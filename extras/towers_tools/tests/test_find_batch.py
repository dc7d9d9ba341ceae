"""Find batch: the largest batch that fits, by the estimate, and by steps that run."""

import functools
import json
import os
import subprocess
import sys

import pytest

from tests.harness import capped_run
from tests.harness.small import dense, model, nightly_but, random_examples
from towers.base.usage_error import UsageError
from towers.data import DataSet
from towers.placement.devices import Devices, build_devices
from towers.placement.gpu_memory import read_gpu_memory
from towers.training.build import build_configured
from towers.training.settings.config import Config
from towers.training.stepping.memory import Memory
from towers_tools import find_batch as tool
from towers_tools import room
from towers_tools.find_batch import find_batch, search, settle
from towers_tools.free_memory import find_free_memory
from towers_tools.gpus import Gpu
from towers_tools.room import find_room
from towers_tools.timed_trial import ROOT, TimedTrial

FITS = TimedTrial(examples_per_second=1.0)
NO_ROOM = TimedTrial(error='Out of memory in the first step, after 0 steps. Try less')


@pytest.mark.parametrize('most', [1, 2, 7, 8, 100])
def test_a_search_finds_the_largest_that_fits(most):
  for largest in range(most + 2):
    asked = []

    def fits(rows, largest=largest, asked=asked):
      asked.append(rows)
      return rows <= largest

    assert search(fits, most) == min(largest, most)
    assert len(asked) == len(set(asked)) <= 15 and max(asked) <= most


@pytest.mark.parametrize('most', [64, 70, 1000])
@pytest.mark.parametrize('largest', [1, 5, 40, 63, 64, 65, 71, 500, 1000])
def test_trials_end_between_what_runs_and_what_does_not(largest, most):
  tried = []

  def run(rows):
    tried.append(rows)
    return FITS if rows <= largest else NO_ROOM

  best, beyond = settle(64, most, run)
  assert tried[0] == 64 and len(tried) == len(set(tried)) <= 11
  assert 1 <= best <= largest and best in tried
  if largest >= most:
    assert (best, beyond) == (most, None)
  else:
    assert largest < beyond <= most + 1 and beyond - best <= max(best // 16, 1)
    assert beyond in tried


def test_what_fails_for_other_reasons_or_always_is_an_error():
  with pytest.raises(UsageError, match='do not run: exit code 1'):
    settle(64, 100, lambda rows: TimedTrial(error='exit code 1'))
  with pytest.raises(UsageError, match='not even 1 .* fits: Out of memory .* after 0 steps$'):
    settle(64, 100, lambda rows: NO_ROOM)
  # What kernels do where they find no memory.
  assert settle(8, 100, lambda rows: FITS if rows < 7 else TimedTrial(error='ended by signal 11')
                ) == (6, 7)


def find(monkeypatch, num_towers=2, trial=FITS, largest=None, model=model, num_examples=1000,
         **settings):
  """Returns what is found, and the changes of the trials, which run up to a batch size."""
  tried = []

  def run_trial(config, changes, *, environment, **_):
    tried.append(dict(changes, **environment))
    return trial if largest is None or changes['batch_size'] <= largest else NO_ROOM

  monkeypatch.setattr(tool, 'run_trial', run_trial)
  config = Config(find_batch=True, device='cpu', num_gpus=num_towers, **settings)
  data_set = DataSet(random_examples(num_examples), random_examples(7, 'validation'),
                     image_shape=(1, 1, 5), num_classes=3)
  found = find_batch(config, lambda sized: build_configured(sized, model, data_set),
                     build_devices(num_towers, 'cpu'), num_examples=num_examples, command=['x'])
  return found, tried


@pytest.mark.parametrize('num_towers, accumulate',
                         nightly_but([(3, 2)], [(1, 1), (2, 1), (3, 2)]))
def test_trials_begin_with_what_is_estimated_to_fit(monkeypatch, num_towers, accumulate):
  parts = num_towers * accumulate
  settings = dict(num_towers=num_towers, accumulate=accumulate)
  found, [first, *_, last] = find(monkeypatch, tower_megabytes=0.01, largest=25 * parts, **settings)
  assert found.rows <= 25 < found.beyond <= found.rows + 1
  assert found.batch_size == found.rows * parts
  assert last['accumulate'] == accumulate and last['num_gpus'] == num_towers
  assert f'--batch_size={found.batch_size}' in found.describe()
  result = json.loads(json.dumps(found.as_result()))
  assert result['examples_per_tower'] == found.rows and result['memory_bytes'] == 10000

  most = first['batch_size']
  found, _ = find(monkeypatch, tower_megabytes=0.01, largest=most, **settings)
  estimated = found.memory.total
  assert found.batch_size == most > 25 * parts and estimated <= 10000
  _, [same, *_] = find(monkeypatch, tower_megabytes=estimated / 1e6, **settings)
  _, [less, *_] = find(monkeypatch, tower_megabytes=(estimated - 1) / 1e6, **settings)
  assert less['batch_size'] < same['batch_size'] == most


def test_a_batch_is_no_larger_than_the_data(monkeypatch):
  found, tried = find(monkeypatch, tower_megabytes=1000, num_examples=13)
  assert found.rows == 6 and [changes['batch_size'] for changes in tried] == [12]
  assert found.beyond is None and 'the data has no more examples' in found.describe()


def loop(batch, is_training):
  from tensorflow_v1 import tf
  del is_training
  features, labels = batch
  x = tf.while_loop(lambda turn, _: turn < 3, lambda turn, x: (turn + 1, tf.tanh(x)),
                    [0, dense(features, 8, 'first')])[1]
  return tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=labels, logits=dense(x, 3, 'last'))


@pytest.mark.parametrize('settings, words', [
    (dict(tower_megabytes=0.0001), ['one example', '100 bytes', '--recompute=auto']),
    (dict(model=loop, tower_megabytes=1), ['depend on their values', 'static shapes']),
    (dict(num_examples=1), ['at least one example each', 'there are 1']),
    (dict(num_examples=2), ['2 examples are too few']),
    (dict(num_towers=1, validation='tower'), ['validation=tower', 'num_gpus of at least 2']),
    (dict(tower_megabytes=1e9), ['tower_megabytes=1e+09', '2 virtual CPU devices', 'free']),
    (dict(trial=TimedTrial(error='exit code 2')), ['exit code 2'])])
def test_what_cannot_be_found_is_an_error_that_says_why(monkeypatch, settings, words):
  with pytest.raises(UsageError) as error:
    find(monkeypatch, **settings)
  for word in words:
    assert word in str(error.value)


def test_a_tower_may_take_what_its_device_has(monkeypatch):
  gpu = Gpu(0, 'V100', (418, 67), 16000, (7, 0))
  monkeypatch.setattr(room, 'find_gpus', lambda: ([gpu, gpu._replace(memory_mib=8000)], []))
  names = ['/device:GPU:0', '/device:GPU:1']
  for text, logical, expected in [(None, None, 8000 << 20), ('0.5', None, 4000 << 20),
                                  ('3000', 2, 3000 << 20), ('growth', None, 8000 << 20)]:
    devices = Devices('GPU', names, '', read_gpu_memory(text, logical))
    found = find_room(Config(), devices)
    assert found.num_bytes == int(0.9 * expected) and found.enforce(MEMORY, 2) == ({}, {})
  found = find_room(Config(find_batch=True, tower_megabytes=4000), Devices('GPU', names, ''))
  assert found.num_bytes == 4 * 10 ** 9
  assert found.enforce(MEMORY, 2) == (dict(gpu_memory='0.4768'), {})
  with pytest.raises(UsageError, match='tower_megabytes=9000: the GPU has 8.39 GB'):
    find_room(Config(find_batch=True, tower_megabytes=9000), Devices('GPU', names, ''))
  monkeypatch.setattr(room, 'find_gpus', lambda: ([], []))
  with pytest.raises(UsageError, match='give .* --gpu_memory=8000'):
    find_room(Config(), Devices('GPU', names, ''))


# Of tower 0, and of another tower without variables.
MEMORY = Memory(step=50 << 20, batches=10 << 20, variables=40 << 20, elsewhere=60 << 20)


def test_towers_on_cpus_share_what_is_free(monkeypatch):
  monkeypatch.setattr(room, 'find_free_memory', lambda: 1000 << 20)
  devices = Devices('CPU', ['/device:CPU:0', '/device:CPU:1'], '')

  def pool(found):
    settings, environment = found.enforce(MEMORY, 2)
    assert not settings and environment.pop('TF_CPU_ALLOCATOR_USE_BFC') == '1'
    return int(environment['TF_CPU_BFC_MEM_LIMIT_IN_MB'])

  found = find_room(Config(), devices)
  assert found.is_shared and pool(found) == 900
  for megabytes, fits in [(159, False), (160, True)]:
    assert found._replace(num_bytes=megabytes << 20).holds(MEMORY) == fits
  # One of the two validates, and is not there in a trial.
  assert pool(find_room(Config(validation='tower'), devices)) == 450

  monkeypatch.setenv('TF_CPU_BFC_MEM_LIMIT_IN_MB', '300')
  found = find_room(Config(), devices)
  assert pool(found) == 300 and 'TF_CPU_BFC_MEM_LIMIT_IN_MB' in found.describe()
  # The variables are on the first of two towers, each of which has 60 MiB for its step.
  given = find_room(Config(find_batch=True, tower_megabytes=(100 << 20) / 1e6), devices)
  assert given.holds(MEMORY) and not given._replace(num_bytes=(100 << 20) - 1).holds(MEMORY)
  assert pool(given) == 160

  monkeypatch.delenv('TF_CPU_BFC_MEM_LIMIT_IN_MB')
  monkeypatch.setattr(room, 'find_free_memory', lambda: None)
  with pytest.raises(UsageError, match='give tower_megabytes'):
    find_room(Config(), devices)


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
def test_what_is_found_is_at_the_edge_of_what_fits(tmp_path):
  num_towers = 2
  result_file = str(tmp_path / 'found.json')
  flags = ['--device=cpu', f'--num_gpus={num_towers}', f'--data={capped_run.HERE}:load',
           f'--model={capped_run.HERE}:model', '--optimizer=adam', '--steps=2', '--quiet']

  def run(*more, cap=None):
    limits = {} if cap is None else dict(
        TF_CPU_ALLOCATOR_USE_BFC='1', TF_CPU_BFC_MEM_LIMIT_IN_MB=str(cap))
    done = subprocess.run([sys.executable, 'main.py', *flags, *more], cwd=ROOT,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          env=dict(os.environ, **limits))
    return done.returncode, done.stderr.decode()

  assert run('--find_batch', f'--result_file={result_file}', cap=300) == (0, '')
  with open(result_file) as file:
    found = json.load(file)
  assert found['memory_bytes'] == 300 << 20
  best, beyond = found['examples_per_tower'], found['too_many_per_tower']
  assert best < beyond <= best + max(best // 16, 1)
  # The sizes of its tensors are known: at the least four of 64 x 64 values wait for the gradients.
  assert 4 * 4 * 64 * 64 * best * num_towers < 300 << 20
  # The order of ops is another one in each run: at the edge itself a batch fits now and then.
  assert run(f'--batch_size={best * 7 // 8 * num_towers}', cap=300)[0] == 0
  assert run(f'--batch_size={beyond * 3 // 2 * num_towers}', cap=300)[0] in (3, -11)
