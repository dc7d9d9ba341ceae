"""Workers: what they send, and that all have the same state, votes and verdicts."""

import contextlib
import functools

import pytest

from tests.harness import faults, small
from tests.harness.in_process_cluster import InProcessCluster
from tests.tower.batch_norm.test_moving_averages import averages
from tests.tower.batch_norm.test_moving_averages import model as batch_norm_model
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.placement.counters import get_global_step
from towers.process.run_error import RunError
from towers.reduce.average import VOTES
from towers.tensorflow_v1 import tf
from towers.tensorflow_v1.collectives import SUMS_16_BITS
from towers.training.reporting.describe import describe_run

STEPS = 7


def make_cluster(shape, **settings):
  num_workers, num_towers = shape
  if num_workers == 1:
    pytest.skip('one worker has no cluster')
  return InProcessCluster(num_workers=num_workers, num_towers=num_towers, **settings)


def assert_one_tower(cluster, one, *, steps=STEPS, tolerance=2e-6):
  for _ in range(steps):
    assert cluster.train() == pytest.approx(one.train(), abs=tolerance)
  counters = [run.counters() for run in cluster.runs]
  assert counters == [one.counters()] * len(counters)
  weights = [run.weights() for run in cluster.runs]
  for other in weights:
    small.assert_same_weights(other, one.weights(), tolerance)
    assert all(other[name].tobytes() == value.tobytes() for name, value in weights[0].items())


@pytest.mark.nightly
@pytest.mark.parametrize('kind', ['first', 'mean'])
def test_moving_averages_are_those_of_as_many_towers_of_one_worker(kind):
  # The towers of two workers take turns: 0 2 | 1 3.
  settings = dict(model=batch_norm_model, batch_norm=kind, mode='shard', validates=True,
                  train=small.random_examples(16))
  with make_cluster((2, 2), **settings) as cluster, small.Run(num_towers=4, **settings) as one:
    assert_one_tower(cluster, one, tolerance=1e-5)
    means = [means for means, _ in cluster.each(lambda run: run.validate())]
    assert means[0] == means[1] == pytest.approx(one.validate()[0], abs=1e-5)
    for run in cluster.runs:
      small.assert_same_weights(averages(run), averages(one), 1e-5)


@pytest.mark.nightly
def test_before_validation_the_chief_sends_what_workers_move_apart_and_no_slot_or_average():
  settings = dict(optimizer='adam', average_weights=0.9, validates=True)
  with make_cluster((2, 1), **settings) as cluster:
    cluster.train()
    everywhere = cluster.each(small.Run.variables)
    assert 'hidden/weights/Adam_1' in everywhere[0]
    assert not find_different(everywhere)
    assert cluster.runs[0].program.broadcast.moved_op is None
  with make_cluster((2, 1), model=batch_norm_model, **settings) as cluster:
    cluster.train(3)
    moving = set(averages(cluster.runs[0]))
    assert find_different(cluster.each(small.Run.variables)) == moving and len(moving) == 4
    run = cluster.runs[0]
    sent = [op for op in find_needed([run.program.broadcast.moved_op])
            if op.type == 'CollectiveBcastSend']
    assert sum(op.inputs[0].shape.num_elements() for op in sent) == sum(
        value.size for value in averages(run).values())
    cluster.each(lambda run: run.opened.begin_validation())
    assert not find_different(cluster.each(small.Run.variables))


def find_different(everywhere):
  """Returns the names of the variables that have not the same bits in all workers."""
  return {name for name, value in everywhere[0].items()
          if any(other[name].tobytes() != value.tobytes() for other in everywhere[1:])}


@pytest.mark.nightly
def test_programs_one_after_another_on_the_same_servers_train_as_on_their_own():
  # The all-reduce is of other tensors, devices and sizes, and then of the first again.
  programs = [dict(), dict(placement='replicated', fusion_megabytes=0.0), dict()]
  servers = []
  for program in programs:
    settings = dict(train=small.random_examples(16), mode='shard', depth=2, validates=True,
                    **program)
    with make_cluster((2, 2), **settings) as cluster, small.Run(num_towers=1, **settings) as one:
      assert_one_tower(cluster, one, steps=3)
      cluster.each(lambda run: run.validate())
    servers.append(cluster.servers)
  assert all(one is servers[0] for one in servers)


def test_a_servers_next_session_finds_nothing_of_the_one_before():
  with make_cluster((2, 1)) as cluster:
    cluster.train()
    run = cluster.runs[0]
    with run.graph.as_default():
      unset = tf.report_uninitialized_variables()
      names = {variable.op.name for variable in tf.global_variables()}
    assert len(run.session.run(unset)) == 0
    run.session.close()
    with tf.Session(run.target, graph=run.graph, config=run.session_config) as session:
      assert names <= {name.decode() for name in session.run(unset)}


def looked_up(batch, is_training):
  """Rows of a table: their gradients are sparse."""
  table = tf.get_variable('table', [1000, small.NUM_FEATURES])
  return small.model((batch[0] + tf.gather(table, batch[1]), batch[1]), is_training)


@pytest.mark.nightly(but='host-looked_up')
@pytest.mark.parametrize('placement, model', [
    ('host', small.model), ('replicated', small.model), ('host', looked_up)],
    ids=lambda value: getattr(value, '__name__', value))
