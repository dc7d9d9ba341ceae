"""Shards: files of encoded images, written by several processes, each whole or not at all."""

import multiprocessing
import multiprocessing.connection
import os
import re
import time
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.files import open_regular, writing
from towers.base.output import write_line
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.formats.tfrecord import FileIndex, keep_index, load_index, write_record
from towers_data.labelled_example import encode_labelled
from towers_data.sources import Sources, Split

_SEED = 20190603
_SHARD_BYTES = 64 << 20
_SECONDS_BETWEEN_LINES = 1.0
# A shard of another version is made anew.
_VERSION = 'towers conversion 1'


class Shard(NamedTuple):
  """A file to write."""
  path: str
  split: Split
  indices: np.ndarray  # Of its images in the split, in order.
  source: str  # Names all that the bytes of the file depend on.


def plan_shards(sources: Sources, to: str, num_shards: Optional[int]) -> List[Shard]:
  """Returns the shards of both splits, their images shuffled once, always in the same way.

  Training gets `num_shards`, of which validation gets its share; None for files of 64 MB.

  Raises:
    UsageError: less than one shard.
  """
  if num_shards is not None and num_shards < 1:
    raise UsageError(f'shards={num_shards}: at least 1 is needed.')
  planned = []
  for split in sources.splits:
    count = num_shards or -(-split.num_bytes // _SHARD_BYTES) or 1
    if num_shards and split.name != 'train':
      count = round(num_shards * len(split.labels) / len(sources.splits[0].labels))
    count = max(min(count, len(split.labels)), 1)
    # Shuffled, since readers in file order should not meet class after class. RandomState's stream
    # is the same in all versions of numpy.
    order = np.random.RandomState(_SEED).permutation(len(split.labels))
    for index in range(count):
      name = f'{split.name}-{index:05d}-of-{count:05d}'
      source = ' '.join([_VERSION, split.source, name])
      planned.append(Shard(os.path.join(to, name), split, order[index::count], source))
  return planned


def refuse_strangers(to: str, planned: Sequence[Shard]) -> None:
  """Raises a UsageError if a folder holds shards that are not planned."""
  names = {os.path.basename(shard.path) for shard in planned}
  strangers = sorted(
      name for name in os.listdir(to)
      if re.match(r'(train|validation)-\d{5}-of-\d{5}\Z', name) and name not in names)
  if strangers:
    raise UsageError(f"to='{to}' holds shards of another conversion, as {strangers[0]}, and this "
                     f"one makes {len(names)} files: choose an empty folder.")


def find_finished(shard: Shard, on_bad_record: str) -> Optional[FileIndex]:
  """Returns the index of a shard that is whole and made from the same sources, or else None."""
  if not os.path.exists(shard.path):
    return None
  index = load_index(shard.path)
  if index.facts.get('source') != shard.source:
    return None
  if on_bad_record == 'fail' and index.facts['skipped']:
    return None
  return index if _checksum(shard.path) == index.facts['crc32'] else None


def _checksum(path):
  checksum = 0
  with open_regular(path) as file:
    for block in iter(lambda: file.read(1 << 20), b''):
      checksum = zlib.crc32(block, checksum)
  return checksum


def write_shards(left: Sequence[Shard], bad_records: BadRecords, num_processes: int, stream: Any
                 ) -> Dict[str, FileIndex]:
  """Writes shards in several processes, and shows the progress; returns indexes by path.

  Raises:
    UsageError: an image is damaged under the policy 'fail', a file cannot be written, or a process
      has ended.
  """
  if not left:
    return {}
  indexes: Dict[str, FileIndex] = {}
  progress = _Progress(left, stream)
  workers, readers = _start_workers(left, min(num_processes, len(left)))
  try:
    while len(indexes) < len(left):
      ready: Any
      for ready in multiprocessing.connection.wait(readers):
        kind, value = ready.recv()
        if kind == 'images':
          progress.num_images += value
        elif kind == 'index':
          indexes[value.path] = value
        elif kind == 'bad':
          bad_records.report(*value)
        elif kind == 'error':
          raise UsageError(value)
        else:
          readers.remove(ready)
      progress.show(len(indexes))
  except EOFError:
    raise UsageError(
        f'{len(left) - len(indexes)} of {len(left)} shards were not written: a process that wrote '
        'some of them ended. Start again: whole shards are kept.') from None
  finally:
    for worker in workers:
      worker.terminate()
      worker.join()
  return indexes


def _start_workers(shards, num_processes) -> Tuple[List[Any], List[Any]]:
  """Returns processes that write every n-th shard each, and the pipes that they report to."""
  # No TensorFlow here, so that a fork is safe, and the images of a split need not be copied.
  context = multiprocessing.get_context('fork')
  workers, readers = [], []
  for first in range(num_processes):
    reader, writer = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(shards[first::num_processes], writer, os.getpid()),
                             daemon=True)
    worker.start()
    writer.close()  # The worker's is the only one left, so that its end is the pipe's.
    workers.append(worker)
    readers.append(reader)
  return workers, readers


class _Progress:
  """A line about every second: images, shards, speed and the time left."""

  def __init__(self, shards, stream):
    self.num_images = 0
    self._total = sum(len(shard.indices) for shard in shards)
    self._num_shards = len(shards)
    self._stream = stream
    self._started, self._shown = time.monotonic(), 0.0

  def show(self, num_shards):
    """Prints the line if it is time, or if `num_shards` are all."""
    now = time.monotonic() - self._started
    if now - self._shown > _SECONDS_BETWEEN_LINES or num_shards == self._num_shards:
      self._shown = now
      left = now * (self._total - self.num_images) / max(self.num_images, 1)
      write_line(f'{self.num_images:,} of {self._total:,} images, '
                 f'{num_shards:,} of {self._num_shards:,} shards, '
                 f'{self.num_images / now:,.0f} images/s, {left:.0f} s left', self._stream)


def _work(shards: Sequence[Shard], writer: Any, parent: int) -> None:
  """Writes a process's shards, one after another, until its parent is gone."""
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
  except KeyboardInterrupt:  # Ctrl-C reaches all processes; the parent reports it.
    pass


def _write_shard(shard: Shard, send: Any, parent: int) -> FileIndex:
  """Writes a shard, and keeps its index once all of it is on disk."""
  lengths: List[int] = []
  unreported = 0
  with writing(shard.path) as file:
    for index in shard.indices.tolist():
      if os.getppid() != parent:
        raise BrokenPipeError
      try:
        image = shard.split.encode(index)
      except BadRecordError as error:
        send('bad', (*shard.split.place(index), str(error)))
        continue
      payload = encode_labelled(image, int(shard.split.labels[index]))
      write_record(file, payload)
      lengths.append(len(payload))
      unreported += 1
      if unreported == 100:
        send('images', unreported)
        unreported = 0
  facts = dict(source=shard.source, skipped=len(shard.indices) - len(lengths),
               bytes=os.path.getsize(shard.path), crc32=_checksum(shard.path))
  file_index = FileIndex(shard.path, np.array(lengths, np.int64), None, facts)
  keep_index(file_index)
  send('images', unreported)
  return file_index
