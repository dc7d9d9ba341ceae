"""What steps would do on GPUs, on graphs that stand on them: nothing runs.

Each op has a kernel there, few tensors are copied between host and device, and little is launched
beside the model: op by op, the same model in a loop by hand is what a step is compared with.
"""

import collections
import contextlib
import functools

import pytest

import models
from models import nasnet, resnet
from tests.harness import small
from tests.harness.device_audit import DeviceAudit
from towers.cli.jobs import build_configured
from towers.data import load_synthetic
from towers.graph.walk import find_needed
from towers.placement import devices
from towers.placement.host import HOST
from towers.settings.config import Config
from towers.tensorflow_v1 import tf

CASES = {
    'small': dict(model='convnet', num_towers=2),
    'next': dict(model='convnet', num_towers=3, input_mode='next', staging_depth=0),
    'resnet20': dict(model='resnet20', num_towers=2, variables='replicated', precision='mixed',
                     batch_norm='sync', average_weights=0.999),
    'resnet50': dict(model='resnet50', num_towers=2, precision='mixed'),
    'nasnet': dict(model='nasnet_cifar', num_towers=2),
    'tower': dict(model='convnet', num_towers=2, validation_tower=True, variables='host')}
NIGHTLY = ('resnet20', 'resnet50', 'nasnet')


def build(num_train=9, num_validation=5, **settings):
  """Builds a program for GPUs, on which nothing runs."""
  config = Config(device='gpu', **settings)
  data_set = load_synthetic(num_train=num_train, num_validation=num_validation)
  with tf.Graph().as_default(), few_blocks() as patch:
    patch.setattr(devices, 'count_gpus', lambda: 8)
    model = models.build_classifier(config.model, num_classes=data_set.num_classes)
    return build_configured(config, model, data_set)


@contextlib.contextmanager
def few_blocks():
  """Opens a context in which nets for small images have cells and blocks of each kind once."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(nasnet._VARIANTS, 'cifar', nasnet._VARIANTS['cifar']._replace(num_normal=1))
    patch.setitem(resnet._CIFAR_BLOCKS, 20, (1, 1, 1))
    yield patch


@functools.lru_cache(maxsize=None)
def audit(name):
  """Returns what a training step of a case does, what one of validation does, and its program."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(resnet._IMAGENET_BLOCKS, 50, (2, 1, 1, 1))
    program = build(batch_size=4, **CASES[name])  # The last batch is of 1.
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

  # Whole numbers and predicates go to a GPU once, and none comes back, but for the flag of a gate.
  assert not [copy for copy in found.to_host() if not copy.tensor.dtype.is_floating
              and not copy.tensor.name.startswith('apply/gate/')]
  sent = [copy for copy in found.from_host() if not copy.tensor.dtype.is_floating
          and 'norm/Cast' not in copy.consumers[0].name]
  assert len(sent) <= 10 * num_towers


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


def test_a_snapshot_sends_each_weight_and_the_step_once():
  _, _, program = audit('tower')
  found = DeviceAudit([program.validation.snapshot_op])
  assert not found.without_device and not found.without_kernel and not found.to_host()
  assert len(found.from_host()) == 1 + len(
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
  with small.Run(num_towers=1, validates=True) as one:
    expected = [one.train() for _ in range(4)]
    means = one.validate()
    expected.append(one.train())
    weights = one.weights()
  for module in ('towers.staging.area', 'towers.input.feed'):
    monkeypatch.setattr(module + '.is_gpu', lambda device: True)
  with small.Run(num_towers=3, mode=mode, depth=depth, validates=True) as run:
    areas = [op for op in run.graph.get_operations() if op.type == 'Stage']
    # Two puts of each area of two splits, beside the host's areas for three towers' counts.
    assert len(areas) == 2 * 2 * 2 * 3
    losses = [run.train() for _ in range(4)]
    found = run.validate()
    losses.append(run.train())
    assert losses == pytest.approx(expected, abs=1e-5)
    assert found[0] == pytest.approx(means[0], abs=1e-5) and found[1] == means[1]
    small.assert_same_weights(run.weights(), weights)


SIZE = 8  # Of a tower's batch.


def launch(num_towers, **settings):
  """Returns the audit of a step of ours, without validation, and its program."""
  settings = dict(dict(model='resnet20', schedule='constant', optimizer='momentum'), **settings)
  program = build(num_train=SIZE * num_towers, num_validation=1, batch_size=SIZE * num_towers,
                  num_towers=num_towers, validation='none', **settings)
  return DeviceAudit([program.train_op, program.gradients.metrics]), program


def build_by_hand(like):
  """Returns the audit of a step by hand, with batches like those of a program."""
  tensors = tf.nest.map_structure(lambda tensor: (tensor.shape, tensor.dtype),
                                  list(like.batches[0].tensors))
  with tf.Graph().as_default(), tf.device('/device:GPU:0'), few_blocks():
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
  found, program = launch(1, variables='first')
  ours, by_hand = [count(each, '/device:GPU:0') for each in (found, build_by_hand(program))]
  more = ours - by_hand
  assert sum(ours.values()) - sum(by_hand.values()) <= 10, (more, by_hand - ours)
  # One flag comes back in a step; the loss is fetched beside it.
  back = [copy.tensor for copy in found.to_host()]
  assert [tensor.dtype for tensor in back if '/Mean_grad/' not in tensor.name] == [tf.bool]
  # For XLA, which compiles neither a merge nor a write that follows another, it is one program.
  needed = find_needed(op for op in found.ops if op.type.startswith('ResourceApply'))
  assert not [op.name for op in needed if op.type == 'Merge' or op.type.startswith('Assign')]


def test_four_replicas_launch_fifteen_ops_more_each_beside_collectives():
  found, program = launch(4, variables='replicated')
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
  found, _ = launch(1, variables='first', model=model, optimizer=optimizer)
  guard = [op for op in found.launches if op.name.startswith(('apply/guard/', 'apply/gate/'))
           and op.type in ('ConcatV2', 'Sum', 'AddN', 'Cast')
           and op.inputs[0].shape.num_elements() != 0 and 'AssignSub' not in op.name]
  # Of more than 4,096 elements a sum takes two kernels.
  kernels = [2 if op.type == 'Sum' else 1 for op in guard]
  assert sum(kernels) <= most + (optimizer == 'momentum'), [op.name for op in guard]
