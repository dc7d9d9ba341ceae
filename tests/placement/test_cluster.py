"""TF_CONFIG gives each process its rank, and mistakes in it show before anything starts."""

import json
import socket

import pytest

from towers.base.usage_error import UsageError
from towers.placement.cluster import listen, read_cluster
from towers.settings.config import Config

TWO = ['a:1', 'b:2']
FIRST, SECOND = [dict(type='worker', index=index) for index in range(2)]


def read(cluster, task, **more):
  return read_cluster({'TF_CONFIG': json.dumps(dict(more, cluster=cluster, task=task))})


def test_without_it_there_is_one_worker():
  texts = ('', ' ', '{}', '{"task": {"type": "worker", "index": 0}}', '{"cluster": {}}')
  for environ in [{}] + [{'TF_CONFIG': text} for text in texts]:
    cluster = read_cluster(environ)
    assert cluster.is_chief and not cluster.trains_together and cluster.rank == 0
    assert len(cluster.addresses) == 1


def test_workers_are_numbered_behind_the_chief():
  cluster = read(dict(worker=TWO), SECOND, environment='cloud')
  assert (cluster.addresses, cluster.rank, cluster.is_chief,
          cluster.trains_together) == (TWO, 1, False, True)
  assert read(dict(worker=TWO), FIRST).is_chief
  with_chief = dict(chief=['c:3'], worker=TWO)
  assert read(with_chief, dict(type='chief', index=0)).is_chief
  assert read(with_chief, dict(type='master', index=0)).is_chief
  cluster = read(with_chief, SECOND)
  assert (cluster.addresses, cluster.rank) == (['c:3', 'a:1', 'b:2'], 2)
  assert cluster.describe(2) == 'worker 2 (b:2)'


def test_an_evaluator_trains_with_nobody_and_so_does_one_worker():
  for cluster in (dict(worker=TWO), dict(worker=TWO, evaluator=['e:9'])):
    found = read(cluster, dict(type='evaluator', index=0))
    assert found.is_evaluator and not found.is_chief and not found.trains_together
  assert not read(dict(worker=['a:1']), FIRST).trains_together


def text_of(cluster, **task):
  return json.dumps(dict(cluster=cluster, task=task) if task else dict(cluster=cluster))


@pytest.mark.parametrize('text, words', [
    ('{"cluster"', 'is no JSON'), ('[1]', 'must be an object'), ('"worker"', 'must be an object'),
    (text_of([1]), 'cluster that is no object'),
    (text_of(dict(ps=['a:1'], worker=TWO), **FIRST), 'parameter servers'),
    (text_of(dict(wroker=TWO), **FIRST), 'the job "wroker"'),
    (text_of(dict(worker='a:1'), **FIRST), 'no list of addresses'),
    (text_of(dict(worker=[1]), **FIRST), 'the address 1'),
    (text_of(dict(worker=['a', 'b:1']), **FIRST), 'the address "a"'),
    (text_of(dict(worker=['a:x', 'b:1']), **FIRST), 'the address "a:x"'),
    (text_of(dict(worker=['a:70000']), **FIRST), 'must be host:port'),
    (text_of(dict(worker=['a:1', 'a:1']), **FIRST), 'a:1 twice'),
    (text_of(dict(chief=['a:1'], worker=['a:1']), **FIRST), 'a:1 twice'),
    (text_of(dict(chief=TWO), type='chief', index=0), '2 chiefs'),
    (text_of(dict(evaluator=TWO), type='evaluator', index=0), 'names no worker'),
    (text_of(dict(worker=TWO)), 'has no task, so that this process cannot know which of the 2'),
    (text_of(dict(worker=TWO), index=0), 'has no task'),
    (text_of(dict(worker=TWO), type='ps', index=0), 'task of type "ps"'),
    (text_of(dict(worker=TWO), type='worker', index='0'), 'worker "0", but names 2'),
    (text_of(dict(worker=TWO), type='worker', index=True), 'worker true, but names 2'),
    (text_of(dict(worker=TWO), type='worker', index=2),
     'worker 2, but names 2 of them: give an index from 0 to 1'),
    (text_of(dict(worker=TWO), type='worker', index=-1), 'worker -1'),
    (text_of(dict(worker=TWO), type='chief', index=0), 'chief 0, but names 0 of them: choose one')])
def test_mistakes_are_named_with_an_example(text, words):
  with pytest.raises(UsageError) as caught:
    read_cluster({'TF_CONFIG': text})
  message = str(caught.value)
  assert message.startswith('TF_CONFIG ') and words in message
  assert '"task": {"type": "worker"' in message


def test_a_port_that_somebody_listens_on_is_refused():
  with socket.socket() as other:
    other.bind(('127.0.0.1', 0))
    other.listen()
    port = other.getsockname()[1]
    cluster = read(dict(worker=[f'127.0.0.1:{port}', 'b:2']), FIRST)
    with pytest.raises(UsageError, match=f'worker 0 .* cannot listen on port {port} of this '
                                         'machine: Address'):
      listen(cluster, on_all=True)
  listen(cluster, on_all=True).close()


def test_the_chief_alone_writes():
  outputs = dict(result_file='r', summary_dir='s', report='p', trace_steps='3', export_dir='e',
                 checkpoint_dir='c')
  config = Config(**outputs)
  assert config.for_worker(read(dict(worker=TWO), FIRST)) is config
  other = config.for_worker(read(dict(worker=TWO), SECOND))
  assert [getattr(other, name) for name in outputs] == [None] * 5 + ['c']
  # Workers tune together, and an evaluator does not.
  for task in (SECOND, dict(type='evaluator')):
    tuned = Config(autotune=True).for_worker(read(dict(worker=TWO), task))
    assert tuned.autotune == (task is SECOND)
  # Which measures what the workers do not.
  for settings in (dict(validation='none'), dict(validation_tower=True)):
    found = Config(**settings).for_worker(read(dict(worker=TWO), dict(type='evaluator')))
    assert (found.validation, found.validation_tower) == ('switch', False)


@pytest.mark.parametrize('name', ['check', 'find_batch', 'input_only'])
def test_what_one_worker_does_alone_is_refused_among_several(name):
  with pytest.raises(UsageError, match=f'{name} is a job for one worker, and TF_CONFIG names 2'):
    Config(**{name: True}).for_worker(read(dict(worker=TWO), FIRST))


def test_a_run_that_may_be_started_again_as_more_workers_must_keep_checkpoints():
  cluster = read_cluster({'TF_CONFIG': json.dumps(dict(
      cluster=dict(worker=TWO[:1]), task=FIRST)), 'TOWERS_ELASTIC': '1'})
  with pytest.raises(UsageError, match='min_workers .* give the command a checkpoint_dir'):
    Config().for_worker(cluster)
  Config(checkpoint_dir='runs/a').for_worker(cluster)
  Config().for_worker(cluster._replace(is_elastic=False))
