"""Convert: images, idx files, CIFAR or arrays become sharded TFRecords of encoded images.

  python -m data.convert --from=images --data_dir=photos --to=photos.tfrecords

  sources ──► shuffled once ──► cut in shards ──► one process per core: encode, write `.train-….tmp`, rename
                                                  └─ and keep its index: lengths, checksum, what it was made from
  data_set.json last: classes, sizes, records and checksum of every shard

A shard has its name when it is whole, and data_set.json is there when all are: whenever a conversion is killed, nothing
half reads as whole. Started again, it keeps the shards whose index and checksum hold and that were made from the same
sources, and makes the others. The same sources give the same bytes, whatever the number of processes.

JPEGs and PNGs are copied as they are; arrays become PNGs, which lose nothing.
"""

import argparse
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import sys
import time
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from cores import count_cores
from data.bad_records import POLICIES, BadRecordError, BadRecords
from data.cifar import CIFARS, load_cifar
from data.idx_folder import load_idx_folder
from data.image_folder import find_image_files
from data.image_header import check_is_whole, read_image_header
from data.labelled_example import encode_labelled
from data.npy import load_npy
from data.png import encode_png
from data.tfrecord import FileIndex, keep_index, load_index, write_record
from data.tfrecord_folder import DESCRIPTION, DESCRIPTION_FORMAT
from data.whole_file import write_whole
from usage_error import UsageError

SOURCES = ('images', 'idx', 'npy') + tuple(CIFARS)

_SEED = 20190603
_SHARD_BYTES = 64 << 20
_SECONDS_BETWEEN_LINES = 1.0
# Of the arguments of one shard; part of what its index must say for it to be kept.
_VERSION = 'towers conversion 1'


class Split(NamedTuple):
  """Images to convert, by number.

  Attributes:
    name: 'train' or 'validation'.
    labels: `[images]` int.
    encode: `encode(number)` returns the bytes of a JPEG or PNG, or raises a BadRecordError.
    place: `place(number)` returns the file and the record's number in it, for messages.
    source: what the images are made from; another one asks for other shards.
    num_bytes: about how large they are all together.
  """
  name: str
  labels: np.ndarray
  encode: Callable[[int], bytes]
  place: Callable[[int], Tuple[str, int]]
  source: str
  num_bytes: int


class Sources(NamedTuple):
  """What is converted.

  Attributes:
    splits: both.
    classes: their names, or none where they have no names.
    num_classes: how many.
    image_size: height and width of all images if they are square and of one size, else None.
    channels: 1 or 3.
  """
  splits: Sequence[Split]
  classes: List[str]
  num_classes: int
  image_size: Optional[int]
  channels: int


class Shard(NamedTuple):
  """A file to write.

  Attributes:
    path: where.
    split: whose images.
    numbers: of the images, in order.
    source: says all that its bytes depend on.
  """
  path: str
  split: Split
  numbers: np.ndarray
  source: str


