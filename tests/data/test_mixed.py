"""Mixtures: every batch and every epoch have the shares, on any towers, resumed anywhere."""

import collections

import numpy as np
import pytest

import towers
from tests.data.test_records import write_texts
from tests.harness import small
from tests.harness.in_process_cluster import InProcessCluster
from tests.harness.taking import take
from towers.base.usage_error import UsageError
from towers.data.mixed import _count
from towers.input.plan import build_plan
from towers.input.resume_point import ResumePoint
from towers.tensorflow_v1 import tf

SIZES, SHARES = {'web': 40, 'books': 11, 'code': 5}, {'web': 5, 'books': 2, 'code': 1}
NAMES, COUNTS = list(SIZES), {'web': 40, 'books': 16, 'code': 8}  # Of an epoch.


def rows(name):
  """Returns rows of a part: which it is, and the number of the example."""
  part = NAMES.index(name)
  return np.float32([[part, number] for number in range(SIZES[name])])


def mixture(**settings):
  return towers.mixed({name: towers.from_arrays((rows(name),)) for name in NAMES},
                      **dict(dict(shares=SHARES), **settings))


def check_batch(batch, shares=SHARES):
  """Asserts that the rows of a global batch are less than one away from the shares."""
  counts = np.bincount(batch[:, 0].astype(int), minlength=3)
  wanted = len(batch) * np.array([shares[name] for name in NAMES]) / sum(shares.values())
  assert (abs(counts - wanted) < 1).all(), (counts, wanted)


def check_passes(batches):
  """Asserts that each part is seen as often in every example of it, up to once."""
  taken = np.concatenate(batches).astype(int)
  for part, name in enumerate(NAMES):
    times = np.bincount(taken[taken[:, 0] == part, 1], minlength=SIZES[name])
    assert len(times) == SIZES[name] and np.ptp(times) <= 1, (name, times)


