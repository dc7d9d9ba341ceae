"""The first line goes wrong: each mistake says what was given, what is taken and what to write."""

import collections
import re
import subprocess
import sys

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.harness.processes import clean_environment
from towers.tensorflow_v1 import load_keras, tf

FEATURES = np.random.RandomState(0).uniform(size=[12, 4]).astype(np.float32)
LABELS = np.zeros(12, np.int32)
EXAMPLES = towers.from_arrays(FEATURES, LABELS)

Spec = collections.namedtuple('Spec', 'mode loss eval_metric_ops')  # As of tf.estimator.


def model(batch, is_training):
  features, labels = batch
  with tf.variable_scope('net'):
    logits = tf.matmul(features, tf.get_variable('weights', [4, 2]))
    logits += tf.get_variable('bias', [2], initializer=tf.zeros_initializer())
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


class Product(load_keras().layers.Layer):
  def call(self, features):  # Of which AutoGraph runs a copy.
    return tf.matmul(features, tf.ones([7, 2]))


def multiplied(factor):
  return lambda *given: model(*given) * factor


def build(model=model, **settings):
  with tf.Graph().as_default():
    return towers.Program(model, **{**dict(
        train=EXAMPLES, batch_size=4, num_towers=2, device='cpu',
        optimizer=tf.train.GradientDescentOptimizer(0.1)), **settings})