def convert(kind: str, data_dir: str, to: str, *, shards: Optional[int] = None, processes: Optional[int] = None,
            on_bad_record: str = 'fail', stream: Any = None) -> Dict[str, Any]:
  """Converts both splits.

  Args:
    kind: one of `SOURCES`.
    data_dir: the folder of the sources.
    to: the folder of the shards; made where it is missing.
    shards: files of the training split; None for as many as give 64 MB each. Validation gets its share.
    processes: that write at a time; None for one on each core.
    on_bad_record: 'fail', or 'skip' to leave damaged images out.
    stream: for progress, `sys.stderr` if None.

  Returns:
    What data_set.json says.

  Raises:
    UsageError: sources that are missing or damaged, or a folder that holds another conversion.
  """
  stream = stream or sys.stderr
  bad_records = BadRecords(on_bad_record, stream)
  sources = _read_sources(kind, data_dir, bad_records)
  try:
    os.makedirs(to, exist_ok=True)
  except OSError as error:
    raise UsageError("to='{}' cannot be made: {}; choose a folder that can be written.".format(to, error.strerror)) \
        from None
  planned = _plan_shards(sources, to, shards)
  _refuse_strangers(to, planned)
  _remove_leftovers(to)
  found = ((shard.path, _find_finished(shard, on_bad_record)) for shard in planned)
  done = {path: index for path, index in found if index is not None}
  left = [shard for shard in planned if shard.path not in done]
  if done:
    print('{:,} of {:,} shards are there already and whole'.format(len(done), len(planned)), file=stream)
  if left and os.path.exists(os.path.join(to, DESCRIPTION)):
    os.remove(os.path.join(to, DESCRIPTION))
  done.update(_write_shards(left, bad_records, processes or count_cores(), stream))

  description = dict(
      format=DESCRIPTION_FORMAT, converted_from=kind, num_classes=sources.num_classes, first_label=0,
      classes=sources.classes, image_size=sources.image_size, channels=sources.channels,
      shards={os.path.basename(shard.path): dict(records=len(done[shard.path].lengths), **{
          fact: done[shard.path].facts[fact] for fact in ('bytes', 'crc32')}) for shard in planned})
  write_whole(os.path.join(to, DESCRIPTION), (json.dumps(description, indent=1) + '\n').encode())
  if bad_records.summary():
    print(bad_records.summary(), file=stream)
  return description


def _read_sources(kind: str, data_dir: str, bad_records: BadRecords) -> Sources:
  if kind not in SOURCES:
    raise UsageError('from={}: choose one of {}.'.format(kind, ', '.join(SOURCES)))
  if kind == 'images':
    classes, files_of_splits = find_image_files(data_dir)
    return Sources([_split_of_files(name, files) for name, files in files_of_splits], classes, max(len(classes), 2),
                   None, 3)
  if kind == 'idx':
    data_set = load_idx_folder(data_dir)
  elif kind == 'npy':
    data_set = load_npy(data_dir, bad_records=bad_records)
  else:
    data_set = load_cifar(kind, data_dir, bad_records=bad_records)
  height, width, channels = data_set.image_shape
  if channels not in (1, 3):
    raise UsageError('{}: images of {} channels cannot become PNGs, which have 1 or 3.'.format(data_dir, channels))
  splits = [_split_of_arrays(name, data_dir, examples)
            for name, examples in (('train', data_set.train), ('validation', data_set.validation))]
  return Sources(splits, [], data_set.num_classes, height if height == width else None, channels)


def _split_of_files(name, files) -> Split:
  def encode(number):
    [result] = files.read([number])
    if isinstance(result, BadRecordError):
      raise result
    content = result[0]
    try:
      read_image_header(content)
      check_is_whole(content)
    except ValueError as error:
      raise BadRecordError(str(error)) from None
    return content

  facts = hashlib.sha256()
  num_bytes = 0
  for path, label in zip(files.paths, files.labels.tolist()):
    status = os.stat(path)
    facts.update('{}\0{}\0{}\0{}\n'.format(path, label, status.st_size, status.st_mtime_ns).encode(
        errors='surrogateescape'))
    num_bytes += status.st_size
  return Split(name, files.labels, encode, lambda number: (files.paths[number], 0), facts.hexdigest(), num_bytes)


def _split_of_arrays(name, data_dir, examples) -> Split:
  images, labels = examples.arrays[:2]
  numbers = examples.arrays[2] if len(examples.arrays) > 2 else np.arange(len(labels))
  if images.dtype != np.uint8:
    raise UsageError('{}: images of dtype {} cannot become PNGs without a loss; --data=npy trains from them as they '
                     'are.'.format(data_dir, images.dtype))
  facts = hashlib.sha256('{}{}'.format(images.shape, numbers.shape).encode())
  for begin in range(0, len(images), 1024):
    facts.update(images[begin:begin + 1024].tobytes())
  facts.update(labels.tobytes() + numbers.tobytes())
  return Split(name, labels[numbers], lambda number: encode_png(images[numbers[number]]),
               lambda number: (os.path.join(data_dir, name), int(numbers[number])), facts.hexdigest(), images.nbytes)


