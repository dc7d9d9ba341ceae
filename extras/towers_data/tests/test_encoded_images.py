"""Encoded images: each in its place in every mode and after a resume; a damaged one goes alone."""

import io
import itertools
import struct
import zlib

import numpy as np
import pytest

import towers.data
from tests.data.pictures import FORMAT, List, decode, jpegs, picture, take, write_tfrecords
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords
from towers.data.formats.tfrecord import Records, load_index
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.tensorflow_v1 import tf
from towers_data import encoded_images
from towers_data.encoded_images import ImageSource, encoded_examples
from towers_data.labelled_example import decode_labelled, encode_example
from towers_data.png import encode_png

NUM = 23  # Labels tell records apart.


def examples_of(folder, *, policy='fail', augment='none', **changes):
  files = sorted(folder.glob('train-*')) or write_tfrecords(
      folder, 'train', [range(9), range(9, 10), range(10, NUM)])
  records = Records([load_index(path) for path in files])
  bad_records = BadRecords(policy, io.StringIO())
  return bad_records, encoded_examples(
      ImageSource(len(records), lambda numbers: list(map(decode, records.read(numbers))),
                  records.place), format=FORMAT._replace(**changes), augment=augment, seed=5,
      bad_records=bad_records, name='pictures')


def assert_pictures(step):
  """The blue of a picture tells its number, up to what JPEG makes of it."""
  for label, image in step.items():
    assert abs(float(image[..., 2].mean()) - label * 37 % 256) < 3, label


def assert_same(left, right):
  assert [sorted(step) for step in left] == [sorted(step) for step in right]
  for ours, theirs in zip(left, right):
    for label in ours:
      np.testing.assert_array_equal(ours[label], theirs[label])


@pytest.mark.parametrize('policy', ['fail', pytest.param('skip', marks=pytest.mark.nightly)])
def test_records_keep_their_order_and_their_labels(tmp_path, policy):
  _, examples = examples_of(tmp_path, policy=policy)
  for calls in (1, 5):
    steps = take(examples, parallel_calls=calls)
    assert list(map(sorted, steps)) == [[*range(8)], [*range(8, 16)], [*range(16, NUM)]]
    for step in steps:
      assert_pictures(step)


@pytest.mark.nightly
@pytest.mark.parametrize('augment', ['cifar', 'imagenet'])
def test_augmentation_is_the_same_in_every_mode_on_any_towers_and_after_a_resume(tmp_path, augment):
  _, examples = examples_of(tmp_path, augment=augment)
  expected = take(examples, num_steps=6)
  for mode, num_towers in (('next', 3), ('shard', 3)) if augment == 'imagenet' else (('shard', 2),):
    assert_same(take(examples, mode=mode, num_towers=num_towers, num_steps=6, parallel_calls=3),
                expected)
  assert_same(take(examples, first_step=4, num_steps=2), expected[4:])
  [shuffled] = take(examples, batch_size=NUM, shuffle=True)
  assert_same([shuffled], [{label: step[label] for step in expected[:3] for label in step}])
  # Another epoch is augmented in another way, and so are neighbours.
  first, second = {**expected[0], **expected[1]}, {**expected[3], **expected[4]}
  assert sum((first[label] != second[label]).any() for label in first) >= 14


@pytest.mark.nightly
def test_pngs_lose_nothing_and_mix_with_jpegs():
  pictures = np.random.RandomState(0).randint(256, size=(6, 16, 16, 3)).astype(np.uint8)
  contents = [encode_png(pixels) for pixels in pictures] + list(jpegs(4))
  [taken] = List(contents, labels=np.arange(10, dtype=np.int32)).take(batch_size=10)
  for label, pixels in enumerate(pictures):
    np.testing.assert_array_equal(taken[label], pixels)
  assert sorted(taken) == list(range(10))
  [taken] = List([encode_png(pixels[..., :1]) for pixels in pictures],
                 labels=np.arange(6, dtype=np.int32)).take(format=FORMAT._replace(channels=1))
  np.testing.assert_array_equal(taken[3], pictures[3][..., :1])


def test_pixels_are_rounded():
  columns = np.tile(np.array([[[0], [2]]], np.uint8), [2, 1, 3])
  [taken] = List([encode_png(columns)], labels=np.zeros(1, np.int32)).take(
      batch_size=1, format=FORMAT._replace(size=8))
  # Between the middles of the two columns the values rise in steps of a half.
  np.testing.assert_array_equal(taken[0][0, :, 0], [0, 0, 0, 1, 1, 2, 2, 2])


def test_a_jpeg_is_decoded_as_a_whole_decoder_would(tmp_path):
  """Cropping while decoding, and from the middle, is what decoding all of it and cropping gives."""
  content = jpegs(3, 40, 60)[2]
  [taken] = List([content], labels=np.zeros(1, np.int32)).take(batch_size=1,
                                                               format=FORMAT._replace(size=35))
  with tf.Graph().as_default(), tf.Session() as session:
    whole = session.run(tf.image.decode_jpeg(content, channels=3, dct_method='INTEGER_ACCURATE'))
  np.testing.assert_array_equal(taken[0], whole[2:37, 12:47])
  assert np.abs(whole.astype(int) - picture(2, 40, 60)).mean() < 3


