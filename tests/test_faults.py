"""Untrusted files are safe to read, and every test in the table of faults exists."""

import ast
import io
import os
import re
import struct
import tracemalloc

import numpy as np
import pytest

import towers.data.formats.idx
from tests import ROOT
from towers.base.usage_error import UsageError

FOLDERS = ('towers', 'staging', 'models', 'tensorflow_v1', 'examples', 'benchmarks')
SOURCES = [os.path.join(path, name) for folder in FOLDERS
           for path, _, names in os.walk(os.path.join(ROOT, folder))
           for name in names if name.endswith('.py')] + [os.path.join(ROOT, 'main.py')]
UNSAFE_MODULES = {'pickle', 'cPickle', 'dill', 'cloudpickle', 'shelve', 'marshal', 'yaml', 'joblib'}
UNSAFE_NAMES = {'eval', 'exec', 'compile', 'os.system', 'np.fromregex'}


def test_nothing_unpickles_or_evaluates():
  assert len(SOURCES) > 50
  for path in SOURCES:
    with open(path, encoding='utf-8') as file:
      tree = ast.parse(file.read())
    for node in ast.walk(tree):
      if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] + [getattr(node, 'module', None) or '']
        assert not {name.split('.')[0] for name in names} & UNSAFE_MODULES, path
      if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
          name = function.id
        else:
          owner = getattr(getattr(function, 'value', None), 'id', '')
          name = f"{owner}.{getattr(function, 'attr', '')}"
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        assert name not in UNSAFE_NAMES, f'{path}: {name}'
        assert getattr(keywords.get('shell'), 'value', False) is False, path
        if name == 'np.load':
          # The default of numpy 1.16.2 and earlier was True.
          allowed = keywords.get('allow_pickle')
          assert allowed is not None and getattr(allowed, 'value', None) is False, path


def test_an_array_of_objects_is_not_loaded():
  content = io.BytesIO()
  np.save(content, np.array([{'a': 1}], dtype=object), allow_pickle=True)
  content.seek(0)
  with pytest.raises(ValueError, match='allow_pickle'):
    np.load(content, allow_pickle=False)


@pytest.mark.parametrize('zipped', [False, True])
def test_an_idx_file_that_claims_terabytes_takes_no_memory(tmp_path, zipped):
  import gzip
  header = struct.pack('>BBBB3I', 0, 0, 0x08, 3, 2 ** 20, 2 ** 20, 2 ** 10)
  path = str(tmp_path / 'images')
  with (gzip.open(path, 'wb') if zipped else open(path, 'wb')) as file:
    file.write(header + b'few')
  tracemalloc.start()
  try:
    with pytest.raises(UsageError, match='claims uint8 of shape'):
      towers.data.formats.idx.read_idx(path)
    assert tracemalloc.get_traced_memory()[1] < 4 * 2 ** 20
  finally:
    tracemalloc.stop()


def test_every_test_in_the_table_of_faults_exists():
  with open(os.path.join(ROOT, 'docs', 'faults.md'), encoding='utf-8') as file:
    named = re.findall(r'`(tests/[\w/]+\.py)::(\w+)`', file.read())
  assert len(named) > 25
  for path, name in named:
    with open(os.path.join(ROOT, path), encoding='utf-8') as file:
      assert re.search(rf'^def {name}\(', file.read(), re.MULTILINE), f'{path}::{name}'
