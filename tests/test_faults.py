"""Untrusted files are safe to read."""

import ast
import copy
import gzip
import json
import math
import os
import re
import struct
import subprocess
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from tests import ROOT
from tests.harness import faults
from towers.base.json_files import read_sealed
from towers.base.usage_error import UsageError
from towers.checkpoint.history import HISTORY, History
from towers.data.bad_records import BadRecords
from towers.data.formats.tfrecord import load_index, scan_tfrecord, write_record
from towers.data.records import check_damage
from towers.placement.cluster import read_cluster
from towers.settings.timetable import build_interval, parse_trace_steps
from towers.tensorflow_v1 import compiled_cache
from towers.training.auto_accumulate import ROOM, recall_accumulate
from towers.warm_start.weights_file import check_weights
from towers_data import shards
from towers_data.cifar import CIFARS, read_cifar
from towers_data.idx.idx_file import read_idx
from towers_data.image_folder import find_image_files
from towers_data.npy_folder import map_npy
from towers_data.tfrecord_folder import read_description
from towers_tools.evaluator import EVALUATIONS, Evaluations
from towers_tools.page import format_page, read_runs
from towers_tools.report import Report
from towers_tools.serving.predict import _read_arrays

FOLDERS = ('towers', 'staging', 'models', 'examples', 'benchmarks', 'extras')
SOURCES = [os.path.join(path, name) for folder in FOLDERS
           for path, _, names in os.walk(os.path.join(ROOT, folder))
           for name in names if name.endswith('.py') and 'tests' not in path.split(os.sep)]
SOURCES += [os.path.join(ROOT, 'main.py')]
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


# Where files of the system or its own are opened, or some that were looked at before.
OPENERS = {'towers/base/files.py', 'towers/base/output.py', 'towers/checkpoint/checkpoints.py',
           'towers/tensorflow_v1/compiled_cache.py', 'towers/training/reporting/summaries.py',
           'extras/towers_data/towers_data/npy_folder.py',
           'extras/towers_launch/towers_launch/loopback.py',
           'extras/towers_tools/towers_tools/free_memory.py',
           'extras/towers_tools/towers_tools/serving/predict.py',
           'extras/towers_tools/towers_tools/trials/fingerprint.py',
           'extras/towers_tools/towers_tools/trials/timed_trial.py'}


def test_one_function_opens_what_is_read():
  reads = re.compile(r"(?<![\w.])(?<!def )open\((?!f?'/proc/)(?!\w+, '[wx]b?')|"
                     r'\b(os|io|gzip)\.open\(|\bnp\.(load|memmap|fromfile)\(')
  found = set()
  for path in SOURCES:
    with open(path, encoding='utf-8') as file:
      if reads.search(file.read()):
        found.add(os.path.relpath(path, ROOT))
  assert {name for name in found if name.startswith(('towers/', 'extras/'))} == OPENERS


# What reads a file: each gets a path at which there is none.
READERS = {
    'JSON': lambda path: read_sealed(path, {}), 'idx': read_idx, 'npy': map_npy,
    'cifar': lambda path: read_cifar(path, CIFARS['cifar10'], BadRecords('fail')),
    'arrays to predict': lambda path: next(_read_arrays(
        SimpleNamespace(predict=path, batch_size=1), {})),
    'tfrecord': scan_tfrecord, 'weights': check_weights, 'a compiled program': compiled_cache._sum,
    'a shard': shards._checksum, 'a history': lambda path: History().read(os.path.dirname(path), 1)}


@pytest.mark.parametrize('kind', ['a FIFO', 'a device'])
@pytest.mark.parametrize('reader', READERS)
def test_what_is_no_file_is_not_read(reader, kind, tmp_path, capsys):
  faults.be_special(tmp_path / HISTORY, kind)
  try:
    READERS[reader](str(tmp_path / HISTORY))
    told = capsys.readouterr().out
  except (OSError, UsageError) as error:
    told = str(error)
  assert f'is {kind}, not a file' in told


HOSTILE = ['null', 'true', '-1', '1.5', str(2 ** 70), str(2 ** 2000), '9' * 5000, '1e308', '1e400',
           'NaN', '-Infinity', '""', '"3"', '"²"', '"a\\u0000\\ud800"', '[]', '[[]]', '{}',
           '{"a": 1}', '[{"step": 1, "loss": 1e308}, {"step": 2, "loss": -1e308}]',
           '[{"step": 1, "loss": 5e-324}, {"step": 9223372036854775807, "loss": 0}]',
           '[' * 900 + ']' * 900, '[' * 10 ** 5 + ']' * 10 ** 5, '[' * 5000, '']


def hostile_texts(document):
  """Yields JSON texts of a document in which one value, at any depth, is a hostile one."""
  def paths(value, path=()):
    yield path
    for key in (value if isinstance(value, dict) else range(len(value))
                if isinstance(value, list) else ()):
      yield from paths(value[key], (*path, key))

  for path in paths(document):
    marked = {'root': copy.deepcopy(document)}
    holder, key = marked, 'root'
    for step in path:
      holder, key = holder[key], step
    holder[key] = 'MARK'
    for text in HOSTILE:
      yield json.dumps(marked['root']).replace('"MARK"', text)


def read_hostile_description(text, folder, _):
  (folder / 'data_set.json').write_text(text)
  read_description(str(folder))


