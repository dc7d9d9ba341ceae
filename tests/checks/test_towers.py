"""The check agrees with right models, and names what is to blame in others.

The models are those of the zoo and of `suspects`. Three towers of a batch of 8 have 3, 3 and 2
examples, and the last batch has 5.
"""

import os

import numpy as np
import pytest

import towers
from tests.coupling.zoo import ZOO, sequences
from tests.harness import small, suspects
from towers.base.usage_error import UsageError
from towers.checks.trial import Trial
from towers.coupling.comparison import AGREES, DIFFERS, INCONCLUSIVE, compare
from towers.input.batch import Batch
from towers.placement.variables import VariableStore
from towers.tensorflow_v1 import tf
from towers.tower.towers import build_towers

IS_1 = tf.__version__.startswith('1.')
nightly = pytest.mark.nightly
only_1 = pytest.mark.skipif(not IS_1, reason='TensorFlow 1 alone has it')


def check(model, examples=None, **settings):
  return towers.check(model, examples or small.random_examples(13),
                      **dict(dict(num_towers=3, batch_size=8, num_steps=2), **settings))


def find_line(mark, module=suspects):
  with open(module.__file__) as file:
    [line] = [number for number, text in enumerate(file, 1) if text.rstrip().endswith(mark)]
  return f'{os.path.basename(module.__file__)}, line {line}'


def find_row(report, name):
  row, = (row for row in report.rows if row.name == name)
  return row


@pytest.mark.nightly(but='3')
@pytest.mark.parametrize('num_towers', [1, 3, 8])
def test_a_right_model_agrees(num_towers):
  report = check(small.model, num_towers=num_towers)
  assert report.agrees and report.causes == [] and report.not_repeated == ''
  names = [row.name for row in report.rows]
  assert names[0] == 'loss' and len(names) == 9
  assert 'gradient of hidden/weights' in names and 'logits/biases' in names
  assert 'are one tower' in str(report) and 'DIFFERS' not in str(report)


@pytest.mark.nightly
@pytest.mark.parametrize('name', ['lstm_last_state', 'bert_gather', 'while_decoder',
                                  'lookup_table'])
def test_loops_and_attention_agree_and_what_is_right_before_a_fault_is_not_blamed(name):
  model, examples = ZOO[name].model, ZOO[name].data()
  report = check(model, examples)
  assert report.agrees, report.format()
  cause, = check(suspects.with_mean_of_losses(model), examples).causes
  assert find_line('# THE LINE OF THE LOSSES') in cause and 'other examples' in cause


BLAMED = {
    'centred': ['other examples', 'first mixed by', find_line('# THE LINE TO BLAME')],
    'layer_normalised': ['Batch normalisation', 'moving_mean', 'batch_norm=sync',
                         find_line('# THE LINE OF THE LAYER')],
    'seq2seq_token_mean': ['other examples', find_line(
        'return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)', sequences)],
    'scalar_sum': ['no mean over the examples', 'one loss per example',
                   find_line('# THE LINE OF THE SUM')],
    'ema_of_loss_scales_it': ['variable avg', 'changed by the examples']}


@pytest.mark.nightly(but='centred')
@pytest.mark.parametrize('name', BLAMED)
def test_the_cause_is_named_with_its_line(name):
  case = ZOO.get(name)
  report = check(case.model, case.data()) if case else check(getattr(suspects, name))
  assert not report.agrees and 'NOT one tower' in report.format()
  cause, = report.causes
  for word in BLAMED[name]:
    assert word in cause


@pytest.mark.nightly
def test_state_that_is_not_trained_is_compared():
  case = ZOO['ema_nobody_reads']
  report = check(case.model, case.data())
  assert find_row(report, 'loss').agrees and find_row(report, 'd/w').agrees
  assert find_row(report, 'avg').verdict == DIFFERS


def test_dropout_agrees_and_a_fault_beside_it_is_named():
  report = check(suspects.with_dropout(small.model))
  assert report.agrees and not report.draws, report.format()
  cause, = check(suspects.with_dropout(suspects.centred)).causes
  assert find_line('# THE LINE TO BLAME') in cause


