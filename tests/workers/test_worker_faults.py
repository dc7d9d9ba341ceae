"""After a fault no worker hangs, trains or saves a mixed state, and all resume together."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.harness import small
from tests.harness.in_process_cluster import find_ports
from tests.harness.process_cluster import ProcessCluster
from tests.harness.processes import output_of, wait_until
from towers.checkpoint.checkpoints import list_steps
from towers.placement.cluster import Cluster
from towers.process.run_error import RunError, WorkerGone
from towers.tensorflow_v1 import tf
from towers.workers.worker import Worker

EXIT_CODE = WorkerGone.exit_code
# The workers check each other twice a second; the rest is for a busy machine.
GONE_SECONDS = 15


def assert_gone(cluster, survivor, dead):
  assert cluster.wait(survivor, seconds=GONE_SECONDS) == [EXIT_CODE]
  assert f'worker {dead} ({cluster.addresses[dead]}) has ended' in cluster.output(survivor)
  assert 'start all workers again' in cluster.output(survivor)


@contextlib.contextmanager
def standing_still(*flags):
  """Two workers in training, the second of which has been stopped."""
  with ProcessCluster(fault='steps are marked', flags=flags) as cluster:
    cluster.wait_for(1, '<training>', 20)
    cluster.kill(1, signal.SIGSTOP)
    yield cluster


FLAGS = ['--checkpoint_every=10steps', '--validate_every=15steps', '--steps=45', '--shuffle',
         '--num_gpus=2']


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
  """The folder of an uninterrupted run of two workers."""
  folder = tmp_path_factory.mktemp('uninterrupted')
  flags = FLAGS + [f'--checkpoint_dir={folder}']
  with ProcessCluster(fault='steps are marked', flags=flags) as cluster:
    assert cluster.wait() == [0, 0]
  return folder


def assert_same_bits(folder, expected):
  """Asserts that two runs have ended with the same weights, slots and counters."""
  expected, found = map(small.read_checkpoint, (expected, folder))
  assert expected['global_step'] == 45
  assert all(found[name].tobytes() == value.tobytes() for name, value in expected.items())


@pytest.mark.nightly
@pytest.mark.parametrize('dead, fault, moment, times', [
    (1, 'steps are marked', '<training>', 30), (0, 'steps are marked', '<training>', 30),
    (1, 'validation is slow', '<validation>', 14), (0, 'saving is slow', '<saving>', 2)])
def test_killed_workers_end_all_and_together_they_go_on_to_the_same_bits(
    dead, fault, moment, times, uninterrupted, tmp_path):
  flags = FLAGS + [f'--checkpoint_dir={tmp_path}']
  with ProcessCluster(fault=fault, flags=flags) as cluster:
    cluster.wait_for(dead, moment, times)
    wait_until(lambda: list_steps(str(tmp_path)))  # A thread writes them.
    cluster.kill(dead)
    assert_gone(cluster, 1 - dead, dead)
  with ProcessCluster(fault='steps are marked', flags=flags) as cluster:
    assert cluster.wait() == [0, 0]
    assert 'resumed from' in cluster.output(0) and 'of 45 steps are done' in cluster.output(1)
  assert_same_bits(tmp_path, uninterrupted)
  history = (tmp_path / 'history.json').read_text()
  assert history == (uninterrupted / 'history.json').read_text()


@pytest.mark.nightly
def test_the_launcher_starts_all_again_and_they_end_with_the_same_bits(uninterrupted, tmp_path):
  said = output_of(
      '-m', 'towers', 'launch', '--workers=2', '--restarts=2', '--evaluator', '--grace_seconds=10',
      '--', sys.executable, '-m', 'tests.harness.faulty_run', 'dies once', *FLAGS,
      f'--checkpoint_dir={tmp_path}', stderr=subprocess.STDOUT)
  assert 'worker 1 was killed by SIGKILL' in said and said.count('restart 1 of 2') == 1
  assert 'restart 2' not in said and 'resumed from' in said
  assert_same_bits(tmp_path, uninterrupted)
  # The evaluator, a process of its own, has measured the last weights on the whole split.
  evaluations = json.loads((tmp_path / 'evaluations.json').read_text())['evaluations']
  validations = json.loads((tmp_path / 'history.json').read_text())['validations']
  [evaluated] = [row for row in evaluations if row['step'] == 45]
  [validated] = [row for row in validations if row['step'] == 45]
  assert evaluated == pytest.approx(validated, abs=1e-5)


def test_a_worker_that_dies_in_its_start_is_missed():
  with ProcessCluster(faults={1: 'building is slow'}) as cluster:
    cluster.wait_for(1, '<set-up>')
    cluster.kill(1)
    assert_gone(cluster, 0, 1)


@pytest.mark.nightly
def test_a_worker_that_hangs_in_its_start_ends_and_so_do_the_others():
  with ProcessCluster(faults={1: 'building is slow'}, flags=['--start_seconds=8']) as cluster:
    assert cluster.wait() == [EXIT_CODE, EXIT_CODE]
    # The one that ends first may be missed by the other before that says so itself.
    # Where it hangs, ops may be counted.
    found = [re.search(doing + r'.* does not end: not all workers are ready to train 8 s \(start_',
                       cluster.output(worker)) for worker, doing in enumerate(
                           ['waiting for the graphs of the other workers', 'building the graph'])]
    assert any(found), cluster.all_output()
    for worker, is_found in enumerate(found):
      assert is_found or 'has ended. A step needs all workers' in cluster.output(worker), (
          cluster.all_output())


@pytest.mark.nightly
def test_a_worker_that_hangs_before_all_have_met_ends_by_itself():
  with ProcessCluster(faults={1: 'loading sleeps'}, flags=['--start_seconds=8']) as cluster:
    assert cluster.wait() == [EXIT_CODE, RunError.exit_code]
    assert 'worker 1' in cluster.output(0) and 'not there after 8 s' in cluster.output(0)
    assert ("This worker has done nothing for 8 s (start_seconds), and the others wait for it. It "
            "is still at 'packages and files'") in cluster.output(1)


@pytest.mark.nightly
def test_a_worker_that_stands_still_for_a_while_is_waited_for():
  with standing_still('--steps=60') as cluster:
    time.sleep(4)
    assert cluster.processes[0].poll() is None
    cluster.kill(1, signal.SIGCONT)
    assert cluster.wait() == [0, 0]


@pytest.mark.nightly
def test_a_worker_that_stands_still_for_too_long_is_named_and_ends_when_it_wakes():
  with standing_still('--worker_seconds=4') as cluster:
    assert cluster.wait(0, seconds=GONE_SECONDS + 4) == [EXIT_CODE]
    assert re.search(rf'worker 1 \({cluster.addresses[1]}\) does not answer for \d+ s '
                     r'\(worker_seconds\)', cluster.output(0))
    cluster.kill(1, signal.SIGCONT)
    assert_gone(cluster, 1, 0)


@pytest.mark.nightly
def test_a_worker_that_is_started_again_alone_neither_trains_nor_saves(tmp_path):
  flags = ['--start_seconds=8', '--checkpoint_every=10steps', f'--checkpoint_dir={tmp_path}']
  with ProcessCluster(fault='steps are marked', flags=flags) as cluster:
    cluster.wait_for(0, '<training>', 50)
    cluster.kill(0)
    cluster.processes[0].wait()
    saved = list_steps(str(tmp_path))
    time.sleep(2)  # What a start of Python takes, which `LoadedProcess` spares.
    cluster.start(0)  # The chief itself, which saves.
    assert cluster.wait(1, seconds=GONE_SECONDS) == [EXIT_CODE]
    assert cluster.wait(0) == [EXIT_CODE]
    assert list_steps(str(tmp_path)) == saved


@pytest.mark.nightly
def test_a_worker_whose_data_fail_is_named_with_its_reason():
  with ProcessCluster(faults={1: 'the map function raises'}, flags=['--batch_size=8']) as cluster:
    assert cluster.wait(1) == [3] and 'record 5 is damaged' in cluster.output(1)
    assert_gone(cluster, 0, 1)


@pytest.mark.parametrize('settings, words', [
    (dict(num_workers=3, flags_of={1: ['--batch_size=16', '--seed=3']}),
     r'worker 1 \(\S+\) has batch_size=16, the others 4; worker 1 \(\S+\) has seed=3, the '
     'others 0'),
    (dict(faults={1: 'other data'}),
     r'different versions, settings or data: worker 1 \(\S+\) has training_data="24 examples, '
     r'\w{8}", '
     r'the others "24 examples, \w{8}"\.')], ids=['flags', 'data'])
def test_what_differs_is_named_before_anything_is_built(settings, words):
  with ProcessCluster(**settings) as cluster:
    codes = cluster.wait()
    assert set(codes) == {2}
    for worker in range(len(codes)):
      assert re.search(words, cluster.output(worker)), cluster.output(worker)
      assert 'input:' not in cluster.output(worker)


def test_a_server_that_cannot_be_reached_is_named():
  ports = find_ports(2)
  worker = Worker(Cluster([f'127.0.0.1:{port}' for port in ports]), tf.ConfigProto())
  with pytest.raises(WorkerGone, match=rf'worker 1 \(127.0.0.1:{ports[1]}\) cannot be reached: '):
    worker.reach_others()


def test_sigterm_to_one_saves_once_and_all_leave(tmp_path):
  with ProcessCluster(fault='steps are marked', flags=[f'--checkpoint_dir={tmp_path}']) as cluster:
    cluster.wait_for(0, '<training>', 20)
    cluster.kill(1, signal.SIGTERM)  # Not the chief, which saves.
    assert cluster.wait(seconds=GONE_SECONDS) == [143, 143]
    [step] = list_steps(str(tmp_path))
    for worker in range(2):
      assert (f'ended after step {step}; started again, the run resumes from step {step}'
              in cluster.output(worker))


def run_process_cluster(flags, fault='none', codes=(0, 0)):
  """Runs two workers to their end; returns what each has said."""
  with ProcessCluster(fault=fault, flags=flags) as cluster:
    assert cluster.wait(seconds=120) == list(codes), cluster.all_output()
    return [cluster.output(worker) for worker in range(2)]


@pytest.mark.nightly
def test_the_chief_draws_curves_traces_and_exports_while_all_take_the_same_steps(tmp_path):
  folder = tmp_path / 'run'
  flags = [
      '--validation=tower', '--num_gpus=3', '--variables=replicated', '--steps=40',
      '--validate_every=7steps', '--checkpoint_every=1seconds', f'--checkpoint_dir={folder}',
      f"--summary_dir={tmp_path / 'summaries'}", f"--report={tmp_path / 'report.html'}",
      '--summary_every=5steps', '--trace_steps=11:12', f"--trace_file={tmp_path / 'trace.json'}",
      f"--result_file={tmp_path / 'result.json'}"]
  chief, other = run_process_cluster(flags, fault='steps are marked')
  assert (tmp_path / 'report.html').exists() and (tmp_path / 'trace.json').exists()
  result = json.loads((tmp_path / 'result.json').read_text())
  assert result['global_step'] == 40 and result['validation_examples'] == 20
  assert 'done: 40 steps' in chief and 'done: ' not in other
  assert list_steps(str(folder))[0] == 40 and len(list_steps(str(folder))) > 1


@pytest.mark.nightly
def test_early_stopping_stops_all_at_the_same_step(tmp_path):
  said = run_process_cluster([
      '--steps=400', '--validate_every=5steps', '--early_stopping=2', '--learning_rate=2',
      f'--checkpoint_dir={tmp_path}', '--checkpoint_every=1000steps'])
  stopped = [
      re.search(r'stopped early: no validation was better than .* after step (\d+)', text)
      for text in said]
  assert stopped[0].group(1) == stopped[1].group(1)
  assert list_steps(str(tmp_path))[0] < 400


@pytest.mark.parametrize('policy', ['skip'] + [
    pytest.param(policy, marks=pytest.mark.nightly) for policy in ('rollback', 'stop')])
def test_a_loss_of_nan_is_handled_by_all_workers_alike(policy, tmp_path):
  # Worker 1 has example 5, in every epoch of 6 steps.
  flags = ['--steps=20', '--checkpoint_every=3steps', f'--on_nan={policy}',
           f'--checkpoint_dir={tmp_path}']
  said = run_process_cluster(flags, fault='NaN', codes=(0, 0) if policy == 'skip' else (3, 3))
  assert 'in tower 0 component 0 of the batch holds NaN' in said[1] and 'another worker' in said[0]
  if policy == 'skip':
    assert list_steps(str(tmp_path))[0] == 20
    assert [text.count('it is skipped') for text in said] == [4, 4]
  elif policy == 'rollback':
    assert said[0].count('of the learning rate') == said[1].count('of the learning rate') == 3
    assert f'back to {tmp_path}/model.ckpt-' in said[1]