def read_hostile_index(text, folder, _):
  """Reads a file of two records whose kept index has a hostile header."""
  path = folder / 'records'
  if not path.exists():
    with open(str(path), 'wb') as file:
      write_record(file, b'one')
      write_record(file, b'three')
  kept = folder / '.index' / 'records'
  kept.parent.mkdir(exist_ok=True)
  lengths = np.array([3, 5], '<i8').tobytes()
  status = os.stat(str(path))
  text = text.replace('777', str(status.st_mtime_ns)).replace('888', str(zlib.crc32(lengths)))
  kept.write_bytes(text.encode() + b'\n' + lengths)
  index = load_index(path)
  assert index.lengths.tolist() == [3, 5]
  bad_records = BadRecords('skip')
  check_damage(index, bad_records)


def read_hostile_page(text, folder, warn):
  page = folder / 'run.html'
  page.write_text(f'<script type="application/json" id="run-0">{text}</script>')
  run = dict(settings={}, first_step=5, description='', versions={})
  try:
    format_page(['', ''], read_runs(str(page)) * 2)
  finally:
    Report(str(page), warn=warn, **run).validated(step=6, metrics={'loss': math.inf})
    read_runs(str(page))  # What is written after it is whole.


def read_hostile_history(text, folder, warn):
  (folder / HISTORY).write_text(text)
  history = History(metric='loss', patience=1)
  history.read(str(folder), 5, warn)
  history.add(9, {'loss': 1.0})
  return (history.best_first(), history.describe_best(), history.has_stopped, history.format(),
          history.rate_factor)


def read_hostile_evaluations(text, folder, _):
  (folder / EVALUATIONS).write_text(text)
  evaluations = Evaluations(str(folder))
  evaluations.add(evaluations.last_step() + 1, {'loss': 1.0})


def read_hostile_room(text, folder, _):
  (folder / ROOM).write_text(text)
  number = recall_accumulate(str(folder), batch_size=64, num_towers=2)
  assert number in (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize('read, document', [
    (lambda text, *_: read_cluster({'TF_CONFIG': text}), {
        'cluster': {'chief': ['a:1'], 'worker': ['b:2', 'c:3']},
        'task': {'type': 'worker', 'index': 1}}),
    (read_hostile_description, {
        'format': 'towers data set 1', 'num_classes': 20, 'first_label': 1, 'channels': 3,
        'image_size': 12, 'shards': {'train-00000-of-00001': {'records': 3}}}),
    (read_hostile_index, {
        'format': 'towers index 1', 'size': 40, 'mtime_ns': 777, 'records': 2, 'crc32': 888,
        'damage': [1, 20, 5, 'truncated'], 'facts': {'sha256': 'abc'}}),
    (read_hostile_page, {
        'config': {'model': 'a', 'data': 'b'}, 'versions': {'tensorflow': '1'}, 'warnings': ['w'],
        'description': 'd', 'result': {}, 'samples': [{'step': 1, 'loss': 2.0}],
        'validations': [{'step': 1, 'loss': 2.0}]}),
    (lambda text, *_: parse_trace_steps(text), ['10:12']),
    (lambda text, *_: build_interval('validate_every', text, None), ['3steps']),
    (read_hostile_history, {'validations': [{'step': 1, 'loss': 2.0}], 'rollbacks': []}),
    (read_hostile_evaluations, {'evaluations': [{'step': 1, 'loss': 2.0}]}),
    (read_hostile_room, {'examples_per_tower': 8})])
def test_hostile_small_files_are_read_refused_or_warned_of_in_one_line(
    read, document, tmp_path, capsys):
  refused = 0
  for text in [*hostile_texts(document), *HOSTILE, '9' * 400 + 'epochs', '²', '1:²']:
    said = []
    try:
      read(text, tmp_path, said.append)
    except UsageError as error:
      said.append(str(error))
    said += capsys.readouterr().out.splitlines()
    refused += bool(said)
    for line in said:
      assert '\n' not in line and len(line) < 1000, (text[:200], line)
  # A damaged index is made again without a word.
  assert refused >= len(HOSTILE) or read is read_hostile_index


def test_a_file_without_end_is_not_read_to_its_end(tmp_path):
  for name in (HISTORY, 'run.html'):
    with open(str(tmp_path / name), 'wb') as file:
      file.truncate(1 << 40)
  warnings = []
  History().read(str(tmp_path), 5, warnings.append)
  assert 'more than 64 MiB' in warnings[0]
  with pytest.raises(UsageError, match='64 MiB'):
    read_runs(str(tmp_path / 'run.html'))


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(tmp_path):
  path = tmp_path / 'images.gz'
  with gzip.open(str(path), 'wb', compresslevel=1) as file:
    file.write(struct.pack('>BBBB3I', 0, 0, 0x08, 3, 200, 1000, 1000))
    for _ in range(200):
      file.write(bytes(1000 * 1000))
  read = ('import resource, sys; from towers.extras import find_in_clone; find_in_clone(); '
          'from towers_data.idx.idx_file import read_idx; '
          'from towers.base.usage_error import UsageError\n'
          'resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20))\n'
          'try:\n  read_idx(sys.argv[1])\nexcept UsageError as error:\n  print(error)')
  output = subprocess.run([sys.executable, '-c', read, str(path)], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60).stdout
  assert output.startswith(f'{path}: its elements do not fit into the memory'), output


@pytest.mark.parametrize('link, to', [('self', 'self'), ('cat/1.jpg', '1.jpg')])
def test_a_link_to_itself_in_a_folder_of_images_is_named(link, to, tmp_path):
  for split in ('train', 'validation'):
    (tmp_path / split / 'cat').mkdir(parents=True)
    (tmp_path / split / 'cat' / '0.jpg').write_bytes(b'')
  (tmp_path / 'train' / link).symlink_to(to)
  with pytest.raises(UsageError, match=f'{link}: cannot be read: .*; check its permissions and '
                                       'links'):
    find_image_files(tmp_path)
