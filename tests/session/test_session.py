"""A session, whatever thread or default graph calls it, and whoever else runs what is beneath."""

import threading

import numpy as np
import pytest

import towers
from tests.harness import faults, small
from tests.harness.in_process_cluster import InProcessCluster
from towers.placement.counters import get_examples_seen, get_global_step
from towers.tensorflow_v1 import load_keras, tf

STEPS = 3


def build(**settings):
  return small.program(**dict(dict(train=small.random_examples(37), shuffle=True, seed=1),
                              **settings))


def in_main_thread(act):
  return act()


def in_other_graph(act):
  with tf.Graph().as_default():
    return act()


def in_other_thread(act):
  found = []
  thread = threading.Thread(target=lambda: found.append(act()))
  thread.start()
  thread.join()
  return found[0]


def predict_logits(features, labels):
  del labels
  return small.dense(tf.tanh(small.dense(features, 4, 'hidden')), small.NUM_CLASSES, 'logits')


CALLS = dict(
    train=lambda session, folder: session.train(),
    validate=lambda session, folder: session.validate(),
    run=lambda session, folder: session.run(session.program.train_op),
    fetch=lambda session, folder: session.run(
        [session.program.towers[0].loss, session.program.towers[0].variables]),
    save=lambda session, folder: small.read_checkpoint(session.save(folder + '/own')),
    restore=lambda session, folder: session.restore(folder + '/before')[-1:],
    evaluate=lambda session, folder: session.evaluate(small.random_examples(7, seed=5)),
    predict=lambda session, folder: session.predict(
        small.random_examples(7, seed=5), predict_logits),
    metrics=lambda session, folder: session.metrics(),
    step=lambda session, folder: session.step)
KINDS = dict(plain=dict(), micro=dict(accumulate=2), replicas=dict(variables='replicated'),
             tower=dict(validation_tower=True, num_towers=3), averages=dict(average_weights=0.9))


def call_all(where, folder, **settings):
  """Returns what each call gives between two steps, and the variables behind them."""
  program, given = build(**settings), {}
  with program.session() as session:
    for _ in range(STEPS):
      where(session.train)
    session.save(folder + '/before')
    for name, call in CALLS.items():
      if name == 'run' and 'accumulate' in settings:
        continue
      given[name] = where(lambda call=call: call(session, folder))
      given[f'a step after {name}'] = where(session.train)
    where(lambda: session.tf_session.run(program.towers[0].variables))
    given['the last step'] = where(session.train)
    assert session.step == session.run(get_step(program))
    given['variables'] = small.read_variables(program, session)
  return given


def get_step(program):
  with program.graph.as_default():
    return get_global_step()


@pytest.mark.nightly(but=['other_thread-plain', 'other_graph-averages'])
@pytest.mark.timeout(120)
@pytest.mark.parametrize('kind', sorted(KINDS))
@pytest.mark.parametrize('where', [in_other_graph, in_other_thread],
                         ids=['other_graph', 'other_thread'])
def test_each_call_does_what_it_does_in_the_main_thread(where, kind, tmp_path):
  expected = call_all(in_main_thread, str(tmp_path / 'main'), **KINDS[kind])
  found = call_all(where, str(tmp_path / 'other'), **KINDS[kind])
  assert list(found) == list(expected)
  for name, value in expected.items():
    for one, other in zip(tf.nest.flatten(found[name]), tf.nest.flatten(value)):
      np.testing.assert_array_equal(one, other, err_msg=name)


def train_by_hand(program, steps, every):
  """Does by the public methods what a run does; returns losses and validations."""
  losses, validations, running = [], [], None
  with program.session() as session:
    while session.step < steps:
      losses.append(session.take_step(running))
      is_last = session.step == steps
      if running is None and (session.step % every == 0 or is_last):
        running = session.begin_validation()
      if running is not None and (
          is_last or running.is_complete or not program.validation.has_tower):
        session.finish_validation(running)
        validations.append((running.step, running.means()))
        running = session.begin_validation() if is_last and running.step < steps else None
    if running is not None:
      session.finish_validation(running)
      validations.append((running.step, running.means()))
    assert not session.snapshot().step - steps
  return losses, validations


@pytest.mark.nightly(but='tower')
@pytest.mark.parametrize('kind', sorted(KINDS))
def test_a_loop_by_hand_gives_what_a_run_gives(kind):
  recorder = small.Recorder()
  towers.train(build(**KINDS[kind]), steps=12, validate_every='5steps', quiet=True,
               callbacks=[recorder])
  assert train_by_hand(build(**KINDS[kind]), 12, 5) == (recorder.losses, recorder.validations)
  assert [step for step, _ in recorder.validations] == [5, 10, 12]


def test_a_pass_that_was_left_is_measured_from_its_beginning():
  with build(validation_tower=True, num_towers=3).session() as session, \
      build(validation_tower=True, num_towers=3).session() as expected:
    left = session.begin_validation()
    losses = [session.take_step(left), session.train()]
    assert losses == [expected.train(), expected.train()] and not left.is_complete
    again = session.begin_validation()
    session.take_step(again)
    assert left.num_examples == again.num_examples == 8  # The second batch has three.


