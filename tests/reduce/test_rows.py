"""Sparse gradients between workers: touched rows alone are sent.

That W workers are one tower, `test_workers_equal_one` shows.
"""

import itertools

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.reduce.test_workers import make_cluster
from towers.placement.workers import Workers
from towers.reduce.rows import RowSlots, has_each_once, merge_rows, plan_slots
from towers.tensorflow_v1 import tf
from towers.training.reporting.describe import describe_rows

SMALL, LARGE = 12, 1000  # Of a table: all its rows are sent, or only those that are touched.


def make_model(num_rows, is_weighted=False, spread=9):
  """A model of 5 ids for each example, some of them twice, that go up to a few times `spread`."""
  def model(batch, is_training):
    features, labels = batch
    found = tf.where(tf.is_finite(features), features, tf.ones_like(features))
    ids = tf.cast(tf.abs(found) * spread, tf.int64) % num_rows
    table = tf.get_variable('table', [num_rows, 2, 2])
    rows = tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, 5, 4])
    hidden = tf.reduce_sum(rows, 1) * tf.reduce_sum(features, 1, keepdims=True)
    losses = small.classify(hidden, labels)
    return towers.Weighted(losses, tf.cast(labels, tf.float32)) if is_weighted else losses, {}

  return model


def assert_same_rows_moved(cluster, one):
  def moved(run):
    return np.any(run.weights()['table'] != run.initial_weights['table'], (1, 2)).tolist()

  expected = moved(one)
  assert 1 < sum(expected) < len(expected)
  for run in cluster.runs:
    assert moved(run) == expected


def test_what_is_sent_does_not_grow_with_the_table():
  tables = []
  for num_rows in (LARGE, 100 * LARGE):
    run = small.Run(model=make_model(num_rows), num_workers=2, num_towers=2, batch_size=8,
                    train=small.random_examples(16),
                    validation=small.random_examples(8, 'validation'))
    with run.graph.as_default():
      reduced = run.program.gradients
      [slots] = reduced.row_slots
      assert slots.num_slots == 2 * 2 * 2 * 5 and not slots.is_whole
      shapes = [value.shape for op in run.graph.get_operations() if op.name.startswith('all_reduce')
                for value in op.outputs]
      assert not [shape for shape in shapes if shape.ndims and shape[0] == num_rows]
    tables.append(reduced.all_reduce)
    run.session.close()
  assert tables[0] == tables[1] and tables[0].num_collectives == 1


@pytest.mark.nightly
def test_repeats_are_equal_to_the_bit():
  def train():
    settings = dict(model=make_model(LARGE), optimizer='momentum', train=small.random_examples(13))
    with make_cluster((3, 1), **settings) as cluster:
      losses = [cluster.train() for _ in range(4)]
      return losses, cluster.runs[0].weights()['table'].tobytes()

  assert train() == train()


# The indices of each worker: repeated, on one worker alone, more on one than on another, none.
INDICES = [
    [[3, 3, 1], [3, 7, 0]],
    [[], [5]],
    [[], []],
    [[9, 2, 9, 9], [2], []],
    [[1], [2], [3], [4], [0, 0, 1, 2, 3, 4]],
    [[4097, 4096, 4095], [0, 8192, 4096]],
]


@pytest.mark.nightly(but=4)
@pytest.mark.parametrize('indices, num_rows, is_known, dtype', [
    (indices, num_rows, is_known, (np.float32, np.float64)[index % 2])
    for index, (indices, num_rows, is_known) in enumerate(itertools.product(
        INDICES, [10, 20000], [True, False]))
    if max(itertools.chain(*indices), default=0) < num_rows], ids=str)
def test_the_sum_of_what_workers_send_holds_every_row_once(indices, num_rows, is_known, dtype):
  random = np.random.RandomState(0)
  # Where it follows from shapes, rows with the same index count apart.
  count = len if is_known else lambda of_worker: len(set(of_worker))
  num_workers, most = len(indices), max(map(count, indices))
  with tf.Graph().as_default(), tf.Session() as session:
    variable = tf.get_variable('table', [num_rows, 3], dtype)
    expected, sent = np.zeros([num_rows, 3]), []
    for rank, of_worker in enumerate(indices):
      values = random.randn(len(of_worker), 3).astype(dtype)
      np.add.at(expected, np.array(of_worker, int), values)
      rows = tf.IndexedSlices(tf.constant(values, shape=[len(of_worker), 3]),
                              tf.constant(of_worker, tf.int32, [len(of_worker)]))
      slots = RowSlots(variable, most if is_known else tf.constant(most),
                       Workers(num_workers, rank))
      sent.append(slots.write(rows))
    mean = slots.read(tf.add_n(sent), rows)
    assert has_each_once(mean.indices) and merge_rows(mean) is mean
    found, values, widest = session.run([mean.indices, mean.values, tf.shape(sent[0])[0]])
  assert widest == min(num_workers * most, num_rows) or is_known and widest == 1
  assert sorted(found) == sorted(set(itertools.chain(*indices))) and found.dtype == np.int32
  np.testing.assert_allclose(values, expected[found], rtol=0, atol=1e-5)


def test_rows_are_merged_once():
  def scopes_of(num_workers, clip_norm=None):
    run = small.Run(model=make_model(LARGE), num_workers=num_workers, num_towers=1, batch_size=8,
                    clip_norm=clip_norm, train=small.random_examples(16), optimizer='momentum',
                    validation=small.random_examples(8, 'validation'))
    run.session.close()
    return [op.name.split('/')[0] for op in run.graph.get_operations() if op.type == 'Unique']

  assert scopes_of(1) == ['apply'] and scopes_of(1, 0.1) == ['clip']
  assert scopes_of(2, 0.1) == ['all_reduce']


def test_slots_are_planned_from_shapes_or_found_in_the_step():
  with tf.Graph().as_default(), tf.Session():
    table = tf.get_variable('table', [50, 3])
    bias = tf.get_variable('bias', [3])
    known = tf.IndexedSlices(tf.zeros([4, 3]), tf.constant([1, 2, 1, 4]))
    unknown = tf.IndexedSlices(tf.zeros([2, 3]), tf.placeholder_with_default([1, 1], [None]))
    of_bias, of_known, of_unknown = plan_slots(
        [(tf.zeros([3]), bias), (known, table), (unknown, table)], Workers(1, 0))
    assert of_bias is None and of_known.num_slots == 4 and of_unknown.num_slots.eval() == 1
    assert describe_rows(of_known._replace(workers=Workers(2, 0))) == (
        'rows of table: those that a step touches, up to 4 x 2 workers (160 bytes), not all 50 '
        '(1,000 bytes)')
    assert describe_rows(of_known._replace(workers=Workers(13, 0))) == (
        'rows of table: all 50 (1,000 bytes) in each step, since it touches up to 4 x 13 workers')
    assert describe_rows(of_unknown._replace(workers=Workers(3, 0))) == (
        'rows of table: those that a step touches, 20 bytes each, or all 50 (1,000 bytes) from 17 '
        'in one worker on')