def test_nan_in_one_worker_changes_nothing_in_any(placement, model):
  train = faults.poison(small.random_examples(16), 5)  # Of worker 1.
  with make_cluster((2, 2), train=train, batch_size=16, placement=placement,
                    model=model) as cluster:
    before = [run.weights() for run in cluster.runs]
    findings = cluster.each(take_what_is_not_finite)
    assert 'another worker' in str(findings[0])
    assert 'in tower 0 component 0 of the batch holds NaN or Inf and the loss is nan and the ' in (
        str(findings[1]))
    for run, weights in zip(cluster.runs, before):
      small.assert_same_weights(run.weights(), weights, 0)
      assert run.counters() == [0, 0]
      assert not any(run.opened.agree(request, False) for request in VOTES)


def take_what_is_not_finite(run):
  finding = run.opened.take_step().not_finite
  assert not finding.is_done
  return finding


# Of 2 ** 30 the towers' own gradients are far from an overflow, which float16 has on the way.
@pytest.mark.nightly
@pytest.mark.parametrize('wire, exponent', [
    ('float32', 60), *([('float16', 30)] if SUMS_16_BITS else [])])
def test_an_overflow_lowers_the_loss_scale_in_all(wire, exponent):
  with make_cluster((2, 1), precision='mixed', wire=wire,
                    train=small.random_examples(16)) as cluster:
    for run in cluster.runs:
      run.program.gradients.loss_scale.variable.load(2.0 ** exponent, run.session)
    cluster.train()
    for run in cluster.runs:
      assert run.session.run(run.program.gradients.loss_scale.variable) == 2.0 ** (exponent - 1)
      assert run.opened.step == 1


@pytest.mark.nightly
def test_workers_at_different_steps_change_nothing_and_say_so():
  with make_cluster((3, 1), train=small.random_examples(16), batch_size=16) as cluster:
    cluster.train()
    with cluster.runs[1].graph.as_default():
      get_global_step().load(7, cluster.runs[1].session)
    before = [run.weights() for run in cluster.runs]

    def refused(run):
      with pytest.raises(RunError, match='not at the same step: this one has done 1.*start all of '
                                         'them again'):
        run.train()

    cluster.each(refused)
    for run, weights in zip(cluster.runs, before):
      small.assert_same_weights(run.weights(), weights, 0)


def test_all_workers_get_a_vote_after_the_next_step_and_once():
  with make_cluster((2, 1)) as cluster:
    def agree(request, voter=None):
      return [run.opened.agree(request, run is voter) for run in cluster.runs]

    assert agree('save', cluster.runs[1]) == [False] * 2
    cluster.train()
    assert agree('save', cluster.runs[1]) == [True] * 2
    cluster.train()
    assert agree('save') == agree('leave') == [False] * 2


def test_the_chiefs_state_becomes_that_of_all():
  with make_cluster((2, 1)) as cluster:
    for number, run in enumerate(cluster.runs):
      with run.graph.as_default():
        for variable in tf.global_variables():
          value = run.session.run(variable)
          variable.load((value + number).astype(value.dtype), run.session)
    expected = cluster.runs[0].variables()
    cluster.each(lambda run: run.opened.resume())
    assert 'global_step' in expected and 'hidden/weights/Momentum' in expected
    assert not find_different([expected, *cluster.each(small.Run.variables)])


def test_workers_that_part_are_named_at_the_next_validation():
  with make_cluster((2, 1), validates=True) as cluster:
    cluster.each(lambda run: run.opened.validate())
    cluster.train()
    cluster.each(lambda run: run.opened.check_replicas())
    last = cluster.runs[1]
    with last.graph.as_default():  # As a callback of one worker does.
      weights = tf.trainable_variables()[1]
      weights.load(last.session.run(weights) * 1.001, last.session)

    def check(run, call):
      differs = r'After step 1 this worker has another hidden/biases than the chief \(1 of 4'
      with contextlib.ExitStack() as stack:
        if run is last:
          stack.enter_context(pytest.raises(RunError, match=differs))
        call(run)

    for call in (lambda run: run.opened.check_replicas(),
                 lambda run: run.opened.begin_validation()):
      cluster.each(functools.partial(check, call=call))


def test_what_no_worker_can_reduce_is_refused_and_one_reduces_nothing():
  def model(batch, is_training):
    features, labels = batch
    weights = tf.get_variable('weights', [5, 3], tf.float16)
    logits = tf.cast(tf.matmul(tf.cast(features, tf.float16), weights), tf.float32)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), {}

  with pytest.raises(UsageError, match='float16, which no all-reduce can sum'):
    small.Run(model=model, num_workers=2, num_towers=1)
  with small.Run(num_towers=2) as run:
    assert run.program.gradients.votes is None and run.program.broadcast is None
    assert not [op for op in run.graph.get_operations() if op.type.startswith('Collective')]
  # An elastic run may go on as one worker.
  with small.Run(num_towers=2, collective='ring') as run:
    assert not [op for op in run.graph.get_operations() if op.type.startswith('Collective')]
    with run.graph.as_default():
      assert ('\ncollective=ring has nothing to sum: there is one worker, whose towers share their '
              'variables\n') in describe_run(run.program)
  for num_workers in (1, 2):
    with pytest.raises(UsageError, match='runs on GPUs alone'):
      small.Run(num_towers=2, num_workers=num_workers, collective='nccl')
