"""Readers against damaged files: no crash, no hang, and never a wrong example.

Damage is drawn from fixed seeds: bytes flipped, cut off, doubled, zeroed, inserted, taken from
elsewhere in the file.
"""

import io
import random

import numpy as np
import pytest

from tests.data.pictures import List, jpegs, picture
from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecordError
from towers.data.formats.tfrecord import Records, scan_tfrecord, write_record
from towers_data.labelled_example import encode_example
from towers_data.png import encode_png

# How many damaged inputs.
COUNTS = {'index': 4000, 'decode': 2000}


def mutate(content, source):
  """Returns other bytes: one to four damages of the kinds that disks, downloads and hands do."""
  content = bytearray(content)
  for _ in range(source.choice([1, 1, 1, 2, 4])):
    if not content:
      break
    position = source.randrange(len(content))
    # Headers are where it hurts.
    position = source.choice([position, position % 16, position % 64])
    kind = source.randrange(7)
    if kind == 0:
      content[position % len(content)] ^= 1 << source.randrange(8)
    elif kind == 1:
      del content[position:]
    elif kind == 2:
      content[position:position + source.randrange(1, 9)] = bytes(
          source.getrandbits(8) for _ in range(8))
    elif kind == 3:
      content[position:position] = bytes(
          source.getrandbits(8) for _ in range(source.randrange(1, 20)))
    elif kind == 4:
      size = source.randrange(1, 200)
      content[position:position + size] = bytes(min(size, len(content) - position))
    elif kind == 5:
      begin = source.randrange(len(content))
      content[position:position + 12] = content[begin:begin + 12]
    else:
      content += content[position:position + source.randrange(1, 5000)]
  return bytes(content)


@pytest.mark.nightly
def test_the_index_and_the_records_it_finds(tmp_path):
  payloads = [b'%d ' % number * (number * 40 + 1) for number in range(6)]
  buffer = io.BytesIO()
  for payload in payloads:
    write_record(buffer, payload)
  path = tmp_path / 'file'
  found, count = 0, COUNTS['index']
  for seed in range(count):
    path.write_bytes(mutate(buffer.getvalue(), random.Random(seed)))
    try:
      index = scan_tfrecord(str(path))
    except UsageError:  # It looks compressed.
      continue
    records = Records([index])
    assert len(records) * 16 <= path.stat().st_size
    for number, payload in enumerate(records.read(range(len(records)))):
      # A record that reads well is one that was written: only whole ones may have been doubled or
      # moved.
      assert isinstance(payload, BadRecordError) or payload in payloads, (seed, number)
      found += not isinstance(payload, BadRecordError)
  assert found > count  # And damage elsewhere loses none of them.


@pytest.mark.nightly
def test_decoding_through_tensorflow():
  """Payloads that were damaged before their checksum was made are lost, the others untouched."""
  count = COUNTS['decode']
  originals = list(jpegs(3)) + [encode_png(picture(3))]
  originals += list(jpegs(1, 100, 90))
  contents, untouched = [], {}
  for seed in range(count):
    source = random.Random(seed)
    number = seed % len(originals)
    example = {'image/encoded': originals[number], 'image/class/label': seed % 900 + 1}
    if seed % 10 == 0:
      untouched[seed] = number
      contents.append(encode_example(example))
    elif seed % 10 < 3:
      contents.append(mutate(encode_example(example), source))
    elif seed % 10 == 3:
      contents.append(bytes(source.getrandbits(8) for _ in range(source.randrange(300))))
    else:
      contents.append(
          encode_example(dict(example, **{'image/encoded': mutate(originals[number], source)})))
  given = List([encode_example({'image/encoded': original, 'image/class/label': 1})
                for original in originals])
  expected = [next(iter(step.values())) for step in given.take(batch_size=1)]

  given = List(contents)
  steps = given.take(batch_size=1)
  assert len(steps) == count
  for seed, number in untouched.items():
    [(label, image)] = steps[seed].items()
    assert label == seed % 900
    np.testing.assert_array_equal(image, expected[number])
  decoded = sum(map(bool, steps))
  assert len(untouched) < decoded < count and len(given.bad_records._places) == count - decoded