def test_draws_of_batches_of_one_size_agree_in_every_step():
  # For each of them the model is called beside.
  def model(batch, is_training):
    return tf.reduce_mean(tf.square(small.dense(tf.nn.dropout(batch[0], rate=0.5), 4, 'd')))

  report = check(model, small.random_examples(12), num_towers=2, batch_size=6)
  assert report.agrees, report.format()


@pytest.mark.nightly
def test_random_ops_with_a_state_are_named_and_the_rest_agrees_without_them(capsys):
  def model(batch, is_training):
    losses, metrics = small.model(batch, is_training)
    return (losses * tf.random.gamma(tf.shape(losses), 5.0) if is_training else losses), metrics

  report = check(model)
  assert not report.agrees and report.draws and report.only_draws
  cause, = report.causes
  assert 'random_gamma' in cause and 'is_training=False' in cause
  assert 'not measured' not in capsys.readouterr().out
  assert check(model, is_training=False).agrees


@pytest.mark.nightly(but='layer_normalised')
@pytest.mark.parametrize('name', ['layer_normalised',
                                  pytest.param('slim_normalised', marks=only_1)])
def test_frozen_moving_averages_are_checked_and_trained_with(name):
  model = getattr(suspects, name)
  assert check(model, is_training=False).agrees
  with tf.Graph().as_default():
    [tower] = build_towers(
        model, [Batch((tf.zeros([4, 5]), tf.zeros([4], tf.int32)), 4)],
        devices=['/device:CPU:0'], is_training=False,
        store=VariableStore(devices=['/device:CPU:0']))
  assert not tower.update_ops and None not in tower.gradients


NOT_REPEATING = [
    ('with_random_constant',
     ['the op drawn_by_numpy (Const, made in', find_line('# THE LINE OF NUMPY'), 'in step 1']),
    ('with_random_function', ['PyFunc', find_line('# THE LINE THAT DRAWS')]),
    ('with_random_start', ['the initial value of the variable factor']),
    ('with_random_state', ['the variable seen after step 1']),
]


@pytest.mark.nightly(but=['with_random_constant-coupled', 'with_random_state-coupled'])
@pytest.mark.parametrize('model', [suspects.centred, small.model], ids=['coupled', 'right'])
@pytest.mark.parametrize('name, words', NOT_REPEATING, ids=[name for name, _ in NOT_REPEATING])
def test_what_does_not_repeat_is_named_and_never_agrees(name, words, model):
  report = check(getattr(suspects, name)(model))
  assert not report.agrees and report.causes
  for word in words:
    assert word in report.not_repeated
  assert 'does not repeat' in report.format() and 'one tower beside itself' in report.format()


@pytest.mark.parametrize('model', [
    suspects.centred, pytest.param(small.model, marks=nightly)], ids=['coupled', 'right'])
def test_an_input_that_does_not_repeat_is_named(model):
  report = check(model, suspects.augmented(small.random_examples(13)))
  assert not report.agrees
  assert report.not_repeated == 'the input batch: tensor 0 (float32, [8, 5]) of step 1'
  assert 'seed' in report.causes[0]


def test_one_bit_is_enough_not_to_repeat():
  calls = []

  @small.with_losses
  def model(losses):
    calls.append(losses)
    one = np.float32(1)
    factor = np.nextafter(one, np.float32(2)) if len(calls) == 2 else one
    return losses * tf.constant(factor, name='factor')

  assert 'factor' in check(model).not_repeated


def test_variables_with_other_names_at_each_call_do_not_repeat():
  report = check(suspects.own_variable())
  assert not report.agrees
  assert report.not_repeated == 'the variable gain_0, which one of two builds alone has'


@pytest.mark.nightly
def test_noise_excuses_no_large_difference():
  report = check(suspects.exploding)
  row = find_row(report, 'loss')
  assert not report.agrees and row.difference < 20 * row.noise and row.verdict == INCONCLUSIVE
  assert find_line('# THE LINE TO BLAME HERE') in report.causes[0]