@pytest.mark.parametrize('settings, message', [
    (lambda: dict(train=(FEATURES, LABELS)),
     'train is a tuple of 2, not towers.Examples: write '
     'train=towers.from_arrays(images, labels).'),
    (lambda: dict(train=FEATURES), 'train is a NumPy array of shape [12, 4], not '
     'towers.Examples: write train=towers.from_arrays(arrays).'),
    (lambda: dict(train=tf.data.Dataset.from_tensor_slices(FEATURES)),
     'write train=towers.from_dataset(make), where make is a function that returns the data set.'),
    (lambda: dict(train=towers.DataSet(EXAMPLES, EXAMPLES)),
     'train is a DataSet, not towers.Examples: write train=data_set.train.'),
    (lambda: dict(validation=(FEATURES, LABELS)), 'write validation=towers.from_arrays('),
    (lambda: dict(optimizer='adam'), "optimizer is 'adam', and towers.Program takes a "
     'tf.train.Optimizer: write optimizer=tf.train.AdamOptimizer(1e-3), or another of tf.train'),
    (lambda: dict(optimizer=load_keras().optimizers.SGD(0.1)),
     'optimizer is a SGD, and towers.Program takes a tf.train.Optimizer: write '),
    (lambda: dict(model=load_keras().Sequential([])),
     'model is a Sequential, and every tower needs its losses: give towers.KerasModel('),
    (lambda: dict(model=towers.KerasModel(lambda batch: batch)), 'make of KerasModel takes (batch),'
     ' and is called with (): let it make the model by itself.'),
    (lambda: dict(optimizer=lambda: tf.train.AdamOptimizer(0.1)), 'optimizer takes (), and is '
     'called with (rate): write optimizer=lambda rate: tf.train.MomentumOptimizer(rate, 0.9).'),
    (lambda: dict(train=towers.from_dataset(lambda path: path)), 'the function given to '
     'from_dataset takes (path), and is called with (): let it make the data set by itself.'),
    (lambda: dict(model='resnet50'), "model is 'resnet50': give a function of a batch and"),
    (lambda: dict(model=lambda batch: batch), 'model takes (batch), and is called with (batch, '
     'is_training): write def model(batch, is_training).'),
    (lambda: dict(train=towers.augmented(EXAMPLES, lambda image, label, draws: (image, label))),
     'the function of towers.augmented takes (image, label, draws), and is called with (example, '
     'draws): write def augment(example, draws), and unpack the example.'),
    (lambda: dict(train=towers.augmented(EXAMPLES, lambda example, draws: None)),
     'the function of towers.augmented returned None: return the whole example, as image, label.'),
    (lambda: dict(train=towers.augmented(EXAMPLES, lambda example, draws: draws.normal([4]))),
     'the function of towers.augmented returned one tensor of an example of several: return the'),
    (lambda: dict(train=towers.augmented(EXAMPLES, lambda batch, draws: (batch[0][:3], batch[1]),
                                         of_batches=True)),
     'returned the shape (3, 4) as component 0 of a batch of 4: return a row for each example; or'),
    (lambda: dict(batchsize=4), 'towers.Program has no argument batchsize: did you mean '
     'batch_size?'),
    (lambda: dict(num_gpus=4), 'towers.Program has no argument num_gpus: it is called num_towers '
     'here.'),
    (lambda: dict(num_gpu=4), 'no argument num_gpu: did you mean num_towers?'),
    (lambda: dict(shuffle_buffer=1024), 'no argument shuffle_buffer: did you mean shuffle?'),
    (lambda: dict(epochs=4), 'towers.Program has no argument epochs: give epochs to towers.train.'),
    (lambda: dict(schedule='cosine'), 'towers.Program has no argument schedule, which is a flag of '
     'the command line: in Python it is part of optimizer and learning_rate of towers.Program.'),
    (lambda: dict(xla='on'), 'no argument xla, which is a flag of the command line alone.'),
    (lambda: dict(callbacks=[]), 'no argument callbacks: give callbacks to towers.train.'),
    (lambda: dict(validation='none'), "validation is 'none', not towers.Examples: write "
     'validation=None.'),
    (lambda: dict(validation='tower'), 'write validation=examples, validation_tower=True.'),
    (lambda: dict(num_towers=0), 'num_towers=0: it must be at least 1'),
    (lambda: dict(batch_size=None), 'batch_size=None: it must be a whole number.'),
    (lambda: dict(shuffle=None), 'shuffle=None: it must be true or false.'),
    (lambda: dict(loss_scale=128.), 'loss_scale=128.0 has no effect with precision=float32'),
    (lambda: dict(init_from=3), "3 is no path: write init_from='checkpoints'."),
    (lambda: dict(rate_factors={'net': '0.1'}), "rate_factors has '0.1' for net: give a number"),
    (lambda: dict(optimizer=tf.train.AdamOptimizer, learning_rate=lambda: 0.1),
     'learning_rate takes (), and is called with (plan): write learning_rate=lambda plan: …'),
    (lambda: dict(batch_size=1), 'smaller than the 2 towers'),
    (lambda: dict(validation_tower=True), 'validation_tower has nothing to measure'),
    (lambda: dict(num_towers=1, validation_tower=True, validation=EXAMPLES),
     'takes one tower for itself'),
    (lambda: dict(train=towers.from_arrays(FEATURES.astype(np.float64), LABELS)),
     "which are 0: float64, 1: int32: cast arrays before, as features.astype('float32')"),
    (lambda: dict(train=towers.from_arrays(FEATURES, LABELS.astype(np.float32))),
     'which are 0: float32, 1: float32: cast arrays before'),
    (lambda: dict(precision='mixed', model=lambda *given: model(*given) * tf.constant(2.)),
     'joins float32 with 16 bits, in which precision=mixed computes: cast what it makes to what '),
    (lambda: dict(model=lambda batch, _: tf.exp(batch[1])),
     'which are 0: float32, 1: int32: cast arrays before'),
    (lambda: dict(model=lambda *given: model(*given) * tf.reduce_sum(
        tf.get_default_graph().get_tensor_by_name('net/weights:0'))),
     'takes the tensor of a variable by its name at '),
    (lambda: dict(model=lambda *given: model(*given) * tf.get_default_graph().get_tensor_by_name(
        'net/add:0')), 'asks for an op by its name at '),
    (lambda: dict(validation=towers.from_arrays(FEATURES.astype(np.float64), LABELS), num_towers=3,
                  validation_tower=True), 'component 0 is float64 in the validation split and '
     'float32 in the training split: convert one'),
    (lambda: dict(model=lambda *given: model(*given) * tf.get_variable('global_step', [])),
     'made a variable of the name global_step by itself: write tf.train.get_or_create_global_step'),
    (lambda: dict(validation=EXAMPLES, model=lambda batch, is_training: (
        model(batch, is_training) if batch[1][0] else None)), 'write tf.cond(value, '),
    (lambda: dict(optimizer=tf.train.AdamOptimizer), 'learning_rate is not given'),
    (lambda: dict(learning_rate=0.1), 'has no effect on an optimizer that has its own rate'),
    (lambda: dict(input_mode='all'), 'split, next, shard'),
    (lambda: dict(num_towers='2'),
     "num_towers='2': it must be a whole number, and not a text: write num_towers=2."),
    (lambda: dict(clip_norm='0.5'), "clip_norm='0.5': it must be a finite number, such as 0.1, and "
     'not a text: write clip_norm=0.5.'),
    (lambda: dict(batch_size='four'), "batch_size='four': it must be a whole number."),
    (lambda: dict(model=lambda *given: Spec('train', model(*given), {})),
     'a tuple of 3 for its loss: return losses, of an EstimatorSpec its .loss, or towers.Weighted'),
    (lambda: dict(model=lambda *given: (model(*given), {'mean': tf.metrics.mean(given[0][1])})),
     'over all towers and steps, so no totals with updates, as those of tf.metrics; what is no '
     'mean, as a perplexity, is a towers.Whole'),
    (lambda: dict(model=lambda *given: (model(*given), [given[0][1], given[0][1]])),
     'The model returned its metrics as a list of 2, and each needs a name: return a dict of them, '
     "as losses, {'hits': hits}."),
    (lambda: dict(optimizer=tf.train.AdamOptimizer('0.01')),
     "optimizer is an AdamOptimizer whose lr is '0.01', a text: give it a number, as "
     'tf.train.AdamOptimizer(0.001).'),
    (lambda: dict(optimizer=tf.train.MomentumOptimizer(0.1, 'much')), "momentum is 'much', a text"),
    (lambda: dict(optimizer=tf.train.AdamOptimizer, learning_rate='0.01'),
     "learning_rate is '0.01': give a number, as learning_rate=0.001, or a scalar tensor."),
    (lambda: dict(optimizer=tf.train.AdamOptimizer, learning_rate=float('nan')),
     'learning_rate=nan: it must be a finite number of at least 0.'),
    (lambda: dict(optimizer=tf.train.AdamOptimizer, learning_rate=-0.1),
     'learning_rate=-0.1: it must be a finite number of at least 0.'),
    (lambda: dict(optimizer=tf.train.AdamOptimizer(tf.constant(0.1))),
     'is of another graph than the program: make the optimizer in the same graph, `with '),
    (lambda: dict(optimizer=tf.train.AdamOptimizer, learning_rate=tf.constant(0.1)),
     'of another graph than the program: give a function that makes it, as learning_rate=lambda '),
    (lambda: dict(optimizer=tf.train.AdamOptimizer, learning_rate=lambda step: 0.1 / (1 + step)),
     "'int' and 'Plan'. It gets the plan, once, and no step: take tf.train.get_global_step() in"),
    (lambda: dict(train=towers.from_arrays(tf.zeros([4, 3]))),
     'has no values outside of a session: give a NumPy array, or tensors in the function of '),
    (lambda: dict(train=towers.from_arrays(FEATURES[:, :3], LABELS)),
     'shapes do not fit, on a batch of the shapes 0: (2, 3), 1: (2,): see what it has there by '
     'print(tensor.shape), and change it by tf.reshape, or the shape of the variable. TensorFlow '
     f'says at {__file__}:{model.__code__.co_firstlineno + 3}: logits = tf.matmul(features, '),
    (lambda: dict(model=lambda *given: model(*given) * tf.reshape(given[0][0], [-1, 3, 4])),
     'shapes do not fit'),
    (lambda: dict(model=lambda batch, is_training: Product()(batch[0])),
     f'test_first_line.py:{Product.call.__code__.co_firstlineno + 1}: return tf.matmul(features, '
     'tf.ones([7, 2])): ValueError: Dimensions must be equal, but are 4 and 7 '),
    (lambda: dict(train=towers.from_arrays(FEATURES, LABELS[:, None])),
     'shapes do not fit, on a batch of the shapes 0: (2, 4), 1: (2, 1): see what it has there by '),
    (lambda: dict(train=towers.augmented(EXAMPLES, lambda example, draws: (
        example[0] + draws.normal([5]), example[1]))), 'the function of towers.augmented joins '
     'tensors whose shapes do not fit, on an example of the shapes 0: (4,), 1: (): see what it has '
     f'there by print(tensor.shape), and change it by tf.reshape, or the shape of the variable. '
     f'TensorFlow says at {__file__}:'),
    (lambda: dict(model=multiplied(tf.constant(2.0))),
     'takes a tensor that was made outside of it, eagerly or in another graph, as all are for '
     '--check and towers.check, which have graphs of their own: make it inside, or '
     'give its value as a NumPy array, as np.float32(2). TensorFlow says at '),
    (lambda: dict(model=lambda *given: model(*given) * np.mean(given[0][0])), 'asks a tensor for '
     "its values, as NumPy and .numpy() do, and it has none while the graph is built: write "
     "TensorFlow's own function, as tf.reduce_mean(x) for np.mean(x), or tf.py_func("),
    (lambda: dict(model=lambda *given: np.exp(model(*given))), 'asks a tensor for its values'),
    (lambda: dict(train=towers.from_arrays(FEATURES), model=lambda batch, is_training: (
        tf.layers.dense(batch, 1))), 'on a batch of the shapes 0: (2, 4): take it apart, as '
     '`[x] = batch` for one array'),
    (lambda: dict(model=lambda batch, is_training: batch.shape), 'take it apart, as '),
    (lambda: dict(model=lambda batch, is_training: batch['x']), 'take it apart, as '),
    (lambda: dict(train=towers.from_arrays({'x': FEATURES, 'Y': LABELS}),
                  model=lambda batch, is_training: model((batch['x'], batch['y']), is_training)),
     "The model looks up 'y' in a batch of the keys and shapes Y: (2,), x: (2, 4) at "),
    (lambda: dict(model=lambda *given: model(*given) * given[0][0].numpy()), 'asks a tensor for'),
    (lambda: dict(model=lambda *given: model(*given) * float(given[0][0][0, 0])),
     'asks a tensor for its values')])
