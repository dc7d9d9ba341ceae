"""The quick import makes the same nodes as TensorFlow's own."""

import pytest

from towers.tensorflow_v1 import import_placed, tf


@pytest.mark.parametrize('around', ['nothing', 'control dependencies', 'a branch'])
def test_nodes_are_imported_as_by_tensorflow_itself(around):
  with tf.Graph().as_default() as nodes:
    given = tf.placeholder(tf.float32, [2], 'given')
    with tf.device('/device:CPU:1'):
      first = tf.add(given, tf.constant([1.0, 2.0]), 'first')
    with tf.control_dependencies([first]):
      tf.while_loop(lambda number: number < 3, lambda number: number + 1, [tf.constant(0)],
                    name='counting')
      tf.multiply(first, 2.0, 'twice')

  def build(importing):
    has_stack = []
    with tf.Graph().as_default() as graph:
      value = tf.constant([3.0, 4.0], name='value')

      def imported():
        twice, = importing(nodes.as_graph_def(), name='clone', input_map={'given': value},
                           return_elements=['twice:0'])
        has_stack.append(bool(twice.op.traceback))
        return twice

      if around == 'a branch':
        tf.cond(tf.placeholder(tf.bool, [], 'is_taken'), imported, lambda: value)
      else:
        with tf.control_dependencies([value] if around == 'control dependencies' else []):
          imported()
      in_python = {op.name for op in graph.get_operations()}
      told = graph.as_graph_def()
      assert in_python == {node.name for node in told.node}
      return has_stack, {node.name: node for node in told.node}

  assert build(import_placed) == build(tf.import_graph_def)


def test_what_an_import_takes_and_makes_can_be_fed():
  with tf.Graph().as_default() as nodes:
    tf.add(tf.placeholder(tf.float32, [2], 'given'), 1.0, 'more')
  with tf.Graph().as_default(), tf.Session() as session:
    value = tf.identity([3.0, 4.0])
    more, = import_placed(nodes.as_graph_def(), name='clone', input_map={'given': value},
                          return_elements=['more:0'])
    assert session.run(more, {value: [1.0, 2.0]}).tolist() == [2.0, 3.0]
    assert session.run(more * 2, {more: [1.0, 2.0]}).tolist() == [2.0, 4.0]


def test_what_a_failed_import_took_can_be_fed():
  with tf.Graph().as_default() as nodes:
    tf.matmul(tf.placeholder(tf.float32, None, 'given'), tf.ones([3, 1]))
  with tf.Graph().as_default(), tf.Session() as session:
    value = tf.identity([[3.0, 4.0]])
    with pytest.raises(ValueError):
      import_placed(nodes.as_graph_def(), name='clone', input_map={'given': value},
                    return_elements=[])
    assert session.run(value * 2, {value: [[1.0, 2.0]]}).tolist() == [[2.0, 4.0]]
