"""Shards: files of encoded images that `towers.data.convert` writes, by several processes, each
whole or not at all.
"""

import multiprocessing
import multiprocessing.connection
import os
import re
import time
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.convert.sources import Sources, Split
from towers.data.formats.labelled_example import encode_labelled
from towers.data.formats.tfrecord import FileIndex, keep_index, load_index, write_record

_SEED = 20190603
_SHARD_BYTES = 64 << 20
_SECONDS_BETWEEN_LINES = 1.0
# Of the arguments of one shard; part of what its index must say for it to be kept.
_VERSION = 'towers conversion 1'


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


def plan_shards(sources: Sources, to: str, num_shards: Optional[int]) -> List[Shard]:
  """Returns the shards of both splits, their images shuffled once, always in the same way.

  Args:
    sources: to convert.
    to: the folder of the shards.
    num_shards: of the training split, and its share of validation; None for as many as give 64 MB
      each.

  Raises:
    UsageError: less than one.
  """
  if num_shards is not None and num_shards < 1:
    raise UsageError(f'shards={num_shards}: at least 1 is needed.')
  planned = []
  for split in sources.splits:
    count = num_shards or -(-split.num_bytes // _SHARD_BYTES) or 1
    if num_shards and split.name != 'train':
      count = round(num_shards * len(split.labels) / len(sources.splits[0].labels))
    count = max(min(count, len(split.labels)), 1)
    # RandomState, whose stream numpy keeps the same through all its versions. Files sorted by class
    # would be bad for whoever reads them in order.
    order = np.random.RandomState(_SEED).permutation(len(split.labels))
    for number in range(count):
      name = f'{split.name}-{number:05d}-of-{count:05d}'
      source = ' '.join([_VERSION, split.source, name])
      planned.append(Shard(os.path.join(to, name), split, order[number::count], source))
  return planned


def refuse_strangers(to: str, planned: Sequence[Shard]) -> None:
  """Raises UsageError for a folder that holds shards which are not among those that are planned."""
  names = {os.path.basename(shard.path) for shard in planned}
  strangers = sorted(
      name for name in os.listdir(to)
      if re.match(r'(train|validation)-\d{5}-of-\d{5}\Z', name) and name not in names)
  if strangers:
    raise UsageError(f"to='{to}' holds shards of another conversion, as {strangers[0]}, and this "
                     f"one makes {len(names)} files: choose an empty folder.")


def remove_leftovers(to: str) -> None:
  """Removes what a conversion that was killed was about to write."""
  for name in os.listdir(to):
    if re.match(r'\.(train|validation)-\d{5}-of-\d{5}\..*\.tmp\Z', name):
      os.remove(os.path.join(to, name))


def find_finished(shard: Shard, on_bad_record: str) -> Optional[FileIndex]:
  """Returns the index of a shard that is there, whole, and made from the same sources; else None.
  """
  if not os.path.exists(shard.path):
    return None
  index = load_index(shard.path)
  if index.facts.get('source') != shard.source or (on_bad_record == 'fail' and index.facts[
      'skipped']):
    return None
  return index if _checksum(shard.path) == index.facts['crc32'] else None


def _checksum(path):
  checksum = 0
  with open(path, 'rb') as file:
    for block in iter(lambda: file.read(1 << 20), b''):
      checksum = zlib.crc32(block, checksum)
  return checksum


def write_shards(left: Sequence[Shard], bad_records: BadRecords, num_processes: int, stream: Any
                 ) -> Dict[str, FileIndex]:
  """Writes shards in several processes, and tells how far they are.

  Args:
    left: to write.
    bad_records: told of damaged images.
    num_processes: that write at a time.
    stream: for progress.

  Returns:
    their indexes by path.

  Raises:
    UsageError: an image is damaged that must not be, a file cannot be written, or a process has
      ended.
  """
  if not left:
    return {}
  # No TensorFlow here, so that a fork is safe, and what a split holds need not be copied.
  context = multiprocessing.get_context('fork')
  num_processes = min(num_processes, len(left))
  workers: List[Any] = []
  readers: List[Any] = []
  for number in range(num_processes):
    reader, writer = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(left[number::num_processes], writer, os.getpid()),
                             daemon=True)
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
        print(f'{images:,} of {total:,} images, {len(indexes):,} of {len(left):,} shards, '
              f'{images / now:,.0f} images/s, {now * (total - images) / max(images, 1):.0f} s '
              'left',
            file=stream, flush=True)
  except EOFError:
    raise UsageError(
        f'{len(left) - len(indexes)} of {len(left)} shards were not written: a '
        'process that wrote some of them ended. Start again: what is whole is kept.') from None
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
  temporary = os.path.join(folder, f'.{name}.{os.getpid()}.tmp')
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
  facts = dict(source=shard.source, skipped=len(shard.numbers) - len(lengths), bytes=size,
               crc32=_checksum(temporary))
  os.replace(temporary, shard.path)
  index = FileIndex(shard.path, np.array(lengths, np.int64), None, facts)
  keep_index(index)
  send('images', unreported)
  return index