def test_a_program_of_something_else_is_refused_with_the_line_to_write(settings, message):
  with pytest.raises(towers.UsageError) as caught:
    with tf.Graph().as_default():
      given = settings()
    build(**given)
  assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_an_error_of_the_models_own_is_not_explained():
  def fail(batch, is_training):
    raise ValueError('my shapes are wrong')

  with pytest.raises(ValueError, match='^my shapes are wrong$') as caught:
    build(fail)
  assert type(caught.value) is ValueError


@pytest.mark.parametrize('last_batch, is_told', [('keep', True), ('carry', False)])
def test_a_batch_larger_than_the_data_is_told(last_batch, is_told, capsys):
  build(batch_size=16, last_batch=last_batch)
  told = ('WARNING: batch_size=16 is more than the 12 training examples, all of which every step '
          'takes: write batch_size=12, or a smaller one\n')
  assert (told in capsys.readouterr().err) == is_told
  build(batch_size=12)
  assert 'WARNING' not in capsys.readouterr().err


def test_a_file_in_place_of_a_folder_is_told(tmp_path):
  file = tmp_path / 'saved'
  file.write_text('')
  message = re.escape(f'checkpoint_dir={file} is a file, and files are written to a folder: choose '
                      f'another path, as checkpoint_dir={file}_files, or move the file away.')
  with pytest.raises(towers.UsageError, match=message):
    towers.train(build(), steps=1, checkpoint_dir=str(file))
  with build().session() as session, pytest.raises(towers.UsageError, match=message):
    session.save(str(file))
  with pytest.raises(towers.UsageError, match=f'checkpoint_dir={file} is a file: give the folder'):
    towers.evaluate(str(file), model, EXAMPLES, device='cpu')


