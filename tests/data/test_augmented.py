"""Examples augmented by a function of one's own: the same on any towers, and after a resume."""

import inspect
import os
import random
import re

import numpy as np
import pytest

import towers
from tests import ROOT
from tests.data.pictures import jpegs
from tests.harness.small import nightly_but
from towers import data
from towers.base.usage_error import UsageError
from towers.data.example_draws import Draws
from towers.tensorflow_v1 import tf

NUM = 21
IMAGES = np.random.RandomState(0).randint(256, size=(NUM, 8, 8, 3)).astype(np.uint8)
NUMBERS = np.arange(NUM, dtype=np.int32)


def augment(example, draws):
  image, number = example
  image = tf.cast(draws.flip(draws.crop(image, [5, 5])), tf.float32) / 255
  return image, number, draws.normal([2]), draws.integer(3, 9)


def of_arrays(folder):
  return towers.from_arrays(IMAGES, NUMBERS)


def of_records(folder):
  with tf.io.TFRecordWriter(str(folder / 'a.tfrecord')) as writer:
    for image, number in zip(IMAGES, NUMBERS):
      example = tf.train.Example()
      example.features.feature['x'].bytes_list.value.append(image.tobytes())
      example.features.feature['y'].int64_list.value.append(number)
      writer.write(example.SerializeToString())

  def parse(record):
    features = tf.io.parse_single_example(record, {
        'x': tf.io.FixedLenFeature([], tf.string), 'y': tf.io.FixedLenFeature([], tf.int64)})
    image = tf.reshape(tf.io.decode_raw(features['x'], tf.uint8), [8, 8, 3])
    return image, tf.cast(features['y'], tf.int32)

  return towers.from_tfrecords(str(folder / '*.tfrecord'), parse, on_bad_record='skip')


def of_data_set(folder):
  return towers.from_dataset(lambda: tf.data.Dataset.from_tensor_slices((IMAGES, NUMBERS)),
                             shuffle_buffer=NUM)


def of_folder(folder):
  for index, image in enumerate(jpegs(NUM)):
    (folder / 'train' / f'class_{index % 3}').mkdir(parents=True, exist_ok=True)
    (folder / 'train' / f'class_{index % 3}' / f'{index}.jpg').write_bytes(image)
  (folder / 'validation').symlink_to(folder / 'train')
  return data.load('images', data_dir=str(folder), image_size=8).train


def model(batch, is_training):
  image, number, normal, integer = batch
  kernel = tf.get_variable('kernel', [75, 3])
  seen = tf.reduce_sum(tf.square(tf.matmul(tf.reshape(image, [-1, 75]), kernel)), 1)
  return seen + tf.reduce_sum(normal, 1) * tf.cast(integer, tf.float32)


def train(examples, num_steps=6, restore=None, save=None, **settings):
  """Returns the losses of the steps, from two epochs and a third."""
  with tf.Graph().as_default():
    program = towers.Program(model, train=examples, batch_size=8, device='cpu', seed=3,
                             optimizer=tf.train.GradientDescentOptimizer(1e-3), **settings)
    with program.session() as session:
      if restore:
        session.restore(restore)
      losses = [session.train() for _ in range(num_steps)]
      if save:
        session.save(save)
  return losses


MAKERS = [of_arrays, of_records, of_data_set, of_folder]


@pytest.mark.parametrize('make, mode, num_towers', nightly_but(
    [(of_records, 'next', 3)],
    [(make, mode, num_towers) for make in MAKERS
     for mode, num_towers in (('split', 3), ('next', 3), ('shard', 2), ('shard', 8))]))
def test_every_shape_draws_the_same_for_each_example(make, mode, num_towers, tmp_path):
  examples = towers.augmented(make(tmp_path), augment, seed=5)
  expected = train(examples, num_towers=1)
  assert len(set(expected)) == len(expected)
  np.testing.assert_allclose(train(examples, num_towers=num_towers, input_mode=mode), expected,
                             atol=1e-5)


@pytest.mark.parametrize('make', nightly_but([of_arrays], MAKERS))
def test_a_resumed_run_draws_what_the_other_would_have_drawn(make, tmp_path):
  examples = towers.augmented(make(tmp_path), augment, seed=5)
  whole = train(examples, num_steps=7, num_towers=1)
  train(examples, num_steps=4, num_towers=1, save=str(tmp_path / 'saved'))
  rest = train(examples, num_steps=3, num_towers=1, restore=str(tmp_path / 'saved'))
  assert rest == whole[4:]