@pytest.mark.nightly
def test_a_right_model_of_rounding_alone_is_not_blamed_on_an_op():
  report = check(suspects.steep, batch_norm='sync')
  assert not report.agrees and all(row.verdict != DIFFERS for row in report.rows)
  assert report.causes[0].startswith('Rounding decides')


@pytest.mark.parametrize('difference, noise, verdict', [
    (1e-6, 0.0, AGREES), (1e-3, 0.0, DIFFERS), (1e-3, 1e-4, AGREES), (0.015, 0.004, AGREES),
    (0.06, 0.004, INCONCLUSIVE), (0.06, 0.001, DIFFERS), (np.nan, 0.01, DIFFERS),
    (np.inf, np.inf, DIFFERS), (0.06, np.nan, DIFFERS)])
def test_noise_is_bounded(difference, noise, verdict):
  value = np.array([1.0, 0.0], np.float32)
  assert compare('row', value + [difference, 0], value, value + [0, noise]).verdict == verdict


def test_integers_must_be_the_same():
  million = np.array(10 ** 6)
  assert compare('row', million + 1, million, million).verdict == DIFFERS


@pytest.mark.nightly
def test_values_that_are_not_finite_do_not_agree():
  # In one tower of three alone; its gradient is NaN in all.
  model = small.with_losses(
      lambda losses: tf.where(tf.equal(tf.shape(losses)[0], 2), losses * np.nan, losses))
  assert not check(model, small.random_examples(50)).agrees


def test_towers_that_cannot_be_built_are_reported_with_the_reason():
  @small.with_losses
  def model(losses):
    if 'tower_1' in losses.name:
      raise UsageError('The collection losses holds those of tower 0.')
    return losses

  report = check(model)
  assert not report.agrees and report.rows == []
  assert report.causes == ['They cannot be built: The collection losses holds those of tower 0.']
  assert 'NOT one tower' in report.format()
  with pytest.raises(UsageError, match='loss of the model has the shape'):
    check(lambda batch, is_training: small.dense(batch[0], 4, 'hidden'))


def test_a_step_that_fails_is_reported_with_the_op():
  report = check(suspects.fixed_size, small.random_examples(24))
  cause, = report.causes
  assert not report.agrees and 'cannot take a step' in cause
  assert find_line('# THE LINE OF THE SIZE') in cause and 'tf.shape(x)[0]' in cause
  with pytest.raises(UsageError, match=r'Not even one tower .*suspects.py.*tf.shape\(x\)'):
    check(suspects.fixed_size)


def test_a_setting_that_cannot_be_is_an_error():
  with pytest.raises(UsageError, match='batch_norm='):
    check(small.model, batch_norm='all', is_training=False)
  with pytest.raises(UsageError, match='device='):
    check(small.model, device='tpu')


@pytest.mark.nightly
def test_gpus_are_checked_on_request(monkeypatch):
  with pytest.raises(UsageError, match='device=gpu'):
    check(small.model, device='gpu')
  assert check(small.model, device='auto').device == 'CPU'
  graphs = []
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: 3)
  monkeypatch.setattr(Trial, 'run',
                      lambda trial, *_, **__: graphs.append(trial.program.graph) or 1 / 0)
  for device in ('gpu', 'auto', 'cpu'):
    with pytest.raises(ZeroDivisionError):
      check(small.model, device=device)
  kinds = [{op.device for op in graph.get_operations() if op.type == 'MatMul'} for graph in graphs]
  assert kinds == [{'/device:GPU:0'}, {'/device:GPU:0'}, {'/device:CPU:0'}]
  with pytest.raises(UsageError, match='num_towers=4'):
    check(small.model, num_towers=4, device='gpu')


def test_towers_stand_on_a_gpu_each(monkeypatch):
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: 3)
  trial = Trial(small.model, small.random_examples(13), num_towers=3, batch_size=8, seed=0,
                device='gpu', batch_norm='first')
  for number in range(3):
    devices = {op.device for op in trial.program.graph.get_operations()
               if op.type == 'MatMul' and op.name.startswith(f'tower_{number}/')}
    assert devices == {f'/device:GPU:{number}'}