def test_a_misspelt_name_is_told_before_what_is_missing():
  with pytest.raises(towers.UsageError, match='no argument batchsize: did you mean batch_size'):
    towers.Program(model, train=EXAMPLES, optimizer=None, batchsize=4)
  with pytest.raises(towers.UsageError, match='towers.Program needs optimizer and batch_size'):
    towers.Program(model, train=EXAMPLES)


def own_gradients(compute, module):
  """Returns a class of optimizers with gradients of `compute(base, loss, variables)`."""
  class Own(tf.train.GradientDescentOptimizer):
    def compute_gradients(self, loss, var_list=None, **settings):
      return compute(super().compute_gradients, loss, var_list)

  Own.__module__ = Own.compute_gradients.__module__ = module
  return Own


@pytest.mark.parametrize('module', ['mine', 'tensorflow_privacy.optimizers', 'tensorflow.x'])
@pytest.mark.parametrize('compute', [
    lambda base, loss, variables: [(gradient * 0, variable)
                                   for gradient, variable in base(loss, variables)],
    lambda base, loss, variables: base(loss * 2, variables),
    lambda base, loss, variables: base(loss, variables)[:0],
    lambda base, loss, variables: [*zip(tf.gradients(loss, variables), variables)]])
def test_an_optimizer_that_makes_other_gradients_is_refused_wherever_it_is_from(compute, module):
  own = own_gradients(compute, module)
  for settings in (dict(optimizer=own(0.1)), dict(optimizer=own, learning_rate=0.1),
                   dict(optimizer={'': towers.Every(2, own(0.1))})):
    with pytest.raises(towers.UsageError, match='Own makes other gradients .*def apply_gradients'):
      build(**settings)