def test_batches_draw_what_single_examples_draw():
  examples = of_arrays(None)
  whole = [train(towers.augmented(examples, augment, of_batches=of_batches), num_towers=1)
           for of_batches in (False, True)]
  np.testing.assert_allclose(*whole, atol=1e-5)


@pytest.mark.parametrize('of_batches', [False, True])
def test_each_validation_draws_the_same_also_after_a_resume(of_batches, tmp_path):
  examples = towers.augmented(of_arrays(None), augment, of_batches=of_batches)
  with tf.Graph().as_default():
    program = towers.Program(model, train=examples, validation=examples, seed=3,
                             batch_size=8, num_towers=2, device='cpu',
                             optimizer=tf.train.GradientDescentOptimizer(0.0))
  with program.session() as session:
    first = session.validate()['loss']
    assert [session.validate()['loss'] for _ in range(2)] == [first, first]
    assert session.evaluate(examples)['loss'] == pytest.approx(first, abs=1e-5)
    session.train()  # By a rate of 0.
    session.save(str(tmp_path))
  with program.session() as session:
    session.restore(str(tmp_path))
    assert session.validate()['loss'] == first


@pytest.mark.parametrize('component', [0, 1])
def test_a_function_of_batches_that_mixes_rows_is_refused(component):
  def mix(batch, draws):
    batch = [*augment(batch, draws)]
    batch[component] = (batch[component] + batch[component][::-1]) / 2
    return (batch[0], tf.cast(batch[1], tf.int32), *batch[2:])

  with pytest.raises(UsageError, match=f'makes other rows of component {component} in other batch'):
    train(towers.augmented(of_arrays(None), mix, of_batches=True), num_towers=1)


def test_draws_are_of_their_kind_and_others_for_each_call_function_and_epoch():
  with tf.Graph().as_default(), tf.Session() as session:
    def draws_of(epoch=0, seed=0):
      return Draws(tf.range(4000, dtype=tf.int64), epoch=tf.constant(epoch, tf.int64), seed=seed)

    draws = draws_of()
    uniform, again, normal, integer = session.run([
        draws.uniform([2], -1, 3), draws.uniform([2], -1, 3), draws.normal(mean=2.0, stddev=3.0),
        draws.integer(-2, 3)])
    others = session.run([draws_of(epoch=1).uniform([2], -1, 3), draws_of(seed=1).uniform()])
  assert uniform.shape == (4000, 2) and -1 <= uniform.min() < -0.9 and 2.9 < uniform.max() < 3
  assert not (uniform == again).any() and not (uniform == others[0]).any()
  assert abs(normal.mean() - 2) < 0.2 and abs(normal.std() - 3) < 0.2
  assert set(integer) == set(range(-2, 3))

  def more(example, draws):
    return (*example[:2], example[2] - draws.normal([2]), example[3])

  with pytest.raises(towers.UsageError, match='draws.crop got the size .*: give two numbers'):
    draws.crop(tf.zeros([4000, 8, 8, 3]), tf.constant([5, 5]))
  # Were both the same, the second would take off what the first has drawn.
  twice = towers.augmented(towers.augmented(of_arrays(None), augment), more)
  assert len(set(train(twice, num_towers=1))) == 6


@pytest.mark.parametrize('make', [
    lambda function: towers.from_dataset(
        lambda: tf.data.Dataset.from_tensor_slices(IMAGES).map(function)),
    lambda function: towers.from_tfrecords('a.tfrecord', lambda record: function(
        tf.reshape(tf.io.decode_raw(record, tf.uint8), [8, 8, 3])))])