def test_a_step_that_is_not_finite_is_taken_again_unless_it_is_skipped():
  train = faults.poison(small.random_examples(16), 12)  # Of the second step.
  with small.program(train=train).session() as session:
    session.train()
    for _ in range(2):
      result = session.take_step()
      assert not np.isfinite(result) and 'is nan' in str(result.not_finite)
      assert session.step == session.examples_seen / 8 == 1
    session.skip()
    assert session.step == session.examples_seen / 8 == 2
    assert session.take_step().not_finite is None and session.step == 3


def test_a_save_beside_a_checkpoint_of_a_later_step_says_which_is_restored(tmp_path, capsys):
  for num_steps, is_told in [(3, False), (2, True)]:
    with build().session() as session:
      for _ in range(num_steps):
        session.train()
      path = session.save(str(tmp_path))
      told = 'checkpoint of step 3, of another run or way, which is restored from the folder: '
      assert (told + f'restore {path}' in capsys.readouterr().out) == is_told
      session.restore(str(tmp_path))
      assert session.step == 3


def test_a_snapshot_goes_on_in_another_graph(tmp_path):
  program = build()
  with program.session() as session:
    session.train()
    snapshot = session.snapshot()
    expected = [session.train() for _ in range(STEPS)]
    path = session.save(str(tmp_path))
    weights = small.read_variables(program, session)
  other = build(accumulate=2)
  with other.session() as session:
    session.resume_snapshot(snapshot)
    session.start()
    assert session.step == 1
    assert [session.train() for _ in range(STEPS)] == pytest.approx(expected, abs=1e-5)
    session.restore_to_measure(path)
    assert session.step == 1 + STEPS == session.plan.since.step
    small.assert_same_weights(small.read_variables(other, session), weights, tolerance=0)


def count_session_runs(session):
  """Returns a list that grows with each run of the `tf.Session` but those of prepared steps."""
  counted, shared = [], session._engine.session
  run = shared.run

  def count(*args, **kwargs):
    counted.append(args)
    return run(*args, **kwargs)

  shared.run = count
  return counted


def test_a_step_runs_the_session_once():
  with build().session() as session:
    session.train()
    counted = count_session_runs(session)
    for _ in range(STEPS):
      session.train()
    assert not counted and session._engine.runs == 1 + 1 + STEPS  # The start, and the steps.
    session.tf_session.run(get_step(session.program))
    for _ in range(STEPS):  # One look at the counters, whatever else has run.
      session.train()
    assert len(counted) == 1


def test_a_call_of_all_workers_is_told_only_while_it_goes_on():
  with build().session() as session:
    session.watch()  # As a run does, whose callbacks may take long between two calls.
    session.train()

    def ask():
      return in_other_thread(session._find_call)

    asked = []
    session.calls.run_by(lambda run, fetches: (asked.append(ask()), run(fetches))[1])
    assert ask() == ('', 0)
    session.train()
    assert ask() == ('', 0) and [call for call, _ in asked] == ['training after 1 steps']


def ids_model(batch, is_training):
  """Its loss is the mean of the examples' numbers."""
  ids, = batch
  return ids + 0 * tf.get_variable('w', [])


def number_examples(num_examples):
  return towers.from_arrays((np.arange(num_examples, dtype=np.float32),))


def test_an_update_counts_wherever_it_was_asked_for():
  program = build(model=ids_model, train=number_examples(48), validation=None, shuffle=False)
  with program.session() as session:
    losses = [session.train()]
    for where in (in_other_thread, in_other_graph, in_main_thread):
      losses.append(where(lambda: session.run([program.gradients.loss, program.train_op]))[0])
    assert session.step == 4
    session.run(program.towers[0].loss)  # Looks at a batch, so that the input starts again.
    losses += [session.train(), session.train()]
  assert losses == [3.5 + 8 * step for step in range(6)]


@pytest.mark.parametrize('num_steps', [0, 2])
def test_first_values_in_place_of_trained_ones_are_told(num_steps, capsys):
  program = build()
  with program.graph.as_default():
    start = tf.global_variables_initializer()  # As any program on bare TensorFlow has it.
  with program.session() as session:
    for _ in range(num_steps):
      session.train()
    session.run(start)
    assert session.step == 0 and np.isfinite(session.train()) and session.step == 1
  assert ('given all weights their first values again' in capsys.readouterr().err) == (
      num_steps > 0)


def test_an_update_in_the_session_beneath_counts():
  program = build(model=ids_model, train=number_examples(48), validation=None, shuffle=False)
  with program.session() as session:
    for _ in range(2):
      session.tf_session.run([program.train_op, program.feed.put_ops])
    assert session.step == 2 and session.train() == 3.5 + 16


