"""Numbered ops: those of a run, in an order in which they can run, without branches not taken."""

from tensorflow_v1 import tf
from towers.graph.numbered import NumberedOps
from towers.graph.walk import find_needed


def number(*, false=None, without=''):
  """Returns what is numbered of a graph with a loop, a condition and a control input, and its ops.
  """
  with tf.Graph().as_default() as graph:
    x = tf.placeholder(tf.float32, [None, 3], name='x')
    is_on = tf.placeholder(tf.bool, [], name='is_on')
    y = tf.cond(is_on, lambda: tf.tanh(x, name='on'), lambda: tf.exp(x, name='off'))
    _, z = tf.while_loop(lambda turn, _: turn < 3, lambda turn, z: (turn + 1, tf.sin(z)), [0, y])
    with tf.control_dependencies([tf.square(x, name='before')]):
      root = tf.add(z, x, name='root').op
    within = {op for op in graph.get_operations() if op.name != without}
    run = NumberedOps([root], within, false and graph.get_tensor_by_name(false))
    return run, find_needed([root])


def names(run):
  return {run.ops[op].name for op in run.order}


def test_each_op_comes_after_what_it_waits_for():
  run, needed = number()
  assert set(run.ops) == needed == {run.ops[op] for op in run.order}
  places = {op: place for place, op in enumerate(run.order)}
  waited = [0] * len(run.ops)
  for op, followers in enumerate(run.followers):
    for follower in followers:
      waited[follower] += 1
      assert places[op] < places[follower]
  assert waited == run.waiting
  assert not run.dead


def test_tensors_are_those_of_the_ops():
  run, _ = number()
  for op, inputs, outputs in zip(run.ops, run.inputs, run.outputs):
    assert [run.tensors[tensor] for tensor in inputs] == list(op.inputs)
    assert [run.tensors[tensor] for tensor in outputs] == list(op.outputs)


def test_a_branch_that_is_not_taken_is_left_out():
  run, _ = number(false='is_on:0')
  assert 'on' not in {name.split('/')[-1] for name in names(run)}
  assert {'before', 'root'} < names(run)
  assert 'cond/off' in names(run)


def test_what_an_op_takes_from_outside_is_a_tensor_without_its_op():
  run, _ = number(without='before')
  assert 'before' not in names(run)
  run, _ = number(without='x')
  assert 'x' not in names(run)
  assert 'x:0' in [tensor.name for tensor in run.tensors]
