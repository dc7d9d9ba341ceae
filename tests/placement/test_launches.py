"""What a step launches on GPUs beside the model, on graphs that stand on them: nothing runs.

The same model in a loop by hand, with the same batch, is what it is compared with, op by op.
"""

import collections

import pytest

import models
from models import resnet
from tensorflow_v1 import tf
from tests.harness.device_audit import DeviceAudit
from towers.data.synthetic import load_synthetic
from towers.placement import devices
from towers.placement.host import HOST
from towers.training.build import build_configured
from towers.training.settings.config import Config

_SIZE = 8  # Of a tower's batch.


def build(num_towers, **settings):
  """Returns the audit of a step of ours, and its program."""
  config = Config(**dict(dict(
      device='gpu', num_gpus=num_towers, model='resnet20', batch_size=_SIZE * num_towers,
      validation='none', schedule='constant', optimizer='momentum'), **settings))
  data_set = load_synthetic(num_train=_SIZE * num_towers, num_validation=1)
  with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
    patch.setattr(devices, 'count_gpus', lambda: 8)
    patch.setitem(resnet._CIFAR_BLOCKS, 20, (1, 1, 1))
    model = models.build_classifier(config.model, num_classes=data_set.num_classes)
    program = build_configured(config, model, data_set)
    return DeviceAudit([program.train_op, program.gradients.metrics]), program


def build_by_hand(like):
  """Returns the audit of a step by hand, with batches like those of a program."""
  tensors = tf.nest.map_structure(lambda tensor: (tensor.shape, tensor.dtype),
                                  list(like.batches[0].tensors))
  with tf.Graph().as_default(), tf.device('/device:GPU:0'), pytest.MonkeyPatch.context() as patch:
    patch.setitem(resnet._CIFAR_BLOCKS, 20, (1, 1, 1))
    with tf.device(HOST):
      batch = tuple(tf.placeholder(dtype, shape) for shape, dtype in tensors)
    losses, metrics = models.build_classifier('resnet20', num_classes=10)(batch, True)
    loss = tf.reduce_mean(losses)
    means = [tf.reduce_mean(tf.cast(values, tf.float32)) for values in metrics.values()]
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
      step = optimizer.minimize(loss)
    return DeviceAudit([step, loss, *means])


def count(found, device):
  """Returns by type how many ops launch a kernel on a device, or copy a tensor to or from it."""
  launches = collections.Counter(op.type for op in found.launches if _stands_on(op, device))
  launches['copy'] = sum(device in (copy.source, copy.target) for copy in found.copies)
  return launches


def _stands_on(op, device):
  variables = [tensor.op.device for tensor in op.inputs if tensor.dtype == tf.resource]
  return (variables or [op.device])[0] == device


def test_a_tower_launches_ten_ops_more_than_a_loop_by_hand():
  found, program = build(1, variables='first')
  ours, by_hand = [count(each, '/device:GPU:0') for each in (found, build_by_hand(program))]
  more = ours - by_hand
  assert sum(ours.values()) - sum(by_hand.values()) <= 10, (more, by_hand - ours)
  # One flag comes back in a step; the loss is fetched beside it.
  back = [copy.tensor for copy in found.to_host()]
  assert [tensor.dtype for tensor in back if '/Mean_grad/' not in tensor.name] == [tf.bool]


def test_four_replicas_launch_fifteen_ops_more_each_beside_collectives():
  found, program = build(4, variables='replicated')
  by_hand = count(build_by_hand(program), '/device:GPU:0')
  for tower in program.towers:
    ours = count(found, tower.device)
    collected = sum(number for kind, number in ours.items() if kind.startswith('Collective'))
    assert collected == program.gradients.all_reduce.num_collectives
    more = sum(ours.values()) - sum(by_hand.values()) - collected
    assert more <= 15, (tower.device, ours - by_hand, by_hand - ours)
  # A loss from each tower, and the flag of one.
  back = [copy.tensor for copy in found.to_host() if '/Mean_grad/' not in copy.tensor.name]
  assert collections.Counter(tensor.dtype for tensor in back) == {tf.float32: 4, tf.bool: 1}


@pytest.mark.parametrize('model, optimizer, most', [
    ('resnet20', 'momentum', 3), pytest.param('resnet20', 'rmsprop', 3, marks=pytest.mark.nightly),
    pytest.param('resnet50', 'rmsprop', 25, marks=pytest.mark.nightly)])
def test_the_guard_is_few_kernels(model, optimizer, most):
  found, _ = build(1, variables='first', model=model, optimizer=optimizer)
  guard = [op for op in found.launches if op.name.startswith(('apply/guard/', 'apply/gate/'))
           and op.type in ('ConcatV2', 'Sum', 'AddN', 'Cast')
           and op.inputs[0].shape.num_elements() != 0 and 'AssignSub' not in op.name]
  # Of more than 4,096 elements a sum takes two kernels.
  kernels = [2 if op.type == 'Sum' else 1 for op in guard]
  assert sum(kernels) <= most + (optimizer == 'momentum'), [op.name for op in guard]
