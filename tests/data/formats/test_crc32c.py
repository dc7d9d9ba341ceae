"""The checksum is crc32c."""

import random

from towers.data.formats import crc32c

# RFC 3720, appendix B.4, and the check value of the algorithm's catalogue entry.
KNOWN = [(b'', 0), (b'123456789', 0xE3069283), (bytes(32), 0x8A9136AA), (b'\xff' * 32, 0x62A8AB43),
         (bytes(range(32)), 0x46DD794E), (bytes(range(31, -1, -1)), 0x113FDB5C)]


def bit_by_bit(content):
  register = 0xFFFFFFFF
  for byte in content:
    register ^= byte
    for _ in range(8):
      register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
  return register ^ 0xFFFFFFFF


def test_known_values():
  assert crc32c.crc32c_of([content for content, _ in KNOWN]) == [checksum for _, checksum in KNOWN]
  assert crc32c.crc32c_of([]) == []


def test_it_agrees_with_the_definition_for_every_length_alone_and_together():
  source = random.Random(0)
  buffers = [bytes(source.getrandbits(8) for _ in range(size))
             for size in list(range(70)) + [127, 128, 129, 1000, 8191, 8192, 8193, 20000]]
  expected = [bit_by_bit(buffer) for buffer in buffers]
  assert crc32c.crc32c_of(buffers) == expected
  assert [crc32c.crc32c_of([buffer])[0] for buffer in buffers] == expected


def test_the_masked_checksum_is_that_of_tensorflows_files(tmp_path):
  from tensorflow_v1 import tf
  path = str(tmp_path / 'file')
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(b'123456789')
  with open(path, 'rb') as file:
    content = file.read()
  assert int.from_bytes(content[-4:], 'little') == crc32c.mask(0xE3069283)
