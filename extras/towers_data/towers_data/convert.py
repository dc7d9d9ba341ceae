"""Convert: images, idx files, CIFAR or arrays become sharded TFRecords of encoded images.

  python -m towers convert --from=images --data_dir=photos --to=photos.tfrecords

  sources ──► shuffled once ──► cut in shards ──► one process per core
                                                  ├─ encode, write `.writing-…`, rename
                                                  └─ and keep its index: lengths, checksum, what it
                                                     was made from
  data_set.json last: classes, sizes, records and checksum of every shard

A shard gets its name once it is whole, and data_set.json is written once all are: whenever a
conversion is killed, nothing incomplete looks whole. Started again, it keeps the shards whose index
and checksum hold and that come from the same sources, and makes the others. The same sources give
the same bytes, whatever the number of processes.

JPEGs and PNGs are copied unchanged; arrays become PNGs, which lose nothing.
"""

import argparse
import os
import sys
from typing import Any, Dict, Optional, Sequence

from towers.base.cores import count_cores
from towers.base.files import sweep
from towers.base.json_files import write_sealed
from towers.base.output import write_line
from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError
from towers.data.bad_records import POLICIES, BadRecords
from towers.data.formats.tfrecord import FileIndex
from towers_data.shards import find_finished, plan_shards, refuse_strangers, write_shards
from towers_data.sources import SOURCES, Sources, read_sources
from towers_data.tfrecord_folder import DESCRIPTION, DESCRIPTION_FORMAT


def convert(kind: str, data_dir: str, to: str, *, shards: Optional[int] = None,
            processes: Optional[int] = None, on_bad_record: str = 'fail',
            stream: Any = None) -> Dict[str, Any]:
  """Converts both splits as the flags of `main` say; returns what data_set.json says.

  Progress goes to `stream`, `sys.stderr` if None.

  Raises:
    UsageError: sources that are missing or damaged, a folder that holds another conversion, or one
      on another file system.
  """
  check_local_path('data_dir', data_dir)
  check_local_path('to', to)
  stream = stream or sys.stderr
  bad_records = BadRecords(on_bad_record, stream)
  sources = read_sources(kind, data_dir, bad_records)
  try:
    os.makedirs(to, exist_ok=True)
  except OSError as error:
    raise UsageError(f"to='{to}' cannot be made: {error.strerror}; choose a folder that can be "
                     "written.") from None

  planned = plan_shards(sources, to, shards)
  refuse_strangers(to, planned)
  sweep(to)
  found = ((shard.path, find_finished(shard, on_bad_record)) for shard in planned)
  done = {path: index for path, index in found if index is not None}
  left = [shard for shard in planned if shard.path not in done]
  if done:
    write_line(f'{len(done):,} of {len(planned):,} shards are there already and whole', stream)
  if left and os.path.exists(os.path.join(to, DESCRIPTION)):
    os.remove(os.path.join(to, DESCRIPTION))
  done.update(write_shards(left, bad_records, processes or count_cores(), stream))

  description = _describe(kind, sources, [done[shard.path] for shard in planned])
  write_sealed(os.path.join(to, DESCRIPTION), description, indent=1)
  if bad_records.summary():
    write_line(bad_records.summary(), stream)
  return description


def _describe(kind: str, sources: Sources, indexes: Sequence[FileIndex]) -> Dict[str, Any]:
  shards = {
      os.path.basename(index.path): dict(records=len(index.lengths), bytes=index.facts['bytes'],
                                         crc32=index.facts['crc32'])
      for index in indexes
  }
  return dict(format=DESCRIPTION_FORMAT, converted_from=kind, num_classes=sources.num_classes,
              first_label=0, classes=sources.classes, image_size=sources.image_size,
              channels=sources.channels, shards=shards)


def main(arguments: Sequence[str]) -> int:
  """Converts from the command line; returns the exit code."""
  parser = argparse.ArgumentParser(
      prog='python -m towers convert',
      description='Turns images, idx files, CIFAR or arrays into sharded TFRecords. '
      'Started again after it was killed, it goes on where it was.')
  parser.add_argument('--from', dest='kind', required=True, choices=SOURCES, help='what to convert')
  parser.add_argument('--data_dir', required=True, help='folder of the sources')
  parser.add_argument('--to', required=True, help='folder of the shards')
  parser.add_argument('--shards', type=int,
                      help='number of files of the training split, of which validation gets its '
                      'share; default: files of 64 MB')
  parser.add_argument('--processes', type=int,
                      help='number of processes that write; default: one on each core')
  parser.add_argument('--on_bad_record', default='fail', choices=POLICIES,
                      help='for damaged images: stop, or leave them out')
  flags = parser.parse_args(arguments)
  try:
    description = convert(flags.kind, flags.data_dir, flags.to, shards=flags.shards,
                          processes=flags.processes, on_bad_record=flags.on_bad_record)
  except KeyboardInterrupt:
    write_line('\ninterrupted: whole shards are kept, and the same command goes on', sys.stderr)
    return 130
  records = [shard['records'] for shard in description['shards'].values()]
  write_line(f"done: {sum(records):,} images of {description['num_classes']:,} classes in "
        f"{len(records):,} files; train with --data=tfrecord --data_dir={flags.to}")
  return 0
