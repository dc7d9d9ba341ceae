"""A TFRecord file is read by index, and damage costs what it must and no more."""

import gzip
import io
import os
import struct

import pytest

import towers.data.formats.tfrecord
from tests.data.pictures import damage
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError, BadRecords
from towers.data.formats.tfrecord import Records, find_masked_crc, load_index, write_record
from towers.data.records import check_damage
from towers.tensorflow_v1 import tf

PAYLOADS = [b'first', b'', b'x' * 1000, b'fourth', bytes(range(256)) * 300]
OFFSETS = [0, 21, 37, 1053, 1075]


def write(path, payloads=PAYLOADS):
  with open(str(path), 'wb') as file:
    for payload in payloads:
      write_record(file, payload)
  return path


def read_all(path):
  """Returns for each record its payload, or None where it is damaged."""
  records = Records([load_index(path)])
  return [None if isinstance(payload, BadRecordError) else payload
          for payload in records.read(range(len(records)))]


def test_files_are_tensorflows_both_ways(tmp_path):
  with tf.io.TFRecordWriter(str(tmp_path / 'theirs')) as writer:
    for payload in PAYLOADS:
      writer.write(payload)
  assert write(tmp_path / 'ours').read_bytes() == (tmp_path / 'theirs').read_bytes()
  assert list(tf.io.tf_record_iterator(str(tmp_path / 'ours'))) == PAYLOADS
  index = load_index(tmp_path / 'theirs')
  assert index.offsets.tolist() == OFFSETS and index.lengths.tolist() == list(map(len, PAYLOADS))
  assert index.damage is None and read_all(tmp_path / 'theirs') == PAYLOADS


def test_records_of_several_files_are_numbered_through(tmp_path, monkeypatch):
  monkeypatch.setattr(towers.data.formats.tfrecord, '_MOST_OPEN_FILES',
                      2)  # Some files stay open, others don't.
  parts = [PAYLOADS[:2], [], PAYLOADS[2:3], PAYLOADS[3:]]
  paths = [write(tmp_path / str(number), part) for number, part in enumerate(parts)]
  records = Records([load_index(path) for path in paths])
  assert len(records) == 5
  assert records.read([4, 0, 2, 2, 3, 1]) == [PAYLOADS[number] for number in (4, 0, 2, 2, 3, 1)]
  assert records.place(1) == (str(paths[0]), 21, 1)
  assert records.place(2) == (str(paths[2]), 0, 0)
  assert records.place(4) == (str(paths[3]), 22, 1)


@pytest.mark.parametrize('record', [0, 2, 4])
def test_a_damaged_payload_loses_one_record_of_five(tmp_path, record):
  path = write(tmp_path / 'file')
  for offset in (OFFSETS[record] + 12,
                 OFFSETS[record] + 12 + len(PAYLOADS[record])):  # Payload, and its checksum.
    damage(path, offset)
    assert read_all(path) == [*PAYLOADS[:record], None, *PAYLOADS[record + 1:]]
    damage(path, offset)


@pytest.mark.parametrize('record', [0, 2, 4])
@pytest.mark.parametrize('byte', [0, 5, 7, 8, 11])
def test_a_damaged_length_loses_the_rest_of_the_file_and_says_so(tmp_path, record, byte):
  path = write(tmp_path / 'file')
  damage(path, OFFSETS[record] + byte, 0x04)
  index = load_index(path)
  assert read_all(path) == PAYLOADS[:record]
  assert index.damage[:3] == (record, OFFSETS[record], os.path.getsize(str(path)) - OFFSETS[record])
  with pytest.raises(UsageError) as error:
    check_damage(index, BadRecords('fail'))
  for word in (str(path), f'record {record}', f'byte {OFFSETS[record]}', 'on_bad_record=skip',
      'the rest'):
    assert word in str(error.value)
  log = io.StringIO()
  check_damage(index, BadRecords('skip', log))
  assert str(path) in log.getvalue() and 'rest of the file' in log.getvalue()


