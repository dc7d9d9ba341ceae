"""A changed program goes on with the step and slots of what is left, by the line that it prints."""

import re

import numpy as np
import pytest

import towers
from tests.harness import small
from towers.base.usage_error import UsageError
from towers.tensorflow_v1 import tf

random = np.random.RandomState(0)
ROWS, LABELS = random.randn(48, 4).astype('f'), (np.arange(48) % 3).astype('i')


def program(n, *, bias=False, body='body', width=8, **settings):
  def model(batch, is_training):
    rows, labels = batch
    hidden = tf.nn.relu(tf.matmul(rows, tf.get_variable(body, [4, width])))
    logits = tf.matmul(hidden, tf.get_variable('head', [width, 3]))
    if bias:
      logits += tf.get_variable('head_bias', [3], initializer=tf.zeros_initializer())
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  return towers.Program(model, train=towers.from_arrays(ROWS, LABELS), batch_size=16, seed=0,
                        num_towers=n, optimizer=tf.train.AdamOptimizer(.05), **settings)


CHANGES = {
    'unfrozen': (dict(frozen='body'), {}, {'body/Adam', 'body/Adam_1'}),
    'frozen': ({}, dict(frozen=['body']), set()),
    'added': ({}, dict(bias=True), {'head_bias', 'head_bias/Adam', 'head_bias/Adam_1'}),
    'gone': (dict(bias=True), {}, set()),
    'averages too': (dict(average_weights=.9), dict(bias=True, average_weights=.9),
                     {'head_bias', 'head_bias/Adam', 'head_bias/Adam_1',
                      'head_bias/ExponentialMovingAverage'}),
    'wider': ({}, dict(width=9), {'apply/beta1_power', 'apply/beta2_power'} | {
        name + slot for name in ('body', 'head') for slot in ('', '/Adam', '/Adam_1')})}


@pytest.mark.nightly(but=['averages too', 'unfrozen'])
@pytest.mark.parametrize('change', sorted(CHANGES))
def test_the_line_that_the_refusal_names_keeps_what_is_left(change, tmp_path):
  before, after, new = CHANGES[change]
  with tf.Graph().as_default(), program(2, **before).session() as session:
    for _ in range(3):
      session.train()
    session.save(str(tmp_path))
    saved = small.read_variables(session.program, session)
  with tf.Graph().as_default(), program(3, **after).session() as session:
    initial = small.read_variables(session.program, session)
    with pytest.raises(UsageError) as error:
      session.restore(str(tmp_path))
    line = re.search(r'by (session\.restore\(.*\))\.', str(error.value)).group(1)
    eval(line, dict(session=session, folder=str(tmp_path)))
    assert session.step == 3
    for name, value in small.read_variables(session.program, session).items():
      np.testing.assert_array_equal(value, (initial if name in new else saved)[name], name)
    session.train()


def test_a_variable_of_another_name_keeps_its_slots(tmp_path):
  with tf.Graph().as_default(), program(1).session() as session:
    session.train()
    session.save(str(tmp_path))
    saved, expected = small.read_variables(session.program, session), session.train()
  with tf.Graph().as_default(), program(2, body='trunk').session() as session:
    session.restore(str(tmp_path), map={'body': 'trunk'})
    found = small.read_variables(session.program, session)
    for slot in ('', '/Adam', '/Adam_1'):
      np.testing.assert_array_equal(found['trunk' + slot], saved['body' + slot])
    assert session.train() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UsageError, match='head goes on from head of .*lacks, as head/ for'):
      session.restore(str(tmp_path), map={'body': 'trunk'}, new=['head'])
    with pytest.raises(UsageError, match="map={'nothing': 'x'} matches no tensor"):
      session.restore(str(tmp_path), map={'nothing': 'x'})
    with pytest.raises(UsageError, match='two tensors'):
      session.restore(str(tmp_path), map={'body$': 'head'})
