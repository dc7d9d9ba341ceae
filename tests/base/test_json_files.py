"""Damage of a small file is seen, or changes nothing that it says; a schema holds."""

import json
import math

import pytest

from towers.base.json_files import read_sealed, seal, unseal, write_sealed

CONTENT = dict(steps=[1, 20, 300], loss=0.25, names={'b': 'é', 'a': None}, flag=True)
SCHEMA = dict(steps=[int], loss=float, names={str: (str, None)}, flag=bool)


@pytest.mark.parametrize('indent', [None, 1])
def test_no_changed_byte_changes_what_is_read(indent):
  text = seal(CONTENT, indent=indent).encode()
  assert unseal(text.decode(), SCHEMA) == CONTENT
  seen = 0
  for position in range(len(text)):
    for bit in range(8):
      damaged = bytearray(text)
      damaged[position] ^= 1 << bit
      try:
        assert unseal(damaged.decode('utf-8'), SCHEMA) == CONTENT
      except ValueError:
        seen += 1
  assert seen > 7 * len(text)


def test_a_file_by_hand_passes_unless_it_has_unknown_members():
  assert unseal('{"loss": 1}', dict(loss=float, steps=object)) == {'loss': 1}
  with pytest.raises(ValueError, match="unknown member 'checksun'"):
    unseal(seal(CONTENT).replace('checksum', 'checksun'), SCHEMA)


@pytest.mark.parametrize('text', [
    '', '[1]', '3', '[' * 100000, '{"a": ' * 100000, '{"checksum": 1}'])
def test_what_is_no_object_is_a_value_error(text):
  with pytest.raises(ValueError):
    unseal(text, {'a': object})


def test_numbers_that_json_lacks_and_other_layouts_keep_the_sum(tmp_path):
  content = dict(loss=math.inf, big=2 ** 70)
  write_sealed(str(tmp_path / 'file'), content)
  assert read_sealed(str(tmp_path / 'file'), dict(loss=float, big=object)) == content
  turned = json.dumps(dict(reversed(list(json.loads(seal(CONTENT)).items()))), indent=3)
  assert unseal(turned, SCHEMA) == CONTENT
