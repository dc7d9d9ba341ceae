"""What `--check` prints, and its exit code, which is 1 if towers differ."""

from unittest import mock

import pytest

import main
from tests.harness import small
from towers.tensorflow_v1 import tf

FLAGS = ['main.py', '--check', '--data=synthetic', '--batch_size=8', '--num_gpus=2']


def coupled(images):
  return images - tf.reduce_mean(images, 0)


def dropped(images):
  return tf.nn.dropout(images, rate=0.5)


def build(monkeypatch, *changes):
  """Makes main.py build a linear model that changes its images in training."""
  def model(batch, is_training):
    images, labels = batch
    images = tf.reshape(tf.cast(images, tf.float32), [-1, images.shape[1:].num_elements()]) / 255.0
    for change in changes if is_training else ():
      images = change(images)
    logits = small.dense(images, 10, 'logits')
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

  monkeypatch.setattr('towers.models.build_classifier', lambda *_, **__: model)


def run(capsys, *flags):
  code = main.main(FLAGS + list(flags))
  return code, capsys.readouterr()


@pytest.mark.nightly(but='changes0-0-words0')
@pytest.mark.parametrize('changes, code, words', [
    ([], 0, ['is_training=True', '2 towers are one tower']),
    ([coupled], 1, ['NOT one tower', 'other examples']),
    ([dropped], 0, ['is_training=True', '2 towers are one tower']),  # By an example's place.
    ([dropped, coupled], 1, ['NOT one tower', 'other examples'])])
def test_the_exit_code_says_whether_towers_agree(changes, code, words, monkeypatch, capsys):
  build(monkeypatch, *changes)
  found, printed = run(capsys)
  assert found == code, printed
  assert all(word in printed.out for word in words), printed.out
  assert printed.out.rstrip().endswith('plain gradient descent without clipping or decay')


@pytest.mark.nightly
def test_what_is_not_compared_is_said(monkeypatch, capsys):
  build(monkeypatch)
  _, printed = run(capsys, '--tower_build=clone', '--variables=replicated', '--accumulate=2',
                   '--precision=mixed', '--recompute=auto')
  line = printed.out.splitlines()[-1]
  compared, _, others = line.partition('NOT compared: ')
  assert ('tower_build=reuse, variables=host, accumulate=1, precision=float32, last_batch=keep, '
          'recompute=none' in compared)
  assert others == ('tower_build=clone, variables=replicated, accumulate=2, precision=mixed, '
                    'recompute=auto')


@mock.patch.dict('os.environ')  # A check on GPUs chooses deterministic kernels, for good.
def test_gpus_that_are_not_there_are_a_usage_error(capsys):
  code, printed = run(capsys, '--device=gpu')
  assert code == 2 and 'device=gpu' in printed.err