def test_an_optimizer_that_hands_its_gradients_on_is_taken(caplog):
  build(optimizer=own_gradients(lambda base, *given: base(*given), 'mine')(0.1))
  assert 'gradients' not in caplog.text


@pytest.mark.parametrize('module, is_told', [
    ('tensorflow_mine', True), ('tensorflow.contrib.opt', False)])  # AdamW's hands all on.
def test_a_minimize_that_nobody_calls_is_told(module, is_told, caplog):
  class Own(tf.train.GradientDescentOptimizer):
    def minimize(self, *given, **settings):
      return super().minimize(*given, **settings)

  Own.__module__ = Own.minimize.__module__ = module
  build(optimizer=Own(0.1))
  assert ('Own has a minimize of its own, which towers does not call' in caplog.text) == is_told


class Own(towers.Callback):
  """Does nothing."""


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize('program, settings, message', [
    (model, {}, 'towers.train takes a program, and got <function model'),
    (None, dict(callbacks=[Own]), 'callbacks has the class Own: give an object of it, as '
     'callbacks=[Own()].'),
    (None, dict(best_metric=['loss']), "best_metric=['loss']: it must be text."),
    (None, dict(callbacks=None), 'callbacks is None: give a list, as callbacks=['),
    (None, dict(callbacks=Own()), 'callbacks is Own alone: give a list, as callbacks=[Own()].'),
    (None, dict(callbacks=[lambda step: None]), 'a function of callbacks takes (step), and is '
     'called with (step, loss): write callbacks=[lambda step, loss: …].'),
    (None, dict(epoch=3), 'towers.train has no argument epoch: did you mean epochs?'),
    (None, dict(patience=3), 'no argument patience: did you mean early_stopping?'),
    (None, dict(batch_size=3), 'towers.train has no argument batch_size: give batch_size to '
     'towers.Program.'),
    (None, dict(validation='none'), 'no argument validation: give validation=None to '
     'towers.Program.'),
    (None, dict(learning_rate=0.1), 'no argument learning_rate: give learning_rate to '
     'towers.Program.'),
    (None, dict(check=True), 'a flag of the command line: in Python it is towers.check.'),
    (model, dict(train=EXAMPLES), 'has no argument train: give train to towers.Program.')])
def test_a_training_of_something_else_is_refused_with_the_line_to_write(program, settings, message):
  with pytest.raises(towers.UsageError) as caught:
    towers.train(program or build(), steps=1, **settings)
  assert message in str(caught.value)