@pytest.mark.parametrize('seed', range(8))
def test_all_batches_and_epochs_have_the_shares(seed):
  random = np.random.RandomState(seed)
  for _ in range(12):
    num_parts = random.randint(1, 7)
    sizes = {part: int(random.randint(20, 200)) for part in range(num_parts)}
    shares = {part: float(random.randint(1, 9)) for part in range(num_parts)}
    counts = np.array(_count(sizes, shares, random.randint(num_parts), 'train'))
    of_epoch = counts.sum()
    wanted = of_epoch * np.array(list(shares.values())) / sum(shares.values())
    assert (abs(counts - wanted) < 1).all()
    mixed = towers.data.examples.Mixture(tuple(sizes.values()), tuple(counts.tolist()), True)
    ends = np.cumsum(mixed.sizes)
    plan = build_plan(num_examples=of_epoch, batch_size=random.randint(1, of_epoch + 1),
                      num_towers=1)
    taken = [plan.indices_at(step, seed=seed, buckets=mixed) % ends[-1]
             for step in range(2 * plan.steps_per_epoch)]
    found = [np.bincount(np.searchsorted(ends, ids, 'right'), minlength=num_parts) for ids in taken]
    for step, parts in enumerate(found):
      assert (abs(parts - len(taken[step]) * counts / of_epoch) < 1).all()
      up_to = np.sum(found[step // plan.steps_per_epoch * plan.steps_per_epoch:step + 1], 0)
      assert (abs(up_to - up_to.sum() * counts / of_epoch) < 1).all()
    assert (np.sum(found, 0) == 2 * counts).all()
    times = np.bincount(np.concatenate(taken), minlength=ends[-1])
    assert all(np.ptp(part) <= 1 for part in np.split(times, ends[:-1]))


def model_into(taken):
  """Returns a model that notes the rows that it takes in the last of the lists `taken`."""
  def model(batch, is_training):
    del is_training
    noted = tf.py_func(lambda rows: [taken[-1].extend(rows.tolist()), rows][1], [batch[0]],
                       tf.float32)
    with tf.control_dependencies([noted]):
      return tf.reduce_sum(tf.square(tf.get_variable('weight', [2]) - batch[0] / 40), 1)

  return model


def train_part(folder, num_steps, *, batch_size=16, train=None, **settings):
  """Trains on; returns the rows of each step, which are those that its plan says, in their order.
  """
  taken, train = [], train or mixture()
  program = small.program(model_into(taken), train=train, validation=None, batch_size=batch_size,
                          shuffle=True, **settings)
  all_rows = np.concatenate([rows(name) for name in NAMES])
  with program.session() as session:
    if folder.exists():
      session.restore(str(folder))
    for _ in range(num_steps):
      taken.append([])
      planned = session.plan.indices_at(session.step, seed=0, buckets=train.buckets)
      session.train()
      planned = all_rows[planned % len(all_rows)].tolist()
      # A tower without an example has a row that only fills its batch.
      assert set(map(tuple, taken[-1])) == set(map(tuple, planned))
      assert len(taken[-1]) - len(planned) < settings.get('num_towers', 1)
      taken[-1] = planned
    session.save(str(folder))
    return [np.array(rows) for rows in taken], small.read_variables(program, session)


SHAPES = [dict(num_towers=1), dict(num_towers=3, input_mode='shard', staging_depth=2),
          dict(num_towers=2, input_mode='next', staging_depth=0), dict(num_towers=2, accumulate=2),
          dict(num_towers=8, variables='replicated')]


@pytest.mark.nightly(but=['16-1'])
@pytest.mark.parametrize('first', range(len(SHAPES)))
@pytest.mark.parametrize('batch_size', [8, 14, 16])
def test_a_run_is_the_same_on_any_towers_resumed_anywhere(batch_size, first, tmp_path):
  whole, weights = train_part(tmp_path / 'whole', 9, batch_size=batch_size, num_towers=1)
  parts = []
  for index, num_steps in enumerate((3, 1, 5)):
    settings = SHAPES[(first + index) % len(SHAPES)]
    taken, resumed = train_part(tmp_path / 'parts', num_steps, batch_size=batch_size, **settings)
    parts += taken
  for one, other in zip(whole, parts):
    assert sorted(one.tolist()) == sorted(other.tolist())
    check_batch(one)
  check_passes(whole)
  assert collections.Counter(len(rows) for rows in whole)[batch_size] >= 7
  for name, value in weights.items():
    np.testing.assert_allclose(resumed[name], value, rtol=0, atol=1e-5)


def test_two_workers_take_it_as_one_does():
  parts = {name: small.random_examples(size, seed=size) for name, size in SIZES.items()}
  train = towers.mixed(parts, SHARES)
  with small.Run(train=train, num_towers=1, shuffle=True) as alone, \
      InProcessCluster(num_workers=2, train=train, shuffle=True, mode='shard') as both:
    for _ in range(10):
      assert both.train() == pytest.approx(alone.train(), abs=1e-5)
    small.assert_same_weights(both.runs[1].weights(), alone.weights())


def test_in_the_mean_only_epochs_have_the_shares(tmp_path):
  train = mixture(per_batch=False)
  taken, _ = train_part(tmp_path / 'mean', 4, train=train)
  found = np.bincount(np.concatenate(taken)[:, 0].astype(int))
  assert found.tolist() == list(COUNTS.values())
  with pytest.raises(AssertionError):
    for batch in taken:
      check_batch(batch)
  # So that any batch size goes on in the middle of an epoch.
  first, _ = train_part(tmp_path / 'parts', 1, train=train)
  rest, _ = train_part(tmp_path / 'parts', 6, train=train, batch_size=8, num_towers=3)
  assert sorted(np.concatenate(first + rest).tolist()) == sorted(np.concatenate(taken).tolist())


def test_the_named_part_ends_the_epoch():
  for part, counts in (('web', (40, 16, 8)), ('books', (28, 11, 5)), ('code', (25, 10, 5)),
                       (None, (40, 16, 8))):
    assert mixture(epoch_of=part).buckets.counts == counts
  assert mixture(shares=None).buckets.counts == (40, 40, 40)
  tenths = {'web': 0.1, 'books': 0.2, 'code': 0.7}
  assert mixture(shares=tenths, epoch_of='code').buckets.counts == (1, 1, 5)


def test_classes_are_balanced_by_a_line():
  random = np.random.RandomState(0)
  labels = random.choice(3, size=100, p=[0.8, 0.15, 0.05])
  numbers = np.arange(100)
  examples = towers.mixed(towers.from_arrays(numbers, labels), by=labels)
  most = np.bincount(labels).max()
  assert examples.num_examples == 3 * most
  steps = take(examples, batch_size=12, num_steps=3 * most // 12, num_towers=2, shuffle=True)
  for by_tower in steps:
    ids, found = [np.concatenate(parts) for parts in zip(*(tensors for tensors, _ in by_tower))]
    assert np.bincount(found).tolist() == [4, 4, 4] and (labels[ids] == found).all()
  times = np.bincount(np.concatenate([tensors[0] for step in steps for tensors, _ in step]))
  assert all(np.ptp(times[labels == label]) <= 1 for label in range(3))
  named = towers.mixed(towers.from_arrays(numbers), {'a': 3, 'b': 1}, by=np.where(labels, 'b', 'a'))
  assert named.buckets.counts == (most, round(most / 3))


@pytest.mark.nightly(but=['records', 'gathered'])
@pytest.mark.parametrize('kind', ['gathered', 'records', 'unequal', 'beside'])
def test_parts_of_any_kind_are_read_as_arrays_are(kind, tmp_path):
  def make(name):
    if kind == 'records' or kind == 'beside' and name == 'books':
      write_texts(tmp_path / name, [row.tobytes() for row in rows(name)])
      return towers.from_tfrecords(str(tmp_path / name), lambda record: (
          tf.reshape(tf.decode_raw(record, tf.float32), [2]),))
    if kind == 'unequal':
      return towers.from_arrays(([row[:1 + number % 2] for number, row in enumerate(rows(name))],))
    return towers.from_arrays((rows(name),))

  parts = {name: make(name) for name in NAMES}
  examples = towers.mixed(parts, SHARES)
  expected = take(mixture(), batch_size=16, num_steps=9, first_step=2, shuffle=True)
  if kind == 'unequal':
    examples = towers.padded(examples)
  for mode, num_towers in (('split', 1), ('shard', 3)):
    steps = take(examples, batch_size=16, num_steps=9, first_step=2, shuffle=True, mode=mode,
                 num_towers=num_towers)
    for step, ([((found,), _)]) in zip(steps, expected):
      mine = np.concatenate([tensors[0] for tensors, _ in step])
      if kind == 'unequal':
        assert sorted(mine[:, 0]) == sorted(found[:, 0])
      elif num_towers == 1:
        np.testing.assert_array_equal(mine, found)
      else:
        assert sorted(mine.tolist()) == sorted(found.tolist())


def test_an_example_that_comes_again_is_augmented_anew():
  examples = towers.augmented(mixture(), lambda example, draws: (
      tf.concat([example[0], draws.uniform([1])], 0),))
  runs = [take(examples, batch_size=16, num_steps=4, shuffle=True, mode=mode, num_towers=towers)
          for mode, towers in (('split', 1), ('shard', 2))]
  one, other = [np.concatenate([tensors[0] for step in steps for tensors, _ in step])
                for steps in runs]
  assert sorted(one.tolist()) == sorted(other.tolist())
  assert len({tuple(row) for row in one[:, :2]}) == 56 and len({tuple(row) for row in one}) == 64


def check_what_is_left(parts, counts):
  """Asserts that batches have the shares of what is left of an epoch, and epochs have `counts`.

  `parts` are those of a run, each the batch size and, by step, the part of each example. What is
  left is dealt anew where that changes, and behind what ends an epoch within a batch.
  """
  taken, num_epochs, size, is_anew = np.zeros_like(counts), 0, 0, True
  for batch_size, steps in parts:
    is_anew, size = is_anew or batch_size != size, batch_size
    for step in steps:
      end = counts.sum() - taken.sum()
      for piece in filter(len, (step[:end], step[end:])):
        if is_anew or not taken.any():
          left, before = counts - taken, taken
        taken = taken + np.bincount(piece, minlength=len(counts))
        for found, num in ((np.bincount(piece, minlength=len(counts)), len(piece)),
                           (taken - before, (taken - before).sum())):
          assert (abs(found - num * left / left.sum()) < 1).all()
        is_anew = len(piece) < batch_size
        if taken.sum() == counts.sum():
          assert (taken == counts).all()
          taken, num_epochs = np.zeros_like(counts), num_epochs + 1
  return num_epochs


@pytest.mark.parametrize('seed', range(8))
def test_what_is_left_is_dealt_by_its_shares_in_any_batch_size(seed):
  random, num_epochs = np.random.RandomState(seed), 0
  for _ in range(12):
    counts = random.randint(1, 40, random.randint(2, 6))
    mixed = towers.data.examples.Mixture(
        tuple((counts // 2 + 1).tolist()), tuple(counts.tolist()), True)
    ends, point, parts = np.cumsum(mixed.sizes), ResumePoint(), []
    for _ in range(5):
      plan = build_plan(num_examples=int(counts.sum()), batch_size=random.randint(1, 30),
                        num_towers=1).resumed_at(point)
      steps = range(point.step, point.step + random.randint(1, 12))
      parts.append((plan.batch_size, [np.searchsorted(
          ends, plan.indices_at(step, seed=seed, buckets=mixed) % ends[-1], 'right')
                                      for step in steps]))
      point = plan.point_at(steps[-1] + 1)
    num_epochs += check_what_is_left(parts, counts)
  assert num_epochs > 40


# Batch sizes and steps: within an epoch twice, across its end, and back.
CHAIN = [(16, 1), (6, 3), (10, 5), (24, 2), (8, 9), (16, 3)]


@pytest.mark.nightly(but='0-0')
@pytest.mark.parametrize('first', range(3))
@pytest.mark.parametrize('shape', range(len(SHAPES)))
def test_any_batch_size_goes_on_and_takes_what_is_planned(shape, first, tmp_path):
  parts, taken = [], []
  for index, (batch_size, num_steps) in enumerate(CHAIN[first:] + CHAIN[1:first + 1]):
    settings = SHAPES[(shape + index) % len(SHAPES)]
    if batch_size % settings.get('accumulate', 1) or batch_size < settings['num_towers']:
      settings = dict(num_towers=1)
    steps, _ = train_part(tmp_path / 'run', num_steps, batch_size=batch_size, **settings)
    parts.append((batch_size, [rows[:, 0].astype(int) for rows in steps]))
    taken += steps
  assert check_what_is_left(parts, np.array(list(COUNTS.values()))) >= 3
  check_passes(taken)


def test_a_part_of_an_epoch_keeps_its_shares(tmp_path, capsys):
  train_part(tmp_path / 'run', 3)
  train_part(tmp_path / 'run', 1, train=mixture(shares={'web': 40, 'books': 15, 'code': 9}))
  assert 'takes some examples twice and misses others' in capsys.readouterr().out
  train_part(tmp_path / 'run', 2, batch_size=8)
  assert 'batch_size was 16 up to step 4 and is now 8' in capsys.readouterr().out


@pytest.mark.parametrize('make, message', [
    (lambda: towers.mixed([small.random_examples(5)]), 'takes splits by name'),
    (lambda: towers.mixed(small.random_examples(5), by=[1, 2]),
     '2 entries in by= of mixed, but 5 examples: give the part of each'),
    (lambda: towers.mixed(small.random_examples(5), by=3), 'part of each example'),
    (lambda: mixture(shares={'web': 1}), "a number above 0 for each of .*'code'"),
    (lambda: mixture(shares=dict(SHARES, web=0)), 'a number above 0'),
    (lambda: mixture(epoch_of='news'), "choose one of .*'web'"),
    (lambda: mixture(shares=dict(SHARES, web=500), epoch_of='web'), 'none of .*larger shares'),
    (lambda: towers.mixed({'a': towers.augmented(mixture(), lambda example, draws: example)}),
     r'towers.augmented\(towers.mixed'),
    (lambda: towers.mixed({'a': mixture()}), 'of plain splits'),
    (lambda: towers.mixed({'a': small.element_examples(5)}), 'towers.from_tfrecords'),
    (lambda: towers.mixed({'a': 5}), 'give towers.Examples'),
    (lambda: take(towers.mixed({'a': towers.from_arrays(np.zeros(5)),
                                'b': towers.from_arrays(np.zeros(5), np.zeros(5))})),
     'differ in structure'),
    (lambda: take(mixture(), last_batch='carry'), 'use last_batch=keep'),
    (lambda: towers.padded(mixture(), bucket_by=np.zeros(64)), 'leave bucket_by out'),
    (lambda: small.program(validation=mixture(), train=mixture()), 'measure each part by itself'),
])
def test_what_cannot_be_mixed_is_refused(make, message):
  with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
    make()