def _plan_shards(sources: Sources, to: str, num_shards: Optional[int]) -> List[Shard]:
  if num_shards is not None and num_shards < 1:
    raise UsageError('shards={}: at least 1 is needed.'.format(num_shards))
  planned = []
  for split in sources.splits:
    count = num_shards or -(-split.num_bytes // _SHARD_BYTES) or 1
    if num_shards and split.name != 'train':
      count = round(num_shards * len(split.labels) / len(sources.splits[0].labels))
    count = max(min(count, len(split.labels)), 1)
    # RandomState, whose stream numpy keeps the same through all its versions. Files sorted by class would be bad for
    # whoever reads them in order.
    order = np.random.RandomState(_SEED).permutation(len(split.labels))
    for number in range(count):
      name = '{}-{:05d}-of-{:05d}'.format(split.name, number, count)
      source = ' '.join([_VERSION, split.source, name])
      planned.append(Shard(os.path.join(to, name), split, order[number::count], source))
  return planned


def _refuse_strangers(to, planned):
  names = {os.path.basename(shard.path) for shard in planned}
  strangers = sorted(name for name in os.listdir(to)
                     if re.match(r'(train|validation)-\d{5}-of-\d{5}\Z', name) and name not in names)
  if strangers:
    raise UsageError("to='{}' holds shards of another conversion, as {}, and this one makes {} files: choose an empty "
                     'folder.'.format(to, strangers[0], len(names)))


def _remove_leftovers(to):
  for name in os.listdir(to):
    if re.match(r'\.(train|validation)-\d{5}-of-\d{5}\..*\.tmp\Z', name):
      os.remove(os.path.join(to, name))


def _find_finished(shard: Shard, on_bad_record: str) -> Optional[FileIndex]:
  """Returns the index of a shard that is there, whole, and made from the same sources; else None."""
  if not os.path.exists(shard.path):
    return None
  index = load_index(shard.path)
  if index.facts.get('source') != shard.source or (on_bad_record == 'fail' and index.facts['skipped']):
    return None
  return index if _checksum(shard.path) == index.facts['crc32'] else None


def _checksum(path):
  checksum = 0
  with open(path, 'rb') as file:
    for block in iter(lambda: file.read(1 << 20), b''):
      checksum = zlib.crc32(block, checksum)
  return checksum


def _write_shards(left: Sequence[Shard], bad_records: BadRecords, num_processes: int, stream: Any
                  ) -> Dict[str, FileIndex]:
  """Writes shards in several processes; returns their indexes by path."""
  if not left:
    return {}
  # No TensorFlow here, so that a fork is safe, and what a split holds need not be copied.
  context = multiprocessing.get_context('fork')
  num_processes = min(num_processes, len(left))
  workers: List[Any] = []
  readers: List[Any] = []
  for number in range(num_processes):
    reader, writer = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(left[number::num_processes], writer, os.getpid()), daemon=True)
    worker.start()
    writer.close()  # The worker's is the only one left, so that its end is the pipe's.
    workers.append(worker)
    readers.append(reader)
  indexes: Dict[str, FileIndex] = {}
  total = sum(len(shard.numbers) for shard in left)
  started, shown, images = time.monotonic(), 0.0, 0
  try:
    while len(indexes) < len(left):
      ready: Any
      for ready in multiprocessing.connection.wait(readers):
        kind, value = ready.recv()
        if kind == 'index':
          indexes[value.path] = value
        elif kind == 'bad':
          bad_records.report(value[0], 0, value[2], record=value[1])
        elif kind == 'error':
          raise UsageError(value)
        elif kind == 'end':
          readers.remove(ready)
        else:
          images += value
      now = time.monotonic() - started
      if now - shown > _SECONDS_BETWEEN_LINES or len(indexes) == len(left):
        shown = now
        print('{:,} of {:,} images, {:,} of {:,} shards, {:,.0f} images/s, {:.0f} s left'.format(
            images, total, len(indexes), len(left), images / now, now * (total - images) / max(images, 1)),
            file=stream, flush=True)
  except EOFError:
    raise UsageError('{} of {} shards were not written: a process that wrote some of them ended. Start again: what is '
                     'whole is kept.'.format(len(left) - len(indexes), len(left))) from None
  finally:
    for worker in workers:
      worker.terminate()
      worker.join()
  return indexes