def test_files_that_are_served_are_decoded_as_for_validation():
  noise = np.random.RandomState(0).randint(256, size=[31, 50, 3]).astype(np.uint8)
  contents = [*jpegs(2, 40, 60), encode_png(noise), encode_png(noise[:9, :, :1])]
  for size, channels in ((16, 3), (37, 1)):
    [taken] = List(contents, labels=np.arange(4, dtype=np.int32)).take(
        format=FORMAT._replace(size=size, channels=channels))
    with tf.Graph().as_default(), tf.Session() as session:
      decoded = session.run(towers.data.decode_images(tf.constant(contents), size, channels))
    np.testing.assert_array_equal(decoded, [taken[label] for label in range(4)])


def png_header(height, width):
  header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
  chunk = b'IHDR' + header
  return b'\x89PNG\r\n\x1a\n' + struct.pack('>I', 13) + chunk + struct.pack('>I', zlib.crc32(chunk))


def bomb_jpeg(height, width):
  """A JPEG whose frame header declares another size."""
  content = bytearray(jpegs(1)[0])
  frame = content.index(b'\xff\xc0')
  content[frame + 5:frame + 9] = struct.pack('>HH', height, width)
  return bytes(content)


def example(**features):
  names = dict(image='image/encoded', label='image/class/label')
  return encode_example({names[name]: value for name, value in features.items()})


def examples(count):
  """Returns good ones, whose labels are their numbers."""
  return [example(image=content, label=number + 1) for number, content in enumerate(jpegs(count))]


# (record, words of the reason)
BAD = [
    (example(image=jpegs(1)[0], label=0),
     ['label 0', '1 to 1000', 'first_label=1', 'num_classes=1000']),
    (example(image=jpegs(1)[0], label=1001), ['label 1001']),
    (example(image=jpegs(1)[0], label=-5), ['label -5']),
    (example(image=jpegs(1)[0]), ['image/class/label', '0 times', 'image/encoded']),
    (example(label=3), ['image/encoded', '0 times']),
    (example(image=7, label=3), ['int', 'bytes']),
    (encode_example({}), ['image/encoded', 'no others']),
    (b'', ['image/encoded', 'no others']),
    (b'no proto', ['no tf.train.Example']),
    (example(image=b'', label=3), ['neither JPEG nor PNG']),
    (example(image=b'GIF89a' + bytes(20), label=3), ['GIF']),
    (example(image=jpegs(1)[0][:120], label=3), ['ends within its header']),
    (example(image=jpegs(1)[0][:-150], label=3), ['cut off']),
    (example(image=jpegs(1)[0][:30] + b'\x00' * 900 + b'\xff\xd9', label=3), ['JPEG']),
    (example(image=bomb_jpeg(65500, 65500), label=3),
     ['65,500 x 65,500', 'max_image_pixels=1,000,000']),
    (example(image=bomb_jpeg(0, 10), label=3), ['10 x 0 pixels']),
    (example(image=png_header(2**31 - 1, 2**31 - 1), label=3),
     ['2,147,483,647', 'max_image_pixels']),
    (example(image=png_header(2**32 - 1, 1), label=3), ['max_image_pixels']),
    (example(image=png_header(10, 10), label=3), ['cut off']),
    (example(image=png_header(10, 10)[:20], label=3), ['PNG without its header']),
]


@pytest.mark.parametrize(
    'mode, num_towers',
    [('shard', 2), pytest.param('next', 3, marks=pytest.mark.nightly)])
def test_bad_records_are_lost_alone(mode, num_towers):
  good = examples(len(BAD) + 2)
  contents = [*itertools.chain(*zip(good, [record for record, _ in BAD])), *good[len(BAD):]]
  given = List(contents)
  steps = given.take(mode=mode, num_towers=num_towers, batch_size=6)
  assert sorted(label for step in steps for label in step) == list(range(len(good)))
  # Each step still holds the elements that it planned, less the bad ones.
  assert list(map(sorted, steps)) == [
      sorted(number // 2 if number < 2 * len(BAD) else number - len(BAD)
             for number in range(begin, min(begin + 6, 42))
             if number % 2 == 0 or number >= 2 * len(BAD))
      for begin in range(0, 42, 6)]
  log = given.bad_records._stream.getvalue()
  for number, (_, words) in enumerate(BAD):
    [line] = [line for line in log.splitlines()
              if f'file: record {2 * number + 1} at byte {200 * number + 100}: ' in line]
    assert all(word in line for word in words), line
  assert given.bad_records.summary() == 'skipped 20 damaged records in 1 file: file (20)'


# What is found before decoding, and what a decoder finds alone: its header and its end are there.
UNREADABLE = example(image=b'GIF89a' + bytes(20), label=3)
UNDECODABLE = BAD[12][0]


