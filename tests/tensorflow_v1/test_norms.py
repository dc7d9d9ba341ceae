"""What batch normalisation ends in is another function in one graph and thread, for a while."""

import threading

import pytest
from tensorflow.python.ops import nn_impl

from towers.tensorflow_v1 import other_norms, tf

OWN = nn_impl.math_ops, nn_impl.gen_nn_ops


def call():
  """Calls both as layers do; returns how many ops the graph has then."""
  tf.nn.moments(tf.zeros([2, 3]), [0])
  tf.nn.fused_batch_norm(tf.zeros([1, 1, 2, 3]), tf.ones([3]), tf.zeros([3]))
  return len(tf.get_default_graph().get_operations())


def call_alone():
  with tf.Graph().as_default():
    return call()


def test_only_the_graph_and_thread_of_the_context_have_others():
  alone, taken, elsewhere = call_alone(), [], []
  with tf.Graph().as_default() as graph:
    def run():
      elsewhere.append(call_alone())
      with graph.as_default():
        call()
      with tf.Graph().as_default(), other_norms(print, print):
        pass  # One that ends first leaves the other.

    def stand_in(own, *given, **settings):
      taken.append(own.__name__)
      return own(*given, **settings)

    with pytest.raises(KeyError), other_norms(stand_in, stand_in):
      thread = threading.Thread(target=run)
      thread.start()
      thread.join()
      assert not taken and elsewhere == [alone] and call_alone() == alone
      call()
      raise KeyError
  assert [name.split('_v')[0].lstrip('_') for name in taken] == [
      'reduce_mean', 'reduce_mean', 'fused_batch_norm']
  assert (nn_impl.math_ops, nn_impl.gen_nn_ops) == OWN
  call_alone()
  assert len(taken) == 3