def _work(shards: Sequence[Shard], writer: Any, parent: int) -> None:
  """What a process does: writes its shards, one after another, until its parent is gone."""
  def send(kind, value=None):
    writer.send((kind, value))

  try:
    for shard in shards:
      send('index', _write_shard(shard, send, parent))
    send('end')
  except BrokenPipeError:  # The parent is gone.
    pass
  except (OSError, UsageError) as error:
    send('error', str(error))
  except KeyboardInterrupt:  # Ctrl-C reaches all processes; the parent tells of it.
    pass


def _write_shard(shard: Shard, send: Any, parent: int) -> FileIndex:
  """Writes a shard under another name, and renames it once all of it is on disk."""
  folder, name = os.path.split(shard.path)
  temporary = os.path.join(folder, '.{}.{}.tmp'.format(name, os.getpid()))
  lengths: List[int] = []
  unreported = 0
  with open(temporary, 'wb') as file:
    for number in shard.numbers.tolist():
      if os.getppid() != parent:
        raise BrokenPipeError
      try:
        image = shard.split.encode(number)
      except BadRecordError as error:
        send('bad', shard.split.place(number) + (str(error),))
        continue
      payload = encode_labelled(image, int(shard.split.labels[number]))
      write_record(file, payload)
      lengths.append(len(payload))
      unreported += 1
      if unreported == 100:
        send('images', unreported)
        unreported = 0
    file.flush()
    os.fsync(file.fileno())
    size = file.tell()
  facts = dict(source=shard.source, skipped=len(shard.numbers) - len(lengths), bytes=size, crc32=_checksum(temporary))
  os.replace(temporary, shard.path)
  index = FileIndex(shard.path, np.array(lengths, np.int64), None, facts)
  keep_index(index)
  send('images', unreported)
  return index


def main(arguments: Optional[List[str]] = None) -> int:
  """Converts from the command line; returns the exit code."""
  parser = argparse.ArgumentParser(
      prog='python -m data.convert', description='Turns images, idx files, CIFAR or arrays into sharded TFRecords. '
      'Started again after it was killed, it goes on where it was.')
  parser.add_argument('--from', dest='kind', required=True, choices=SOURCES, help='what to convert')
  parser.add_argument('--data_dir', required=True, help='folder of it')
  parser.add_argument('--to', required=True, help='folder to write the shards to')
  parser.add_argument('--shards', type=int, help='files of the training split; default: of 64 MB each')
  parser.add_argument('--processes', type=int, help='that write at a time; default: one on each core')
  parser.add_argument('--on_bad_record', default='fail', choices=POLICIES, help='damaged images')
  flags = parser.parse_args(arguments)
  try:
    description = convert(flags.kind, flags.data_dir, flags.to, shards=flags.shards, processes=flags.processes,
                          on_bad_record=flags.on_bad_record)
  except UsageError as error:
    print('error: {}'.format(error), file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('\ninterrupted: what is whole is kept, and the same command goes on', file=sys.stderr)
    return 130
  records = [shard['records'] for shard in description['shards'].values()]
  print('done: {:,} images of {:,} classes in {:,} files; train with --data=tfrecord --data_dir={}'.format(
      sum(records), description['num_classes'], len(records), flags.to))
  return 0


if __name__ == '__main__':
  sys.exit(main())
