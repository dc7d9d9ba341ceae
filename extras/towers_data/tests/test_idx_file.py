"""Idx: what is written is read again, and damage leads to a UsageError or to the same array."""

import gzip
import os
import struct
import tempfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from towers.base.usage_error import UsageError
from towers_data.idx.idx_file import DTYPES, read_idx
from towers_data.idx.make_sample import write_idx

_MANY = settings(max_examples=200, deadline=None)
_ARRAYS = st.sampled_from(list(DTYPES.values())).flatmap(lambda dtype: arrays_of.arrays(
    dtype, arrays_of.array_shapes(min_dims=1, max_dims=4, max_side=6), elements=None))
# [2, 3] int16, and byte for byte what the format says.
_SMALL = np.array([[1, 2, 3], [-1, 256, 0]], np.int16)
_SMALL_BYTES = bytes.fromhex('00000b02' '00000002' '00000003' '000100020003' 'ffff01000000')


def _read(content):
  """Reads a file that holds `content`; its name says nothing."""
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'file')
    with open(path, 'wb') as file:
      file.write(content)
    return read_idx(path)


def _written(array, name):
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, name)
    write_idx(path, array)
    with open(path, 'rb') as file:
      return file.read()


def _header(code, shape):
  return struct.pack(f'>BBBB{len(shape)}I', 0, 0, code, len(shape), *shape)


def _assert_identical(got, array):
  assert got.dtype == array.dtype.newbyteorder('=') and got.shape == array.shape
  # Bytes, since a NaN does not equal itself.
  assert got.tobytes() == array.astype(got.dtype).tobytes()


@_MANY
@given(_ARRAYS, st.booleans())
def test_what_is_written_is_read_again(array, is_gzipped):
  got = _read(_written(array, 'a.gz' if is_gzipped else 'a'))
  _assert_identical(got, array)
  assert got.flags.writeable


def test_the_format_byte_for_byte():
  assert _written(_SMALL, 'a') == _SMALL_BYTES
  _assert_identical(_read(_SMALL_BYTES), _SMALL)
  for code, dtype in ((8, 'u1'), (9, 'i1'), (11, 'i2'), (12, 'i4'), (13, 'f4'), (14, 'f8')):
    array = np.array([0, 1, 77], dtype)
    _assert_identical(_read(_header(code, [3]) + array.astype('>' + dtype).tobytes()), array)


def test_gzip_is_known_by_content_and_not_by_name(tmp_path):
  for name, content in (('plain.gz', _SMALL_BYTES), ('zipped', gzip.compress(_SMALL_BYTES))):
    (tmp_path / name).write_bytes(content)
    _assert_identical(read_idx(tmp_path / name), _SMALL)


def test_gzipped_files_carry_neither_time_nor_name():
  header = _written(_SMALL, 'a.gz')[:8]
  assert header == b'\x1f\x8b\x08' + bytes(5)


@pytest.mark.nightly
@_MANY
@given(_ARRAYS, st.data())
def test_a_damaged_gzipped_file_is_refused_or_identical(array, data):
  content = bytearray(_written(array, 'a.gz'))
  position = data.draw(st.integers(0, len(content) - 1))
  damage = data.draw(st.sampled_from(['flip', 'cut', 'insert', 'append']))
  if damage == 'flip':
    content[position] ^= data.draw(st.integers(1, 255))
  elif damage == 'cut':
    del content[position:]
  elif damage == 'insert':
    content[position:position] = data.draw(st.binary(min_size=1, max_size=8))
  else:
    content += data.draw(st.binary(min_size=1, max_size=30))
  try:
    got = _read(bytes(content))
  except UsageError:
    return
  _assert_identical(got, array)


@pytest.mark.nightly
@_MANY
@given(_ARRAYS, st.data())
def test_a_plain_file_of_another_length_is_refused(array, data):
  content = _written(array, 'a')
  with pytest.raises(UsageError):
    _read(content[:data.draw(st.integers(0, len(content) - 1))])
  with pytest.raises(UsageError):
    _read(content + data.draw(st.binary(min_size=1, max_size=9)))