@pytest.mark.nightly
@pytest.mark.parametrize('undecodable, unreadable', [
    ([0, 1, 31, 32, 63, 69], [2, 33]),         # Beginnings and ends of chunks of 32.
    (range(32), []),                           # A chunk in which nothing is left,
    (range(40, 70), [39]),                     # and one that ends so.
    ([5, 6, 9, 40], [4, 7, 41, 42, 69]),
], ids=str)
def test_errors_of_the_decoder_move_no_record(undecodable, unreadable):
  contents = examples(70)
  for number in undecodable:
    contents[number] = UNDECODABLE
  for number in unreadable:
    contents[number] = UNREADABLE
  bad = {*undecodable, *unreadable}
  for calls in (1, 3):
    given = List(contents)
    steps = given.take(batch_size=10, parallel_calls=calls)
    assert list(map(sorted, steps)) == [
        [number for number in range(begin, begin + 10) if number not in bad]
        for begin in range(0, 70, 10)]
    for step in steps:
      assert_pictures(step)
    assert given.bad_records._places == {('file', 100 * number) for number in bad}
  given = List(contents, policy='fail')
  with pytest.raises(tf.errors.OpError):
    given.take(batch_size=10)
  assert any(given.bad_records.failure.startswith(f'file: record {number} at byte {100 * number}: ')
             for number in bad)


def call_before_decoding(monkeypatch, function):
  """Hands every image to `function(content)` when it is decoded, and decodes what that returns."""
  decode_window = encoded_images._decode_window

  def decode(content, *others):
    content = tf.numpy_function(function, [content], tf.string)
    content.set_shape([])
    return decode_window(content, *others)

  monkeypatch.setattr(encoded_images, '_decode_window', decode)


@pytest.mark.nightly
@pytest.mark.parametrize('undecodable, unreadable, policy', [([], [], 'fail'), ([], [7], 'skip'),
                                                             ([40], [7], 'skip')], ids=str)
def test_a_chunk_without_errors_is_decoded_once(undecodable, unreadable, policy, monkeypatch):
  """Care costs time, and is taken only where a decoder failed."""
  decoded = []

  def note(content):
    decoded.append(content)
    return content

  call_before_decoding(monkeypatch, note)
  contents = list(jpegs(70))
  for number in undecodable + unreadable:
    record = UNDECODABLE if number in undecodable else UNREADABLE
    contents[number] = decode_labelled(record, num_classes=1000, first_label=1)[0]
  given = List(contents, labels=range(70), policy=policy)
  examples = given.examples()
  with tf.Graph().as_default(), tf.Session() as session:
    read = examples.read(tf.data.Dataset.range(70), epoch=tf.zeros([], tf.int64),
                         parallel_calls=2).batch(70)
    taken = session.run(tf.data.make_one_shot_iterator(read).get_next())
  (images, labels), is_good = taken if examples.marks_bad else (taken, np.ones(70, bool))
  assert len(images) == 70 and np.flatnonzero(~is_good).tolist() == sorted(undecodable + unreadable)
  assert (labels == np.arange(70) * is_good).all()
  good_chunks = {0, 1, 2} - {number // 32 for number in undecodable}
  for number in range(70):
    if is_good[number] and number // 32 in good_chunks:
      assert decoded.count(contents[number]) == 1, number


def test_an_error_that_comes_and_goes_moves_no_record(monkeypatch):
  images = jpegs(40)
  asked = []

  def fail_once(content):
    if content == images[3]:
      asked.append(content)
      if len(asked) == 1:
        raise MemoryError
    return content

  call_before_decoding(monkeypatch, fail_once)
  with pytest.raises(tf.errors.InvalidArgumentError, match='pictures: a row .* and then did not'):
    List(images, labels=range(40)).take(batch_size=40)


def test_a_step_of_bad_records_alone_is_empty_and_the_next_is_not():
  given = List([BAD[0][0]] * 4 + examples(4))
  assert [sorted(step) for step in given.take(batch_size=4, num_towers=2, num_steps=4)] == [
      [], [0, 1, 2, 3], [], [0, 1, 2, 3]]


@pytest.mark.nightly
def test_under_fail_shapes_stay_static_and_a_bad_image_names_its_record():
  given = List([example(image=jpegs(1)[0], label=1), BAD[12][0]], policy='fail')
  examples = given.examples()
  with tf.Graph().as_default():
    plan = build_plan(num_examples=2, batch_size=2, num_towers=2)
    [first, _] = build_inputs(examples, plan=plan).next_batches()
    assert first.is_static and first.tensors[0].shape.as_list() == [1, 16, 16, 3]
  with pytest.raises(tf.errors.OpError):
    take(examples, batch_size=2)
  assert given.bad_records.failure.startswith('file: record 1 at byte 100: a JPEG without its end')
  with pytest.raises(UsageError, match='on_bad_record'):
    BadRecords('ignore')
