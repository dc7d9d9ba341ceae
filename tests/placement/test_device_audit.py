"""What steps would do on GPUs, of training and of validation: a kernel for each op, and few copies
between host and device.
"""

import functools

import pytest

import models
from models import nasnet, resnet
from tensorflow_v1 import tf
from tests.harness import small
from tests.harness.device_audit import DeviceAudit
from tests.harness.small import Run, assert_same_weights
from towers.data.synthetic import load_synthetic
from towers.placement import devices
from towers.training.build import build_configured
from towers.training.settings.config import Config

CASES = {
    'small': dict(model='convnet', num_gpus=2),
    'next': dict(model='convnet', num_gpus=3, input_mode='next', staging_depth=0),
    'resnet20': dict(model='resnet20', num_gpus=2, variables='replicated', precision='mixed',
                     batch_norm='sync', average_weights=0.999),
    'resnet50': dict(model='resnet50', num_gpus=2, precision='mixed'),
    'nasnet': dict(model='nasnet_cifar', num_gpus=2),
    'tower': dict(model='convnet', num_gpus=2, validation='tower', variables='host'),
}
NIGHTLY = ('resnet20', 'resnet50', 'nasnet')


def build(name):
  """Builds a case's program for GPUs, on which nothing runs; batches of 4, the last of 1."""
  config = Config(device='gpu', batch_size=4, **CASES[name])
  data_set = load_synthetic(num_train=9, num_validation=5)
  with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
    patch.setattr(devices, 'count_gpus', lambda: 8)
    # Cells and blocks of each kind once.
    patch.setitem(nasnet._VARIANTS, 'cifar', nasnet._VARIANTS['cifar']._replace(num_normal=1))
    patch.setitem(resnet._CIFAR_BLOCKS, 20, (1, 1, 1))
    patch.setitem(resnet._IMAGENET_BLOCKS, 50, (2, 1, 1, 1))
    model = models.build_classifier(config.model, num_classes=data_set.num_classes)
    return build_configured(config, model, data_set)


@functools.lru_cache(maxsize=None)
def audit(name):
  """Returns what a training step of a case does, what one of validation does, and its program."""
  program = build(name)
  validation = program.validation
  fed = [] if validation.is_validating is None else [validation.is_validating]
  return (DeviceAudit([program.train_op, program.gradients.loss]),
          DeviceAudit([validation.sums], fed_true=fed), program)


each_case = pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in CASES])


@pytest.mark.nightly(but='tower')
@each_case
def test_each_op_on_a_gpu_has_a_kernel_there(name):
  training, validation, program = audit(name)
  assert {op.device for op in training.ops} >= {tower.device for tower in program.towers}
  assert {op.device for op in validation.ops} >= set(program.validation.feed.devices)
  for found in (training, validation):
    assert not [op.name for op in found.without_device]
    # Texts are on the host, wherever they are asked for.
    assert all(op.type == 'Const' and op.outputs[0].dtype == tf.string
               for op in found.without_kernel)


@pytest.mark.nightly(but='tower')
@each_case
def test_few_tensors_are_copied_between_host_and_device(name):
  found, _, program = audit(name)
  num_towers = len(program.towers)
  variables = len(program.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES))
  to_host = [copy for copy in found.to_host() if copy.tensor.dtype.is_floating]
  if program.replicas:
    # Each tower's loss.
    assert len(to_host) <= num_towers
  else:
    # Each tower's loss and its gradients, and the moments that move averages.
    assert len(to_host) <= num_towers * (1 + len(program.gradients.gradients)) + variables

  # Whole numbers and predicates go to a GPU once, and none comes back, but for the flag of a gate
  # and the shape of what the mean over all positions was computed from.
  back = [copy.tensor.name for copy in found.to_host() if not copy.tensor.dtype.is_floating
          and not copy.tensor.name.startswith('apply/gate/')]
  assert not [name for name in back if '/Mean_grad/' not in name] and len(back) <= 3 * num_towers
  sent = [copy for copy in found.from_host() if not copy.tensor.dtype.is_floating
          and 'norm/Cast' not in copy.consumers[0].name]
  assert len(sent) <= 12 * num_towers


@pytest.mark.nightly(but='tower')
@each_case
def test_a_validation_step_sends_one_vector_from_each_tower(name):
  _, found, program = audit(name)
  devices = program.validation.feed.devices
  # That of a single tower is fetched from where it is.
  assert [copy.source for copy in found.to_host()] == (devices if len(devices) > 1 else [])
  assert all(copy.tensor.op.name.startswith('measure') for copy in found.to_host())
  # Nothing is trained, and no batch of the training split is taken.
  assert not [op.name for op in found.ops if op.type.startswith('ResourceApply')
              or ('IteratorGetNext' in op.type and '_train' in op.name)]

  # To each tower go its batch, predicates, and weights that are elsewhere, each once.
  weights = [copy for copy in found.from_host() if copy.tensor.op.type == 'ReadVariableOp'
             or copy.tensor.op.name.startswith('join_reads')]  # Small ones go together.
  alone = program.replicas or program.validation.snapshot_op is not None
  variables = program.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
  assert len(weights) <= (0 if alone else len(devices) * len(variables))
  norms = [copy for copy in found.from_host() if 'norm/Cast' in copy.consumers[0].name]
  assert len(found.from_host()) - len(weights) - len(norms) <= 8 * len(devices)


def test_a_snapshot_sends_each_weight_once():
  _, _, program = audit('tower')
  found = DeviceAudit([program.validation.snapshot_op])
  assert not found.without_device and not found.without_kernel and not found.to_host()
  assert len(found.from_host()) == len(
      program.graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES))


@pytest.mark.nightly
def test_replicas_are_compared_where_they_are():
  _, _, program = audit('resnet20')
  found = DeviceAudit([program.replicas.same])
  assert not found.without_kernel
  # One bit comes back for each replica.
  assert {copy.tensor.dtype for copy in found.to_host()} == {tf.bool}
  assert len(found.to_host()) == len(program.replicas.names)


@pytest.mark.nightly(but='next-2')
@pytest.mark.parametrize('mode, depth', small.diagonal(small.MODES, (1, 2)))
def test_what_gpus_keep_on_the_host_is_the_same_batch(mode, depth, monkeypatch):
  with Run(num_towers=1) as one:
    expected = [one.train() for _ in range(4)]
    means = one.validate()
    expected.append(one.train())
    weights = one.weights()
  for module in ('towers.staging.area', 'towers.input.feed'):
    monkeypatch.setattr(module + '.is_gpu', lambda device: True)
  with Run(num_towers=3, mode=mode, depth=depth) as run:
    areas = [op for op in run.graph.get_operations() if op.type == 'Stage']
    # Two puts of each area of two splits, beside the host's areas for three towers' counts.
    assert len(areas) == 2 * 2 * 2 * 3
    losses = [run.train() for _ in range(4)]
    found = run.validate()
    losses.append(run.train())
    assert losses == pytest.approx(expected, abs=1e-5)
    assert found[0] == pytest.approx(means[0], abs=1e-5) and found[1] == means[1]
    assert_same_weights(run.weights(), weights)