@pytest.mark.nightly
@_MANY
@given(_ARRAYS, st.data())
def test_a_plain_file_of_a_damaged_header_is_refused_or_holds_the_same_bytes(array, data):
  content = _written(array, 'a')
  header_bytes = 4 + 4 * array.ndim
  damaged = bytearray(content)
  damaged[data.draw(st.integers(0, header_bytes - 1))] = data.draw(st.integers(0, 255))
  assume(damaged != content)
  try:
    got = _read(bytes(damaged))
  except UsageError:
    return
  # Nothing in a plain file tells int32 from float32: but the elements are all of those that the
  # file holds.
  assert content.endswith(got.astype(got.dtype.newbyteorder('>')).tobytes())
  assert got.nbytes == len(content) - 4 - 4 * got.ndim


@_MANY
@given(st.binary(max_size=60), st.sampled_from([b'', b'\x1f\x8b', b'\x1f\x8b\x08', b'\0\0',
    b'\0\0\x08\1']))
def test_any_bytes_at_all(content, start):
  try:
    got = _read(start + content)
  except UsageError:
    return
  assert got.nbytes < len(start + content)


@pytest.mark.parametrize('content, words', [
    (b'', ['empty']),
    (gzip.compress(b''), ['empty']),
    (b'\0\0', ['00 00', 'not an idx file']),
    (b'<!DOCTYPE html>', ['not an idx file', '3c 21 44 4f', '00 00']),
    (_header(0x0A, [2]) + bytes(2), ['00 00 0a 01', '0b (int16)']),
    (_header(8, []) + bytes(1), ['00 00 08 00', '01 to 20']),
    (_header(8, [1] * 33) + bytes(1), ['00 00 08 21', '01 to 20']),
    (_header(8, [2, 2])[:9], ['truncated', '9 of 12 bytes']),
    (_header(8, [0, 28, 28]), ['[0, 28, 28]', 'no elements']),
    (_header(0x0C, [2, 3]) + bytes(23), ['truncated', 'int32', '[2, 3]', '24 bytes', 'holds 23']),
    (gzip.compress(_header(0x0C, [2, 3]) + bytes(23)), ['truncated', '24 bytes', 'holds 23']),
    (_header(8, [5]) + bytes(6), ['trailing bytes', '[5]', '5 bytes']),
    (_header(8, [2**32 - 1] * 2) + bytes(9), [str((2**32 - 1)**2), 'holds 9']),
    (gzip.compress(_SMALL_BYTES)[:-9], ['damaged', 'gzip']),
    (gzip.compress(_SMALL_BYTES)[:-8] + bytes(8), ['damaged', 'gzip']),
    (gzip.compress(_SMALL_BYTES) + b'more', ['damaged', 'gzip']),
], ids=lambda value: value[0] if isinstance(value, list) else 'file')
def test_a_message_says_what_was_found_and_expected(tmp_path, content, words):
  path = tmp_path / 'labels'
  path.write_bytes(content)
  with pytest.raises(UsageError) as error:
    read_idx(path)
  for word in [str(path), 'again'] + words:
    assert word in str(error.value)


def test_what_is_no_file(tmp_path):
  os.mkfifo(str(tmp_path / 'pipe'))
  for path, words in ((tmp_path / 'none', 'No such file'), (tmp_path, 'not a file'),
                      (tmp_path / 'pipe', 'not a file')):
    with pytest.raises(UsageError, match=f'cannot be read: .*{words}.*check the path') as error:
      read_idx(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize('shape, num_zeros, num_random', [
    ([5], 32 << 20, 0),  # 32 MB that unpack out of 32 KB, and few of them claimed
    ([60 << 20], 1 << 20, 64 << 10),  # 60 MB claimed, as much as a file of 65 KB might hold
    ([2**32 - 1, 2**32 - 1], 1 << 20, 0),  # more claimed than any machine has
])
def test_memory_grows_with_what_a_file_holds_and_not_with_what_it_claims(
    tmp_path, shape, num_zeros, num_random):
  path = tmp_path / 'bomb'
  path.write_bytes(gzip.compress(_header(8, shape) + bytes(num_zeros) + os.urandom(num_random)))
  tracemalloc.start()
  try:
    with pytest.raises(UsageError):
      read_idx(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak_bytes < 12 << 20


def test_what_idx_cannot_hold_is_not_written(tmp_path):
  for array, words in ((np.zeros([2], np.int64), 'dtype int64'), (np.zeros([2], bool),
      'dtype bool'),
                       (np.zeros([], np.uint8), 'shape'), (np.zeros([0, 2], np.uint8), 'shape')):
    with pytest.raises(UsageError, match=words):
      write_idx(tmp_path / 'file', array)
  assert not (tmp_path / 'file').exists()
