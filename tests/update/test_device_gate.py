"""The gate on the device: good steps are those of the gate on the host, refused ones move nothing.

CPU devices count as GPUs here, so that tensors are packed and gated as on these.
"""

import itertools
import re

import numpy as np
import pytest

from tests.harness import faults
from tests.harness.small import Run, nightly_but
from tests.update import test_nan_guard
from tests.update.test_nan_guard import ROW, TRAIN, everything, normed, refuse_step
from towers.tensorflow_v1 import select, tf
from towers.update.all_finite import build_all_finite, find_units

KNOWN = ('sgd', 'momentum', 'nesterov', 'adam')
VALUES = (np.nan, np.inf, -np.inf)


def name(value):
  return re.sub(r'<function (\w+) at \w+>', r'\1', str(value))


@pytest.fixture(name='on_gpus')
def count_cpus_as_gpus(monkeypatch):
  for module in ('all_finite', 'device_gate'):
    monkeypatch.setattr(f'towers.update.{module}.is_gpu', lambda device: True)


def summing(batch, is_training):
  """Adds a variable that is assigned to UPDATE_OPS, where ops are usual."""
  found = normed(batch, is_training)
  [weights] = [variable for variable in tf.trainable_variables() if 'logits/w' in variable.name]
  kept = tf.get_variable('sum', [], trainable=False, initializer=tf.zeros_initializer())
  tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, kept.assign(tf.reduce_sum(weights)))
  return found


def is_gated_on_device(run):
  return any(op.name.startswith('apply/gate/Select') for op in run.graph.get_operations())


def train(steps=5, **settings):
  with Run(**{**dict(num_towers=3, model=normed), **settings}) as run:
    losses = [run.train() for _ in range(steps)]
    return is_gated_on_device(run), losses, everything(run)


CASES = [
    (dict(optimizer=optimizer, placement=placement, **more), optimizer in KNOWN)
    for optimizer, placement, more in [
        ('sgd', 'first', dict(weight_decay=0.1)),
        ('momentum', 'replicated', dict(clip_norm=0.1, weight_decay=0.1)),
        ('nesterov', 'host', dict(accumulate=2)),
        ('adam', 'replicated', dict(average_weights=0.9, precision='mixed')),
        ('adam', 'first', dict(batch_norm='mean', weight_decay=0.1)),
        ('momentum', 'first', dict(model=summing)),
        ('rmsprop', 'first', {}),
    ]]


@pytest.mark.parametrize('settings, is_known', nightly_but([CASES[3], CASES[-1]], CASES),
                         ids=name)
def test_good_steps_are_those_of_the_gate_on_the_host_to_the_bit(settings, is_known, on_gpus,
                                                                 monkeypatch):
  gated, losses, state = train(**settings)
  assert gated == is_known
  monkeypatch.setattr('towers.update.device_gate.is_gpu', lambda device: False)
  gated, losses_by_host, state_by_host = train(**settings)
  assert not gated and losses == losses_by_host
  test_nan_guard.assert_unchanged(state, state_by_host)


REFUSED = [(settings, value) for (settings, _), value in zip(CASES, itertools.cycle(VALUES))
           if 'precision' not in settings]


@pytest.mark.parametrize('case, value', nightly_but(REFUSED[1:2], REFUSED), ids=name)
def test_a_refused_step_changes_nothing(case, value, on_gpus):
  with Run(**{**dict(num_towers=3, model=normed), **case},
           train=faults.poison(TRAIN, ROW, value)) as run:
    before, after = test_nan_guard.skip_refused_step(run)
    assert run.counters() == [3, 24]
    assert all(not np.array_equal(after[name], before[name]) for name in run.weights())


def test_no_bit_of_adagrad_moves_either(on_gpus):
  settings = dict(train=faults.poison(TRAIN, ROW), placement='replicated')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('towers.cli.jobs.build_optimizer',
                  lambda name, rate, **_: tf.train.AdagradOptimizer(rate))
    with Run(num_towers=2, **settings) as run:
      assert is_gated_on_device(run)
      run.train()
      refuse_step(run)


# A scalar, vectors, matrices, a tensor that is too large to be packed, another dtype, and rows.
SHAPES = [(), (3,), (2, 2), (0,), (50, 90), (7, 1), (5,), (4, 4, 2)]


def poisoned(index, position, value):
  """Returns tensors of SHAPES, and whatever else may be a gradient, with one bad number."""
  values = [np.ones(shape, np.float64 if place == 6 else np.float32)
            for place, shape in enumerate(SHAPES)]
  if index is not None:
    values[index].reshape(-1)[position] = value
  return values


@pytest.mark.parametrize('packs, splits', [(False, False), (True, False), (True, True)])
def test_every_bad_number_is_found_and_no_other(packs, splits, monkeypatch):
  monkeypatch.setattr('towers.update.all_finite.is_gpu', lambda device: packs)
  monkeypatch.setattr('towers.update.all_finite._LARGEST_PACKED_BYTES', 10000)
  with tf.Graph().as_default(), tf.Session() as session, tf.device('/device:CPU:0'):
    given = [tf.placeholder(value.dtype, value.shape) for value in poisoned(None, 0, 0)]
    tensors = list(given)
    if splits:
      # The two vectors come from one buffer, as after an all-reduce.
      buffer = tf.concat([given[1], tf.reshape(given[5], [-1])], 0)
      tensors[1], tensors[5] = tf.split(buffer, [3, 7])
      tensors[5] = tf.reshape(tensors[5], [7, 1])
    rows = tf.IndexedSlices(given[7], tf.constant([0, 1, 2, 3]))
    found = build_all_finite([*tensors[:7], None, rows])
    call = session.make_callable(found, given)
    assert call(*poisoned(None, 0, 0))
    for index, shape in enumerate(SHAPES):
      size = int(np.prod(shape))
      for position, value in itertools.product({0, size // 2, size - 1} if size else (), VALUES):
        assert not call(*poisoned(index, position, value)), (index, position, value)
    mixed = poisoned(2, 0, np.inf)
    mixed[2][1, 1] = -np.inf
    assert not call(*mixed)
    joins = [op for op in tf.get_default_graph().get_operations() if op.type == 'ConcatV2']
    assert len(joins) == packs + splits


@pytest.mark.parametrize('is_open', [True, False])
def test_units_are_split_into_what_they_hold(is_open, on_gpus):
  with tf.Graph().as_default(), tf.Session() as session, tf.device('/device:CPU:0'):
    values = [np.random.RandomState(0).standard_normal(shape) for shape in SHAPES]
    tensors = [tf.constant(value) for value in values]
    tensors[1], tensors[6] = tf.split(tf.concat([tensors[1], tensors[6]], 0), [3, 5])
    passed = {}
    for unit in find_units(tensors, False):
      passed.update(unit.split(select(tf.constant(is_open), unit.tensor, -0.0)))
    for tensor, value in zip(tensors, values):
      found = session.run(passed[tensor.name])
      assert found.shape == value.shape
      np.testing.assert_array_equal(found, value if is_open else np.zeros_like(value))
