"""Metrics of training are means over the examples of the steps, on any towers, at no copy more."""

import numpy as np
import pytest

import towers
from tests.harness import faults, small
from tests.harness.in_process_cluster import InProcessCluster
from towers.graph.walk import find_needed
from towers.process.run_error import RunError
from towers.tensorflow_v1 import tf

NUM, BATCH = 13, 4
TRAIN = small.random_examples(NUM)
FEATURES, LABELS = TRAIN.arrays


def model(batch, is_training):
  """Metrics that follow from the batch alone, and a loss that does not."""
  losses, _ = small.model(batch, is_training)
  features, labels = batch
  weights = tf.cast(labels, tf.float32)
  return losses, {'first': features[:, 0], 'weighted': towers.Weighted(features[:, 1], weights),
                  'is_two': tf.equal(labels, 2)}


def rows_of(first, last):
  """Returns the numbers of the examples that steps take in order, of epochs of thirteen."""
  per_epoch = -(-NUM // BATCH)
  return np.concatenate([
      np.arange(NUM)[step % per_epoch * BATCH:][:BATCH] for step in range(first, last)])


def expected(first, last):
  rows = rows_of(first, last)
  weights = LABELS[rows]
  return dict(first=FEATURES[rows, 0].mean(), is_two=(LABELS[rows] == 2).mean(),
              weighted=(FEATURES[rows, 1] * weights).sum() / weights.sum())


def check(found, first, last, losses):
  sizes = [len(rows_of(step, step + 1)) for step in range(first, last)]
  assert found == pytest.approx(dict(expected(first, last), loss=np.average(losses, weights=sizes)),
                                abs=1e-5)


SHAPES = [dict(num_towers=3, mode='next'), dict(num_towers=1, depth=0), dict(mode='shard', depth=2),
          dict(num_towers=3, tower_build='clone'), dict(num_towers=3, validation_tower=True),
          dict(placement='replicated'), dict(accumulate=2), dict(num_towers=3, last_batch='pad'),
          dict(num_towers=2, accumulate=2, placement='replicated')]
SETTINGS = dict(model=model, train=TRAIN, batch_size=BATCH)


def step_by_run(session):
  """Takes a step as a program on bare TensorFlow does; returns its loss."""
  gradients = session.program.gradients
  loss, _ = session.run([gradients.loss, session.program.train_op])
  return loss


@pytest.mark.nightly(but=['3-True-train', '3-True-run'])
@pytest.mark.parametrize('step', [lambda session: session.train(), step_by_run],
                         ids=['train', 'run'])
@pytest.mark.parametrize('shape', SHAPES, ids=lambda shape: '-'.join(map(str, shape.values())))
def test_means_are_over_the_examples_of_the_steps_since_they_were_read(shape, step):
  if step is step_by_run and 'accumulate' in shape:
    pytest.skip('a run of it is a part of a step')
  with small.Run(validates=True, **SETTINGS, **shape) as run:
    session = run.opened
    assert session.metrics() == {}
    losses = [step(session) for _ in range(5)]
    check(session.metrics(), 0, 5, losses)
    assert session.metrics() == {}
    # What else is measured is no training.
    session.run(run.program.towers[0].loss)
    session.validate()
    losses = [session.train() for _ in range(2)]
    check(session.metrics(), 5, 7, losses)


def test_all_workers_have_the_means_of_all():
  with InProcessCluster(num_workers=2, num_towers=1, **SETTINGS) as cluster:
    losses = [cluster.train() for _ in range(5)]
    for found in cluster.each(lambda run: run.opened.metrics()):
      check(found, 0, 5, losses)


def test_a_step_that_is_not_finite_is_in_no_mean():
  train = faults.poison(TRAIN, 5)
  with small.Run(**dict(SETTINGS, train=train)) as run:
    loss = run.opened.train()
    with pytest.raises(RunError):
      run.opened.train()
    check(run.opened.metrics(), 0, 1, [loss])


def edges_of(run):
  """Returns how many tensors cross devices in a step, and how many collectives it has."""
  roots = [getattr(fetch, 'op', fetch) for fetch in run.engine.calls.fetches['train']]
  needed = find_needed(roots)
  return (sum(tensor.op.device != op.device for op in needed for tensor in op.inputs
              if tensor.op.type != 'Const'),
          sum(op.type.startswith('Collective') for op in needed))


@pytest.mark.nightly(but='workers')
@pytest.mark.parametrize('shape', [dict(num_towers=3), dict(num_towers=2, num_workers=2),
                                   dict(num_towers=2, placement='replicated')],
                         ids=['towers', 'workers', 'replicas'])
def test_they_cross_with_the_loss_and_cost_no_fetch(shape):
  def plain(batch, is_training):
    return small.model(batch, is_training)[0]

  runs = [small.Run(**dict(SETTINGS, model=one), **shape) for one in (plain, model)]
  assert edges_of(runs[0]) == edges_of(runs[1])
  fetches = [len(run.engine.calls.fetches['train']) for run in runs]
  assert fetches[1] - fetches[0] == (shape.get('num_workers', 1) > 1)
  counts = [sum(not op.name.startswith('tower_') for op in run.graph.get_operations())
            for run in runs]
  # A slice for the loss; with workers two more, which part votes from metrics.
  assert counts[1] - counts[0] <= 3 * shape['num_towers'] + 10
  for run in runs:
    run.close()
