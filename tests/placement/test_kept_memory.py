"""The memory of a step is kept for the next one instead of fetched from the system again."""

import json
import os
import subprocess
import sys

import pytest

import towers
from tensorflow_v1 import tf
from tests import ROOT

_IS_1 = tf.__version__.startswith('1.')
_POOL, _LIMIT = 'TF_CPU_ALLOCATOR_USE_BFC', 'TF_CPU_BFC_MEM_LIMIT_IN_MB'
_STEPS = 20

# Takes steps of two towers of a net; prints the pages that they fetch, and the process's settings.
# Threads may share memory in another way for some steps, so that the kept memory grows once more:
# of some rounds, the one that fetches least counts.
_PROGRAM = '''
import json, os, resource, sys
from benchmarks.peers.ours import build_config
from benchmarks.harness.program import open_program
from benchmarks.harness.task import Task

net, batch_size, num_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
task = Task(net, 2, batch_size)
config = build_config(task)
with open_program(config, task.load(), num_towers=2, model=task.build_model()) as steps:
  steps.start(0)
  fetched = []
  for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(num_steps):
      steps.train()
    fetched.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps(dict(pages=min(fetched), pool=os.environ.get('TF_CPU_ALLOCATOR_USE_BFC'))))
'''


def _take_steps(net, batch_size):
  environ = {name: value for name, value in os.environ.items() if name not in (_POOL, _LIMIT)}
  told = subprocess.run(
      [sys.executable, '-c', _PROGRAM, net, str(batch_size), str(_STEPS)], cwd=ROOT, env=environ,
      check=True, stdout=subprocess.PIPE)
  return json.loads(told.stdout.decode().splitlines()[-1])


def _unset(monkeypatch):
  """Removes the settings from the environment, before the test and after it."""
  for name in (_POOL, _LIMIT):
    monkeypatch.setenv(name, '')  # Else there may be nothing to undo.
    monkeypatch.delenv(name)


def _is_pooled():
  is_set = {name in os.environ for name in (_POOL, _LIMIT)}
  assert len(is_set) == 1
  return is_set.pop()


@pytest.mark.nightly
def test_a_step_of_large_tensors_fetches_no_memory():
  told = _take_steps('lenet', 32)
  assert told['pool'] == ('1' if _IS_1 else None)
  # It is mostly less than one a step; with malloc alone it is some 900.
  assert told['pages'] < 100 * _STEPS


# Prints how many pages a large block fetches again after it was freed: one of the process, and one
# for which a thread, whose heaps have 64 MiB, begins another heap.
_PROGRAM_OF_BLOCKS = """
import ctypes, json, resource, threading
from tensorflow_v1 import keep_memory

malloc = ctypes.CDLL(None)
malloc.malloc.restype, malloc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
malloc.free.argtypes = malloc.memset.argtypes = None

def take(size):
  block = ctypes.c_void_p(malloc.malloc(size))
  malloc.memset(block, 1, ctypes.c_size_t(size))
  return block

def fetch_twice(size):
  for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    malloc.free(take(size))
  pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def begin_a_heap():
  take(60 * 2 ** 20)
  fetch_twice(2 ** 25)

pages = []
keep_memory()
fetch_twice(2 ** 28)
thread = threading.Thread(target=begin_a_heap)
thread.start()
thread.join()
print(json.dumps(pages))
"""


@pytest.mark.nightly
@pytest.mark.skipif(_IS_1 or sys.platform != 'linux', reason='2.x has malloc keep blocks, on Linux')
@pytest.mark.parametrize('environ, are_kept', [
    ({}, [True, True]),
    (dict(MALLOC_MMAP_THRESHOLD_='131072'), [False, False]),
    (dict(MALLOC_TOP_PAD_='0'), [True, False]),
])
def test_malloc_keeps_large_blocks_unless_the_user_set_another_size(environ, are_kept):
  told = subprocess.run([sys.executable, '-c', _PROGRAM_OF_BLOCKS], cwd=ROOT,
                        env=dict(os.environ, **environ), check=True, stdout=subprocess.PIPE)
  assert [pages < 1000 for pages in json.loads(told.stdout.decode())] == are_kept


@pytest.mark.nightly
def test_small_tensors_need_no_pool():
  told = _take_steps('linear', 1)
  assert told['pool'] is None
  assert told['pages'] < 50 * _STEPS


def test_what_the_user_set_wins(monkeypatch):
  for name in (_POOL, _LIMIT):
    monkeypatch.setenv(name, '0')
  with tf.Graph().as_default():
    tf.identity(tf.placeholder(tf.float32, [32768]))
    towers.build_session_config(towers.build_devices(2, 'cpu'))
  assert os.environ[_POOL] == os.environ[_LIMIT] == '0'


@pytest.mark.parametrize('shape, dtype, is_large',
                         [([32768], tf.float32, True), ([32767], tf.float32, False),
                          ([65536], tf.float16, True), ([131072], tf.uint8, True),
                          ([65535], tf.float16, False), ([None, 2], tf.float32, True),
                          (None, tf.float32, True), ([], tf.float32, False),
                          (None, tf.string, False)])
def test_a_tensor_of_128_kib_is_large_and_so_may_be_one_of_unknown_size(
    shape, dtype, is_large, monkeypatch):
  _unset(monkeypatch)
  with tf.Graph().as_default():
    # A step does not allocate what is fed.
    fed = tf.placeholder(dtype, shape)
    towers.build_session_config(towers.build_devices(2, 'cpu'))
    assert not _is_pooled()
    tf.identity(fed)
    towers.build_session_config(towers.build_devices(2, 'cpu'))
  assert _is_pooled() == (_IS_1 and is_large)


def test_deep_graphs_and_gpus_are_not_searched(monkeypatch):
  _unset(monkeypatch)
  monkeypatch.setattr('towers.placement.devices._has_large_tensors', lambda: pytest.fail(
      'searched'))
  with tf.Graph().as_default():
    monkeypatch.setattr('towers.placement.devices._DEEP_OPS', 0)
    tf.constant(1)
    towers.build_session_config(towers.Devices('GPU', ['/device:GPU:0'], ''))
    assert not _is_pooled()
    towers.build_session_config(towers.build_devices(2, 'cpu'))
    assert _is_pooled() == _IS_1
