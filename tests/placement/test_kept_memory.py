"""On 1.14 the memory of large tensors is kept for the next step; nobody else needs a pool."""

import os

import pytest

import towers
from tensorflow_v1 import tf

_IS_1 = tf.__version__.startswith('1.')
_POOL, _LIMIT = 'TF_CPU_ALLOCATOR_USE_BFC', 'TF_CPU_BFC_MEM_LIMIT_IN_MB'


@pytest.fixture(autouse=True)
def unset(monkeypatch):
  for name in (_POOL, _LIMIT):
    monkeypatch.setenv(name, '')  # Else there may be nothing to undo.
    monkeypatch.delenv(name)


@pytest.mark.parametrize('shape, dtype, is_large',
                         [([32768], tf.float32, True), ([32767], tf.float32, False),
                          ([65536], tf.float16, True), ([131072], tf.uint8, True),
                          ([65535], tf.float16, False), ([None, 2], tf.float32, True),
                          (None, tf.float32, True), ([], tf.float32, False),
                          (None, tf.string, False)])
def test_a_tensor_of_128_kib_is_large_and_so_may_be_one_of_unknown_size(shape, dtype, is_large):
  with tf.Graph().as_default():
    # A step does not allocate what is fed.
    fed = tf.placeholder(dtype, shape)
    towers.build_session_config(towers.build_devices(2, 'cpu'))
    assert _POOL not in os.environ
    tf.identity(fed)
    towers.build_session_config(towers.build_devices(2, 'cpu'))
  assert (_POOL in os.environ) == (_LIMIT in os.environ) == (_IS_1 and is_large)


def test_what_the_user_set_wins(monkeypatch):
  monkeypatch.setenv(_POOL, '0')
  with tf.Graph().as_default():
    tf.identity(tf.placeholder(tf.float32, [32768]))
    towers.build_session_config(towers.build_devices(2, 'cpu'))
  assert os.environ[_POOL] == '0'
