"""Any sequence of training, validating, saving and resuming takes the planned examples."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import towers
from tensorflow_v1 import tf
from tests.harness.small import DEPTHS, MODES, Run, nightly_but
from towers.training.saving.checkpoints import Checkpoints

NUM_TRAIN, NUM_VALIDATION = 19, 11


def numbered(count, name, sign):
  """Returns examples that are their index + 1, times `sign`."""
  return towers.Examples(
      count, lambda: tf.data.Dataset.range(count).map(lambda index: sign * (index + 1)),
      name=name)


def model(numbers, is_training):
  """Returns the example as its own loss, whatever the weight."""
  del is_training
  weight = tf.get_variable('weight', [])
  values = tf.cast(numbers, tf.float32)
  return values + 0.0 * weight, {'square': tf.square(values)}


def expected_loss(step, batch_size):
  steps_per_epoch = -(-NUM_TRAIN // batch_size)
  begin = step % steps_per_epoch * batch_size
  return np.mean(1 + np.arange(begin, min(begin + batch_size, NUM_TRAIN)))


actions = st.lists(st.sampled_from(['train', 'train', 'train', 'validate', 'save', 'resume']),
                   min_size=4, max_size=20)
programs = st.tuples(st.sampled_from(MODES), st.integers(1, 4), st.sampled_from(DEPTHS),
                     st.integers(1, 3), st.sampled_from([1, 1, 2, 3]), st.booleans())


@pytest.mark.nightly
@pytest.mark.parametrize('random_seed', nightly_but([0], range(2)))
def test_any_history(tmp_path, random_seed):
  @seed(random_seed)
  @settings(max_examples=6, deadline=None, database=None, suppress_health_check=list(HealthCheck))
  @given(programs, programs, actions)
  def check(first_program, second_program, history):
    # Both programs have the same global batch, so that the second resumes from the first.
    _, num_towers, _, share, accumulate, _ = first_program
    other = second_program[1]
    batch_size = num_towers * other * share * accumulate
    folder = str(tmp_path / (f'{len(list(tmp_path.iterdir()))}'))

    def start(program):
      mode, num_towers, depth, _, _, validation_tower = program
      run = Run(mode=mode, num_towers=num_towers + validation_tower, depth=depth,
                batch_size=batch_size, model=model, accumulate=accumulate,
                validation_tower=validation_tower, train=numbered(NUM_TRAIN, 'train', 1),
                validation=numbered(NUM_VALIDATION, 'validation', -1))
      with run.graph.as_default():
        checkpoints = Checkpoints(folder, keep=2)
        checkpoints.restore(run.session)
        step, seen = run.counters()
      run.steps.start(step)
      return run, checkpoints, step, seen

    run, checkpoints, step, seen = start(first_program)
    saved = (0, 0)
    for action in history:
      if action == 'train':
        assert run.train() == pytest.approx(expected_loss(step, batch_size), rel=1e-5)
        seen += min(batch_size, NUM_TRAIN - step % -(-NUM_TRAIN // batch_size) * batch_size)
        step += 1
      elif action == 'validate':
        means, count = run.validate()
        numbers = -1.0 - np.arange(NUM_VALIDATION)
        assert count == NUM_VALIDATION
        assert means == pytest.approx({'loss': numbers.mean(), 'square': np.square(numbers).mean()},
                                      rel=1e-5)
      elif action == 'save':
        with run.graph.as_default():
          checkpoints.save(run.session)
        saved = (step, seen)
      else:
        run.session.close()
        run, checkpoints, step, seen = start(second_program)
        assert (step, seen) == saved
      assert run.counters() == [step, seen]
    run.session.close()

  check()
