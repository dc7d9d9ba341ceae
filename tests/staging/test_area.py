"""Staging in balance: what puts by itself; no order of fetches blocks or silently loses a batch."""

import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tests.harness import small
from towers.tensorflow_v1 import tf

NUM_TRAIN, NUM_VALIDATION, BATCH = 13, 9, 4
# A run that would block answers with an error within this time.
SECONDS = 5


def numbered(num_examples, name, sign):
  """Examples whose only feature is their own number, from 1 on, times `sign`."""
  numbers = sign * np.arange(1, num_examples + 1, dtype=np.float32)
  return small.random_examples(
      num_examples, name)._replace(arrays=(np.tile(numbers[:, np.newaxis], [1, small.NUM_FEATURES]),
                                           np.zeros(num_examples, np.int32)))


def count(batch, is_training):
  """A model whose loss is the number of the example, whatever its weight is."""
  del is_training
  features, _ = batch
  return features[:, 0] + 0.0 * tf.get_variable('weight', []), {'number': features[:, 0]}


def open_run(**settings):
  return small.Run(model=count, batch_size=BATCH, train=numbered(NUM_TRAIN, 'train', 1),
                   validation=numbered(NUM_VALIDATION, 'validation', -1), **settings)


def expected_mean(split, step):
  size = (NUM_TRAIN, NUM_VALIDATION)[split]
  begin = step % -(-size // BATCH) * BATCH
  numbers = np.arange(begin, min(begin + BATCH, size)) + 1
  return numbers.mean() * (-1 if split else 1)


def follow(pattern, run):
  """Fetches by name, and compares each batch that was taken with the one whose turn it is."""
  program, position = run.program, [0, 0]
  validation = program.validation
  loss, update, puts = program.gradients.loss, program.train_op, program.feed.put_ops
  fetches = {'loss': [loss], 'update': [update], 'both': [loss, update],
             'with puts': [loss, update] + puts}
  for name in pattern:
    if name in fetches:
      found = run.session.run(fetches[name])[0]
      if name != 'update':
        assert found == pytest.approx(expected_mean(0, position[0]), abs=1e-5)
    else:
      more = validation.feed.put_ops if name == 'validation with puts' else []
      sums = run.session.run([validation.sums] + more, {validation.is_validating: True})[0]
      assert sums[0] / sums[-1] == pytest.approx(expected_mean(1, position[1]), abs=1e-5)
    position[name.startswith('validation')] += 1


names = st.lists(st.sampled_from([
    'loss', 'update', 'both', 'with puts', 'validation', 'validation with puts']),
    min_size=2, max_size=12)
slowly = hypothesis.settings(deadline=None, derandomize=True,
                             suppress_health_check=[hypothesis.HealthCheck.too_slow])


@pytest.mark.parametrize('mode, num_towers, depth', small.nightly_but(
    [('split', 3, 1)],
    small.covering_grid(small.MODES, (1, 2, 3), small.DEPTHS)), ids=str)
def test_a_loss_an_update_and_a_validation_put_by_themselves(mode, num_towers, depth):
  with open_run(mode=mode, num_towers=num_towers, depth=depth) as run:

    @hypothesis.settings(slowly, max_examples=6)
    @hypothesis.given(names)
    def try_pattern(pattern):
      run.opened.start()
      follow(pattern, run)

    try_pattern()


@pytest.mark.nightly(but='host')
@pytest.mark.parametrize('placement', ['host', 'replicated'])
def test_every_micro_batch_puts_by_itself(placement):
  with open_run(accumulate=2, num_towers=2, placement=placement) as run:
    reduced = run.program.gradients
    for step in range(3):
      for _ in range(run.program.plan.num_micro_batches(step) - 1):
        run.session.run(reduced.add_op)
      loss = run.session.run([reduced.loss, run.program.train_op])[0]
      assert loss == pytest.approx(expected_mean(0, step), abs=1e-5)


def answer(run, fetches, feed):
  """Returns what a run of the session gives or raises; fails if it does neither."""
  answers = []

  def ask():
    try:
      answers.append(run.session.run(fetches, feed))
    except tf.errors.OpError as error:
      answers.append(error)

  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(SECONDS)
  assert answers, f'{fetches} blocked'
  return answers[0]


@pytest.mark.nightly(but='2-2')
@pytest.mark.parametrize('num_towers, depth', [(1, 1), (2, 2), (4, 1)])
def test_no_sequence_of_fetches_blocks(num_towers, depth):
  with open_run(num_towers=num_towers, depth=depth) as run:
    program = run.program
    feeds, is_validating = [program.feed, program.validation.feed], program.validation.is_validating
    fetches = {
        'a tower': program.towers[-1].loss, 'a metric': program.towers[0].sums['number'],
        'train puts': feeds[0].put_ops, 'one put': feeds[0].put_ops[0],
        'validation puts': feeds[1].put_ops, 'loss': program.gradients.loss,
        'update': program.train_op, 'sums': program.validation.sums}
    actions = st.lists(st.tuples(st.sampled_from(sorted(fetches)), st.booleans()), min_size=1,
                       max_size=8)

    @hypothesis.settings(slowly, max_examples=10)
    @hypothesis.given(actions)
    def try_actions(pattern):
      run.opened.start()
      for name, validates in pattern:
        found = answer(run, fetches[name], {is_validating: validates})
        if isinstance(found, Exception):
          assert isinstance(found, tf.errors.InvalidArgumentError)
          assert 'The staging area of tower' in str(found) and 'feed.start()' in str(found)
          break
      run.opened.start()
      follow(['both', 'validation', 'loss', 'update'], run)

    try_actions()


def test_an_area_out_of_balance_fails_every_run_until_its_feed_starts_again():
  with open_run(num_towers=3, depth=2) as run:
    wrong = [(run.program.towers[1].loss, 1), (run.program.feed.put_ops, 3)]
    for fetches, held in wrong:
      before = run.weights(), run.counters()
      run.session.run(fetches)
      for _ in range(4):
        found = answer(run, run.program.train_op, {})
        assert isinstance(found, tf.errors.InvalidArgumentError), found
        assert '(split train) must hold 2 batches between two runs' in str(found)
        assert f'It holds] [{held}]' in str(found)
      assert (run.weights(), run.counters()) == before
      run.opened.start()
      follow(['both', 'update', 'both'], run)


@pytest.mark.skipif(not hasattr(tf, 'enable_control_flow_v2') or tf.__version__.startswith('1.'),
                    reason='functional control flow of 1.14 has no gradients here')
def test_branches_that_are_functions_take_and_put():
  tf.enable_control_flow_v2()
  try:
    with open_run(num_towers=2) as run:
      follow(['both', 'validation', 'update', 'loss', 'validation'], run)
  finally:
    tf.disable_control_flow_v2()