@pytest.mark.parametrize('size', [1, 11, 12, 20, 22, 40, 1060, 1074, 1080, 77000])
def test_a_truncated_file_gives_its_whole_records(tmp_path, size):
  path = write(tmp_path / 'file')
  path.write_bytes(path.read_bytes()[:size])
  ends = OFFSETS[1:] + [10**9]
  whole = [payload for payload, end in zip(PAYLOADS, ends) if end <= size]
  assert read_all(path) == whole
  assert load_index(path).damage.reason.startswith('truncated')


def test_offsets_beyond_4_gb(tmp_path):
  path = tmp_path / 'file'
  header = struct.pack('<Q', 5 << 30)
  with open(str(path), 'wb') as file:
    file.write(header + struct.pack('<I', find_masked_crc(header)))
    file.seek((5 << 30) + 16)  # A hole, which takes no room on disk.
    write_record(file, b'far away')
  records = Records([load_index(path)])
  assert records.place(1) == (str(path), (5 << 30) + 16, 1) and records.read([1]) == [b'far away']


def test_an_empty_file_is_reported(tmp_path):
  (tmp_path / 'file').write_bytes(b'')
  with pytest.raises(UsageError, match='file.*empty'):
    check_damage(load_index(tmp_path / 'file'), BadRecords('fail'))


def test_compressed_files_are_refused_with_the_reason(tmp_path):
  (tmp_path / 'file').write_bytes(gzip.compress(write(tmp_path / 'plain').read_bytes()))
  with pytest.raises(UsageError, match='decompress'):
    load_index(tmp_path / 'file')
  with pytest.raises(UsageError, match='cannot be read'):
    load_index(tmp_path / 'none')


def test_an_index_is_kept_and_made_anew_when_the_file_changed(tmp_path, monkeypatch, capsys):
  path = write(tmp_path / 'file')
  first = load_index(path)
  kept = tmp_path / '.index' / 'file'
  assert kept.exists()
  monkeypatch.setattr(towers.data.formats.tfrecord, 'scan_tfrecord', lambda path: pytest.fail(
      'scanned again'))
  assert load_index(path).lengths.tolist() == first.lengths.tolist()
  monkeypatch.undo()
  for broken in (b'', b'{}\n', kept.read_bytes()[:-8], kept.read_bytes()[:-1] + b'\x01',
      b'\xff\xfe\n', b'[1]\nabc',
                 kept.read_bytes().replace(b'"crc32": ', b'"crc32": 1'),
                 kept.read_bytes().replace(b'"damage": null', b'"damage": true')):
    kept.write_bytes(broken)
    assert load_index(path).lengths.tolist() == first.lengths.tolist()
    assert 'cannot be read' in capsys.readouterr().err and kept.read_bytes() != broken
  write(path, PAYLOADS[:2])
  assert len(load_index(path).lengths) == 2


def test_where_the_folder_cannot_be_written_the_index_goes_to_the_users_cache(
    tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  (tmp_path / 'set').mkdir()
  (tmp_path / 'set' / '.index').write_bytes(b'in the way')
  load_index(write(tmp_path / 'set' / 'file'))
  [kept] = (tmp_path / 'cache').glob('**/file')
  assert kept.is_file()
  monkeypatch.setattr(towers.data.formats.tfrecord, 'scan_tfrecord', lambda path: pytest.fail(
      'scanned again'))
  assert len(load_index(tmp_path / 'set' / 'file').lengths) == 5


def test_a_file_that_changes_while_it_is_read_gives_no_wrong_record(tmp_path):
  path = write(tmp_path / 'file')
  records = Records([load_index(path)])
  assert records.read([0]) == [b'first']
  content = path.read_bytes()
  for other in (content[:1060], b'\x01' + content[1:], content[1075:] + content[:1075]):
    with open(str(path), 'r+b') as file:
      file.truncate()
      file.write(other)
    for payload, expected in zip(records.read(range(5)), PAYLOADS):
      assert isinstance(payload, BadRecordError) or payload == expected
  path.unlink()
  records = Records([load_index(write(tmp_path / 'second'))])
  (tmp_path / 'second').unlink()
  assert all(isinstance(payload, BadRecordError) for payload in records.read([0, 1]))