@pytest.mark.parametrize('call, message', [
    (lambda: towers.Program(model, EXAMPLES, batch_size=4), 'towers.Program got an Examples '
     'without a name, and only model may lack one: write its name and = before it.'),
    (lambda: towers.train(model, 3), 'towers.train got an int without a name, and only program'),
    (lambda: towers.train(epochs=3), 'towers.train needs program as well.'),
    (lambda: towers.export(model, 'served'), 'towers.export needs checkpoint_dir as well.'),
    (lambda: towers.Program(model), 'towers.Program needs train and optimizer and batch_size'),
    (lambda: towers.check(), 'towers.check needs model and examples as well.')])
def test_an_argument_without_its_name_is_refused_and_a_missing_one(call, message):
  with pytest.raises(towers.UsageError) as caught:
    call()
  assert message in str(caught.value)


def test_a_check_of_something_else_is_refused():
  with pytest.raises(towers.UsageError, match='towers.check has no argument accumulate: give '
                                              'accumulate to towers.Program'):
    towers.check(model, EXAMPLES, accumulate=2)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize('given, message', [
    (lambda: tf.data.Dataset.range(3), 'write examples=towers.from_dataset(make), where make is'),
    (lambda: towers.DataSet(EXAMPLES, EXAMPLES), 'write examples=data_set.validation.'),
    (lambda: lambda: 3, 'write examples=towers.from_dataset(function), if it')])
def test_an_evaluation_of_something_else_is_refused_with_the_line_to_write(given, message):
  with build().session() as session, pytest.raises(towers.UsageError) as caught:
    session.evaluate(given())
  assert message in str(caught.value)


def test_hits_without_a_dict_are_not_taken_for_weights_of_the_loss():
  def changed(batch, is_training):
    losses = model(batch, is_training)
    return losses, tf.cast(losses < 0.5, tf.float32)

  with pytest.raises(towers.UsageError, match="a tuple of 2 .* metrics, as losses, {'hits': hits}"):
    build(changed)


def test_validation_examples_of_another_shape_are_told_before_the_first_step(capsys):
  build(lambda batch, is_training: tf.reduce_mean(batch[0], 1) * tf.get_variable('w', []),
        validation=towers.from_arrays(np.zeros([4, 5], np.float32), LABELS[:4]))
  assert ('WARNING: component 0 has the shape [5] in the validation split and [4] in the training '
          'split' in capsys.readouterr().err)


def test_a_label_that_is_no_class_is_a_mistake_and_a_name_that_is_none_is_told():
  with build(train=towers.from_arrays(FEATURES, LABELS + 7)).session() as session:
    with pytest.raises(towers.UsageError, match=r'Tower \d got the label 7, .* in \[0, 2\)'):
      session.train()
    with pytest.raises(towers.UsageError, match='no net/MatMul:0: fetch one of tower_0/net/MatMul'):
      session.run('net/MatMul:0')


MISTAKE = 'towers.from_arrays([[0]], [0, 1])'
OF_MISTAKE = 'towers: error: examples: array 0 of shape (1, 1) has 1 examples, and array 1 of shape'
# Raised behind a context of the standard library.
IN_MODEL = 'towers.Program(print, train=towers.from_arrays([0, 1]), batch_size=2, optimizer=print)'
LAUNCH = ['-m', 'towers', 'launch', '--workers=2', '--restarts=3', '--', sys.executable]


@pytest.mark.parametrize('start, line, code, words', [
    ([], MISTAKE, 2, [OF_MISTAKE, f'script.py:6: {MISTAKE}']),
    ([], IN_MODEL, 2, ['The model returned a NoneType', f'script.py:6: {IN_MODEL}']),
    (LAUNCH, MISTAKE, 2, [OF_MISTAKE, 'a mistake to correct, which no restart mends']),
    ([], "raise towers.RunError('No room.')", 3, ['towers: error: No room.\n']),
    ([], "raise Interrupted(15, 'ended')", 143, ['towers: SIGTERM: ended\n']),
    ([], "sys.excepthook = lambda *_: print('theirs', file=sys.stderr)\n" + MISTAKE, 2,
     ['theirs\n', OF_MISTAKE]),
    ([], 'try:\n  %s\nexcept ValueError:\n  pass\n1 / 0' % MISTAKE, 1,
     ['Traceback', 'ZeroDivisionError'])],
                         ids=['mistake', 'in model', 'launched', 'run error', 'signal', 'hook',
                              'bug'])
