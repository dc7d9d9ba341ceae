"""NCHW is NHWC with other strides in memory: the same weights, checkpoints and logits.

TensorFlow 1.14 convolves in NCHW on no CPU. So the graph is built as for a GPU, and then every op
that works in NCHW is put between two transposes: what is run is what the graph says, but for the
kernels.
"""

import numpy as np
import pytest

import models
from models import nasnet
from tests.models.test_models import PUBLISHED
from towers.base.usage_error import UsageError
from towers.cli.command_line import main
from towers.settings.config import Config
from towers.tensorflow_v1 import tf

# With whether to train: a deep net that normalises a few positions of three images makes much of
# rounding.
MODELS = {
    'lenet': False, 'alexnet_cifar': False, 'vgg16': False, 'resnet20': True, 'resnet50': False,
    'nasnet_cifar': False
}
# Of [batch, height, width, channels] in what is [batch, channels, height, width], and back.
TO_NHWC, TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


def run_in_nhwc(graph_def):
  """Puts what works in NCHW between transposes to NHWC and back; returns how many ops that were."""
  converted = [node for node in graph_def.node if 'data_format' in node.attr and node.attr[
      'data_format'].s == b'NCHW']
  names = {node.name for node in converted}

  def transpose(name, tensor, order):
    permutation = graph_def.node.add(op='Const', name=name + '_permutation')
    permutation.attr['dtype'].type = tf.int32.as_datatype_enum
    permutation.attr['value'].tensor.CopyFrom(tf.make_tensor_proto(order, tf.int32))
    node = graph_def.node.add(op='Transpose', name=name, input=[tensor, permutation.name])
    node.attr['T'].type = tf.float32.as_datatype_enum
    node.attr['Tperm'].type = tf.int32.as_datatype_enum

  for node in graph_def.node:
    for index, tensor in enumerate(node.input):
      if tensor in names:
        node.input[index] = tensor + '/in_nchw'
  for node in converted:
    transpose(node.name + '/in_nhwc', node.input[0], TO_NHWC)
    transpose(node.name + '/in_nchw', node.name, TO_NCHW)
    node.input[0] = node.name + '/in_nhwc'
    node.attr['data_format'].s = b'NHWC'
    for name in ('strides', 'ksize'):
      if name in node.attr:
        values = node.attr[name].list.i
        values[:] = [values[axis] for axis in TO_NHWC]
  return len(converted)


def build(name, data_format, is_training):
  """Returns logits, saver and image shape, in the default graph."""
  shape = (32, 32, 3) if name in ('vgg16', 'nasnet_cifar') else PUBLISHED[name][0]
  module, settings = models.MODELS[name]
  images = tf.constant(np.random.RandomState(0).randint(256, size=(3,) + shape).astype(np.uint8))
  build_logits = __import__('models.' + module, fromlist=['build_logits']).build_logits
  logits = build_logits(images, is_training, 10, data_format=data_format, **settings)
  return tf.identity(logits, name='result'), tf.train.Saver()


@pytest.mark.nightly(but='lenet')
@pytest.mark.parametrize('name', sorted(MODELS))
def test_nchw_gives_the_logits_of_nhwc_from_its_checkpoint(name, tmp_path, monkeypatch):
  monkeypatch.setitem(nasnet._VARIANTS, 'cifar',
                      nasnet._VARIANTS['cifar']._replace(num_normal=1, channels=4))
  is_training = MODELS[name]
  with tf.Graph().as_default(), tf.Session() as session:
    logits, saver = build(name, 'NHWC', is_training)
    nhwc = {variable.op.name: variable.shape.as_list() for variable in tf.global_variables()}
    session.run(tf.global_variables_initializer())
    expected = session.run(logits)
    saver.save(session, str(tmp_path / 'nhwc'))
  with tf.Graph().as_default() as graph:
    _, saver = build(name, 'NCHW', is_training)
    nchw = {variable.op.name: variable.shape.as_list() for variable in tf.global_variables()}
    assert nchw == nhwc
    for op in graph.get_operations():
      if 'data_format' in op.node_def.attr:
        assert op.get_attr(
            'data_format') == b'NCHW' or op.type == 'BiasAdd' and op.inputs[0].shape.ndims == 2
    graph_def = graph.as_graph_def()
  # Biases of dense layers have no positions.
  for node in graph_def.node:
    if node.op == 'BiasAdd' and ('dense' in node.name or 'logits' in node.name):
      node.attr['data_format'].s = b'NHWC'
  assert run_in_nhwc(graph_def) > 3
  with tf.Graph().as_default(), tf.Session() as session:
    tf.import_graph_def(graph_def, name='')
    session.run(saver.saver_def.restore_op_name,
                {saver.saver_def.filename_tensor_name: str(tmp_path / 'nhwc')})
    np.testing.assert_allclose(session.run('result:0'), expected, rtol=1e-3,
                               atol=1e-4 * np.abs(expected).max())


def test_nchw_without_a_gpu_is_refused_before_anything_is_built(capsys):
  assert main(['main.py', '--data_format=NCHW', '--model=lenet']) == 2
  assert 'data_format=NCHW needs GPUs' in capsys.readouterr().err
  for settings in (dict(device='cpu'), dict(check=True)):
    with pytest.raises(UsageError, match='data_format=NCHW.*data_format=NHWC'):
      Config(data_format='NCHW', **settings)
