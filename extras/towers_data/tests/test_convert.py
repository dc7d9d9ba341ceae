"""A conversion loses nothing, repeats its bytes, and if killed leaves no half that reads whole."""

import io
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import test_image_folder
from test_cifar import write as write_cifar
from test_npy_folder import write as write_npy
from tests.data.pictures import damage, jpegs, take
from tests.harness.processes import running, wait_until
from towers import data, extras
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords
from towers.data.formats.tfrecord import load_index
from towers.tensorflow_v1 import tf
from towers_data.convert import convert
from towers_data.idx.make_sample import write_idx


def command(name, arguments):
  return extras.run(f'python -m towers {name}', arguments)


def run(kind, source, to, **settings):
  return convert(kind, str(source), str(to), stream=io.StringIO(), **settings)


@pytest.fixture
def photos(tmp_path):
  return test_image_folder.write(tmp_path / 'photos')


def contents(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def read_all(examples):
  """Returns the images and labels of a split, in any order that is the same for equal ones."""
  with tf.Graph().as_default(), tf.Session() as session:
    elements = tf.data.Dataset.range(examples.num_examples)
    batches = examples.read(elements, epoch=tf.constant(0, tf.int64), parallel_calls=2).batch(10**4)
    iterator = tf.data.make_initializable_iterator(batches)
    session.run(iterator.initializer)
    images, labels = session.run(iterator.get_next())
  return sorted((label, image.tobytes()) for image, label in zip(images, labels.tolist()))


@pytest.mark.nightly(but='cifar10-3')
@pytest.mark.parametrize('kind, channels', [('idx', 1), ('cifar10', 3), ('npy', 3)])
def test_arrays_come_back_to_the_bit(tmp_path, kind, channels):
  source, to = tmp_path / 'source', tmp_path / 'to'
  source.mkdir()
  random = np.random.RandomState(0)
  images = random.randint(256, size=(24, 32, 32, channels)).astype(np.uint8)
  labels = np.arange(24) % 10
  if kind == 'npy':
    write_npy(source, images, labels, num_validation=4)
  elif kind == 'cifar10':
    write_cifar(source, 'cifar10', images, labels)
  else:
    for split, part in (('train', slice(0, -4)), ('t10k', slice(-4, None))):
      write_idx(str(source / (split + '-images-idx3-ubyte')), images[part, ..., 0])
      write_idx(str(source / (split + '-labels-idx1-ubyte')), labels[part].astype(np.uint8))
  description = run(kind, source, to, shards=3)
  assert sorted(description['shards']) == [
      *(f'train-{number:05}-of-00003' for number in range(3)), 'validation-00000-of-00001']
  data_set = data.load('tfrecord', data_dir=to)
  assert data_set.image_shape == (32, 32, channels) and data_set.num_classes == 10
  for examples, part in ((data_set.train, slice(0, 20)), (data_set.validation, slice(20, 24))):
    expected = sorted(
        (label, image.tobytes()) for image, label in zip(images[part], labels[part].tolist()))
    assert read_all(examples) == expected


@pytest.mark.nightly
def test_files_are_copied_as_they_are_and_classes_are_named(photos, tmp_path):
  description = run('images', photos, tmp_path / 'to', shards=2)
  assert description['classes'] == ['ant', 'bee', 'cow'] and description['num_classes'] == 3
  stored = b''.join(contents(tmp_path / 'to').values())
  assert all(content in stored for content in jpegs(12))
  folder, converted = (data.load(kind, data_dir=tmp_path / name, image_size=16)
                       for kind, name in (('images', 'photos'), ('tfrecord', 'to')))
  for split in ('train', 'validation'):
    assert read_all(getattr(folder, split)) == read_all(getattr(converted, split))


def test_bytes_do_not_depend_on_processes_and_what_is_whole_is_kept(photos, tmp_path):
  for name, processes in (('one', 1), ('three', 3)):
    run('images', photos, tmp_path / name, shards=4, processes=processes)
  expected = contents(tmp_path / 'one')
  assert contents(tmp_path / 'three') == expected
  shards = sorted(path for path in (tmp_path / 'one').iterdir() if path.name.startswith('train'))
  times = {path: path.stat().st_mtime_ns for path in shards}
  shards[0].unlink()                                                   # One is missing,
  damage(shards[1], 300)  # one is damaged, and does not look it,
  os.utime(str(shards[1]), ns=(times[shards[1]], times[shards[1]]))
  (tmp_path / 'one' / '.index' / shards[2].name).write_bytes(b'?')     # one has lost its index,
  (tmp_path / 'one' / '.writing-7').write_bytes(b'')                   # and one was left half.
  run('images', photos, tmp_path / 'one', shards=4)
  assert contents(tmp_path / 'one') == expected
  assert shards[3].stat().st_mtime_ns == times[shards[3]]
  # Another source makes all of them anew.
  (photos / 'train' / 'ant' / '0.JPG').write_bytes(jpegs(12)[11])
  run('images', photos, tmp_path / 'one', shards=4)
  assert shards[3].stat().st_mtime_ns != times[shards[3]]
  with pytest.raises(UsageError, match='another conversion.*of-00004.*empty folder'):
    run('images', photos, tmp_path / 'one', shards=3)


def test_damaged_images_end_the_conversion_or_are_left_out(photos, tmp_path):
  bad = photos / 'train' / 'bee' / '1.JPG'
  bad.write_bytes(bad.read_bytes()[:-200])
  with pytest.raises(UsageError, match='bee/1.JPG.*cut off.*on_bad_record=skip'):
    run('images', photos, tmp_path / 'to')
  assert not (tmp_path / 'to' / 'data_set.json').exists()
  description = run('images', photos, tmp_path / 'to', on_bad_record='skip')
  assert sum(shard['records'] for shard in description['shards'].values()) == 11
  # A conversion that must not leave any out does not take the shard that did.
  with pytest.raises(UsageError, match='cut off'):
    run('images', photos, tmp_path / 'to')


_KILLED = """
import sys, time
import tests
from towers_data import convert, shards
encode = shards.encode_labelled
def slow(image, label):
  time.sleep(0.02)
  return encode(image, label)
shards.encode_labelled = slow
sys.exit(convert.main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_killed_at_any_moment_it_leaves_nothing_half_and_goes_on(photos, tmp_path):
  arguments = ['--from=images', f'--data_dir={photos}', '--shards=6', '--processes=2']
  expected = tmp_path / 'expected'
  assert command('convert', arguments + [f'--to={expected}']) == 0
  to = tmp_path / 'to'
  left = []
  for seconds in (0.0, 0.05, 0.1, 0.15):
    with running(sys.executable, '-c', _KILLED, *arguments, f'--to={to}',
                 stderr=subprocess.DEVNULL, start_new_session=True) as process:
      wait_until(lambda: process.poll() is not None or to.exists() and any(to.iterdir()))
      time.sleep(seconds)
    # Its workers see within a record that it is gone.
    time.sleep(0.2)
    whole = {name: content for name, content in contents(to).items()
             if name.startswith(('train', 'validation'))}
    assert all(content == (expected / name).read_bytes() for name, content in whole.items())
    left.append(len(whole))
    if len(whole) < 8:
      with pytest.raises(UsageError):
        data.load('tfrecord', data_dir=to)
  assert min(left) < 8, 'it was over before it was killed'
  assert command('convert', arguments + [f'--to={to}']) == 0
  assert contents(to) == contents(expected)
  assert not [name for name in os.listdir(str(to)) if name.startswith('.writing')]


@pytest.mark.nightly
def test_no_worker_outlives_a_killed_conversion(photos, tmp_path):
  with running(sys.executable, '-c', _KILLED.replace('0.02', '2'), '--from=images', '--shards=2',
               '--processes=2', f'--data_dir={photos}', f"--to={tmp_path / 'to'}",
               stderr=subprocess.DEVNULL, start_new_session=True) as process:
    wait_until(lambda: process.poll() is not None or any((tmp_path / 'to').glob('.writing*')))

  def is_alone():
    try:
      os.killpg(process.pid, 0)
    except ProcessLookupError:
      return True
    return False

  wait_until(is_alone, seconds=6)  # A worker needs 10 s for its shard, and 2 to see that it is.


def test_the_command_line(photos, tmp_path, capsys):
  to = [f"--to={tmp_path / 'to'}"]
  assert command('convert', ['--from=images', f'--data_dir={photos}'] + to) == 0
  output, errors = capsys.readouterr()
  assert 'done: 12 images of 3 classes in 2 files; train with --data=tfrecord' in output
  assert '12 of 12 images, 2 of 2 shards' in errors
  assert command('convert', ['--from=npy', f'--data_dir={tmp_path}'] + to) == 2
  assert 'error: data_dir' in capsys.readouterr().err
  write_npy(tmp_path, np.zeros([9, 4, 4], np.float32), np.arange(9) % 2)
  assert command('convert', ['--from=npy', f'--data_dir={tmp_path}'] + to) == 2
  assert 'float32 cannot become PNGs' in capsys.readouterr().err
  for shards in ('0', '-1'):
    flags = ['--from=images', f'--data_dir={photos}', f'--shards={shards}']
    assert command('convert', flags + to) == 2


def test_an_index_says_what_the_shard_is(photos, tmp_path):
  description = run('images', photos, tmp_path / 'to', shards=2)
  for name, shard in description['shards'].items():
    index = load_index(tmp_path / 'to' / name)
    assert (len(index.lengths), index.facts['crc32'], index.facts['bytes']) == (
        shard['records'], shard['crc32'], (tmp_path / 'to' / name).stat().st_size)
  [taken] = take(data.load_tfrecord_folder(tmp_path / 'to', bad_records=BadRecords(), image_size=4,
                                           max_image_pixels=10**6).validation, batch_size=3)
  assert sorted(taken) == [0, 1, 2]


@pytest.mark.parametrize('data_dir, to, name', [
    ('gs://bucket/photos', 'out', 'data_dir'), ('.', 's3://bucket/out', 'to')])
def test_nothing_is_converted_from_or_to_another_file_system(
    data_dir, to, name, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  assert command('convert', ['--from=images', '--data_dir=' + data_dir, '--to=' + to]) == 2
  assert name + '=' in capsys.readouterr().err
  assert command('make_sample', ['--data_dir=' + data_dir, '--output_dir=' + to]) == 2
  assert name.replace('to', 'output_dir') + '=' in capsys.readouterr().err
  assert os.listdir(tmp_path) == []