def test_random_ops_of_a_data_set_are_refused_by_name(make, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with tf.io.TFRecordWriter('a.tfrecord') as writer:
    writer.write(IMAGES[0].tobytes())
  make(lambda image: tf.reverse(image, [1]))
  with pytest.raises(UsageError, match=r'\(RandomUniform\) draws .* towers.augmented\(examples'):
    make(lambda image: tf.image.random_flip_left_right(image, seed=1))


@pytest.mark.parametrize('of_batches', [False, True])
def test_other_draws_in_the_function_are_refused_by_name(of_batches):
  def flip(example, draws):
    return (tf.cast(example[0], tf.float32) + tf.random_uniform([]), *augment(example, draws)[1:])

  examples = towers.augmented(of_arrays(None), flip, of_batches=of_batches)
  with pytest.raises(UsageError, match=r'\(RandomUniform\) draws by a state .* draws.uniform'):
    train(examples, num_towers=2)


@pytest.mark.parametrize('draw', [lambda: np.random.rand(), random.random])
@pytest.mark.parametrize('who', ['the function of towers.augmented', 'parse'])
def test_numbers_that_python_draws_once_for_all_examples_are_refused(who, draw, tmp_path):
  def brighten(image, draws=None):
    del draws
    return tf.cast(image, tf.float32) * np.float32(draw())

  with tf.io.TFRecordWriter(str(tmp_path / 'images')) as writer:
    writer.write(IMAGES[0].tobytes())
  with pytest.raises(UsageError, match=f'{who} draws by numpy.*draws.uniform'):
    if who == 'parse':
      towers.from_tfrecords(str(tmp_path / 'images'), lambda record: brighten(
          tf.io.decode_raw(record, tf.uint8)))
    else:
      train(towers.augmented(towers.from_arrays(IMAGES), brighten), num_towers=2)


@pytest.mark.parametrize('kind', ['uniform', 'normal'])
def test_bounds_in_place_of_a_shape_are_refused_with_the_line_to_write(kind):
  draws = Draws(tf.constant(3, tf.int64), epoch=0, seed=0)
  with pytest.raises(UsageError, match=r'shape 0.8: .* draws.uniform\(low=0.8, high=1.2\)'):
    getattr(draws, kind)(0.8, 1.2)


@pytest.mark.parametrize('call, message', [
    (lambda draws, images: draws.integer(4), "missing 1 required positional argument: 'high'"),
    (lambda draws, images: draws.flip(images, axis=0), "unexpected keyword argument 'axis'"),
    (lambda draws, images: draws.rotate(images), "has no attribute 'rotate'")])
def test_calls_that_are_no_draws_are_named_with_all_that_are(call, message):
  def wrong(example, draws):
    return (call(draws, example[0]), *example[1:])

  with pytest.raises(UsageError, match='test_augmented.py.*' + message) as caught:
    train(towers.augmented(of_arrays(None), wrong), num_towers=1)
  drawn = re.findall(r'draws[.](\w+[(].*?[)])(?=, draws| and|[.]$)',
                     str(caught.value).split('Its draws are ')[1])
  with open(os.path.join(ROOT, 'docs', 'data.md'), encoding='utf-8') as file:
    [line] = re.findall('`draws` has (.*?)[.] What', ' '.join(file.read().split()))
  assert drawn == re.findall('`(.*?)`', line)
  for text in drawn:
    name, taken = text[:-1].split('(', 1)
    parameters = list(inspect.signature(getattr(Draws, name)).parameters.values())[1:]
    assert taken == ', '.join(str(one.replace(annotation=one.empty)) for one in parameters)
  assert {text.split('(')[0] for text in drawn} == {
      name for name in vars(Draws) if not name.startswith('_')}


@pytest.mark.parametrize('of_batches', [False, True])
@pytest.mark.parametrize('known', [[8, 8, 3], [8, None, 3], [None, None, 3]])
def test_a_crop_of_more_than_the_image_is_named_with_both_sizes(known, of_batches):
  def wrong(example, draws):
    image = tf.placeholder_with_default(example[0], [None] * of_batches + known)
    image = tf.cast(draws.crop(image, [8, 9]), tf.float32)
    return (image, *augment(example, draws)[1:])

  split = towers.augmented(of_arrays(None), wrong, of_batches=of_batches)
  with pytest.raises(UsageError if None not in known else towers.RunError,
                     match=r'takes \[8, 9\], height and width, from an image of \[8,? 8\]: give'):
    train(split, num_towers=1)


def test_a_list_in_batches_is_refused_since_it_is_one_tensor():
  split = towers.augmented(towers.from_arrays({'x': IMAGES}), lambda example, draws: {
      'x': [example['x'], example['x']]}, of_batches=True)
  with pytest.raises(UsageError, match=r'returned the shape \(2, .* return a row for each example'):
    train(split, num_towers=1)


def test_batches_of_other_examples_are_refused():
  with pytest.raises(UsageError, match='examples: of_batches=True is for examples of'):
    towers.augmented(of_data_set(None), augment, of_batches=True)