def test_a_script_that_catches_no_error_ends_as_main_does(start, line, code, words, tmp_path):
  script = tmp_path / 'script.py'
  script.write_text('import sys\nimport towers\nfrom towers.process.signals import '
                    'Interrupted\nassert sys.excepthook is sys.__excepthook__\n\n' + line)
  done = subprocess.run([sys.executable, *start, str(script)], cwd=str(tmp_path),
                        env=clean_environment(PYTHONPATH=ROOT), stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, text=True, timeout=120)
  assert done.returncode == code and all(word in done.stdout for word in words), done.stdout
  assert ('Traceback' in done.stdout) == ('Traceback' in words)
  assert 'restart 1' not in done.stdout


def test_programs_and_sessions_say_what_they_are():
  program = build()
  assert repr(program) == ('<towers.Program of model: 2 towers on CPU, batch_size=4, 12 examples, '
                           '2 variables of 10 values>')
  session = program.session()
  assert repr(session) == f'<towers.Session not open, of {program!r}>'
  with session:
    session.train()
    assert repr(session) == f'<towers.Session at step 1, of {program!r}>'


def test_a_table_shows_every_variable_and_what_moves_it():
  def normed(batch, is_training):
    features, labels = batch
    features = tf.layers.batch_normalization(features, training=is_training, name='norm')
    return model((features, labels), is_training)

  program = build(normed, frozen=['net/bias'], rate_factors={'net/weights': 0.1},
                  optimizer=tf.train.GradientDescentOptimizer, learning_rate=0.5)
  lines = [line.split() for line in program.format_variables().splitlines()]
  assert lines == [
      ['variable', 'shape', 'dtype', 'learning', 'rate'],
      ['norm/gamma', '[4]', 'float32', '0.5'], ['norm/beta', '[4]', 'float32', '0.5'],
      ['norm/moving_mean', '[4]', 'float32', 'not', 'trained'],
      ['norm/moving_variance', '[4]', 'float32', 'not', 'trained'],
      ['net/weights', '[4,', '2]', 'float32', '0.05'],
      ['net/bias', '[2]', 'float32', 'frozen']]


def test_a_loss_without_gradients_is_refused_and_variables_without_one_are_named(capsys):
  with pytest.raises(towers.UsageError, match='no gradient for any of the 2 variables .net/weights,'
                                              ' net/bias.*tf.round'):
    build(lambda batch, is_training: tf.stop_gradient(model(batch, is_training)))

  def partly(batch, is_training):
    tf.get_variable('unused', [3])
    return model(batch, is_training)

  build(partly)
  [line] = [line for line in capsys.readouterr().err.splitlines() if 'gradient' in line]
  assert line == 'WARNING: the loss has no gradient for unused, which stay as they start'

  def moving(batch, is_training):
    mean = tf.get_variable('moving_mean', [])
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, mean.assign_sub(0.1 * (mean - 1.0)))
    return model(batch, is_training)

  build(moving)
  [line] = [line for line in capsys.readouterr().err.splitlines() if 'gradient' in line]
  assert line == ('WARNING: the loss has no gradient for moving_mean, which updates of the model '
                  'move: make them with trainable=False')


@pytest.mark.parametrize('compiles', [False, True])
def test_a_keras_model_needs_a_loss(compiles):
  keras = load_keras()

  def make():
    layers = keras.Sequential([keras.layers.Dense(2, activation='softmax')])
    if compiles:
      layers.compile(optimizer='sgd', loss='sparse_categorical_crossentropy')
    return layers

  if compiles:
    with build(towers.KerasModel(make)).session() as session:
      assert np.isfinite(session.train())
  else:
    with pytest.raises(towers.UsageError, match='KerasModel was given no loss.*KerasModel.make, '
                                                'loss='):
      build(towers.KerasModel(make))