def test_the_input_follows_a_saver_of_ones_own(tmp_path, capsys):
  program = build(average_weights=0.9)
  with program.session() as session:
    with program.graph.as_default():
      saver = tf.train.Saver()
    for _ in range(STEPS):
      session.train()
    saver.save(session.tf_session, str(tmp_path / 'own'))
    expected = [session.train() for _ in range(5)]
    in_other_thread(lambda: saver.restore(session.tf_session, str(tmp_path / 'own')))
    assert session.step == STEPS
    assert [session.train() for _ in range(5)] == expected
  assert 'WARNING' not in capsys.readouterr().out


@pytest.mark.parametrize('by', ['session', 'tf_session'])
def test_functions_of_tensorflow_take_it_for_a_session(by, tmp_path):
  program, path = build(average_weights=0.9), str(tmp_path / 'own')
  weight = program.towers[0].variables[0]
  with program.graph.as_default():
    saver, twice, step = tf.train.Saver(), weight * 2, get_global_step()
    add = weight.assign_add(tf.ones_like(weight)).op
  with program.session() as given:
    session = given if by == 'session' else given.tf_session
    given.train()
    asked = in_other_thread(lambda: saver.save(session, path, step))
    saved, expected = twice.eval(session=session), given.train()
    add.run(session=session)
    weight.load(weight.eval(session), session)
    assert tf.train.global_step(session, step) == 2
    trace = tf.RunMetadata()
    now = session.run(twice, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
                      run_metadata=trace)
    assert trace.step_stats.dev_stats and (now != saved).all()
    saver.restore(session, asked)
    assert given.step == 1 and given.train() == expected
    tf.summary.FileWriter(str(tmp_path / 'logs'), session.graph).close()


@pytest.mark.parametrize('by', ['run', 'tf_session'])
def test_a_step_that_is_set_alone_is_named_with_the_line_that_sets_the_examples(by, capsys):
  program = build(model=ids_model, train=number_examples(48), validation=None, shuffle=False)
  with program.graph.as_default():
    assign, seen = get_global_step().assign(1).op, get_examples_seen()
  with program.session() as session:
    for _ in range(STEPS):
      session.train()
    (session if by == 'run' else session.tf_session).run(assign)
    assert session.step == 1
    assert session.train() == 3.5 + 8 * STEPS and session.step == 2
    shown = capsys.readouterr().out
    assert 'global_step was 3 and is now 1, and examples_seen is 24' in shown
    line = 'towers.placement.counters.get_examples_seen().load(8, session.tf_session)'
    assert line in shown and shown.count('WARNING') == 1
    seen.load(8, session.tf_session)
    session.tf_session.run(assign)
    assert session.train() == 3.5 + 8 and session.step == 2
  assert 'WARNING' not in capsys.readouterr().out


def test_the_loop_follows_a_callback_that_restores_by_a_saver(tmp_path):
  program, recorder, losses = build(validation=None), small.Recorder(), []
  with program.graph.as_default():
    saver = tf.train.Saver()

  class Back(towers.Callback):
    def on_step(self, run):
      losses.append((run.step, run.metrics['loss']))
      if len(recorder.losses) == 2:
        saver.save(run.session.tf_session, str(tmp_path / 'own'))
      if len(recorder.losses) == 4:
        saver.restore(run.session.tf_session, str(tmp_path / 'own'))

  result = towers.train(program, steps=6, quiet=True, callbacks=[recorder, Back()])
  assert result['global_step'] == 6 and recorder.losses[2:4] == recorder.losses[4:6]


def ask_by_keras(session, weight):
  load_keras().backend.set_session(session.tf_session)
  return load_keras().backend.function([], [tf.identity(weight)])([])[0]


def ask_in_part(session, weight):
  weight = tf.identity(weight)
  return session.tf_session.partial_run(session.tf_session.partial_run_setup([weight]), weight)


def test_init_from_is_there_for_whoever_asks_first(tmp_path):
  with build().session() as session:
    session.train()
    session.save(str(tmp_path))
    saved = session.run(session.program.towers[0].variables[0])
  for ask in (lambda session, weight: session.tf_session.run(weight),
              lambda session, weight: weight.eval(),
              lambda session, weight: session.tf_session.make_callable(weight)(),
              ask_by_keras, ask_in_part, lambda session, weight: session.run(weight)):
    program = build(init_from=str(tmp_path))
    with program.session() as session:
      np.testing.assert_array_equal(ask(session, program.towers[0].variables[0]), saved)


@pytest.mark.nightly
def test_workers_are_called_in_threads_of_their_own(tmp_path):
  """Each call of `InProcessCluster` is in a thread without a default graph."""
  settings = dict(train=small.random_examples(37), shuffle=True)
  with InProcessCluster(num_workers=2, num_towers=1, **settings) as cluster:
    cluster.train(STEPS)
    [path, _] = cluster.each(lambda run: run.opened.save(str(tmp_path)))
    expected = cluster.train()
    assert cluster.each(lambda run: run.opened.step) == [STEPS + 1] * 2
  with small.Run(num_towers=2, **settings) as run:
    assert run.opened.restore(path) == path
    assert run.train() == pytest.approx(expected, abs=1e-6)
