"""Collectives: every gradient is summed once, in few fused groups, however they are fused."""

import concurrent.futures
import time

import numpy as np
import pytest

import towers
from tests.harness import small
from tests.harness.counted_links import CountedLinks
from towers.base.usage_error import UsageError
from towers.graph.walk import find_needed
from towers.placement.collectives import choose_collective, sum_packed
from towers.placement.devices import build_devices, build_session_config
from towers.placement.workers import Workers, sum_over_workers
from towers.tensorflow_v1 import tf
from towers.tensorflow_v1.collectives import SUMS_16_BITS
from towers.training.reporting.describe import describe_all_reduce


@pytest.mark.nightly(but='2-0')
@pytest.mark.parametrize('num_towers, pack_bytes', [(2, 0), (3, 60), (4, 4000000), (8, 100)])
def test_the_sums_are_the_sums_on_every_tower_to_the_bit(num_towers, pack_bytes):
  random = np.random.RandomState(0)
  shapes = [(3, 2), (), (5,), (0, 4), (1, 2, 3), (17,)]
  dtypes = [np.float32, np.float32, np.float64, np.float32, np.float32, np.float64]
  values = [[np.asarray(random.randn(*shape), dtype) for shape, dtype in zip(shapes, dtypes)]
            for _ in range(num_towers)]
  devices = [f'/device:CPU:{tower}' for tower in range(num_towers)]
  with tf.Graph().as_default():
    shares = [[tf.constant(value) for value in of_tower] for of_tower in values]
    # Twice in one graph, as for two sets of gradients: the keys of the sums must differ.
    sums, all_reduce = sum_packed(shares, devices=devices, kind='ring', pack_bytes=pack_bytes)
    doubled, _ = sum_packed(sums, devices=devices, kind='ring', pack_bytes=pack_bytes)
    for of_tower, device in zip(sums, devices):
      assert all(total.device == device for total in of_tower)
    with tf.Session(config=tf.ConfigProto(device_count={'CPU': num_towers})) as session:
      found, found_doubled = session.run([sums, doubled])
  assert all_reduce.num_gradients == 6
  assert all_reduce.num_bytes == sum(value.nbytes for value in values[0])
  assert all_reduce.num_collectives == {0: 6, 60: 3, 100: 3, 4000000: 2}[pack_bytes]
  for of_tower in found:
    for index, total in enumerate(of_tower):
      expected = sum(of_other[index].astype(np.float64) for of_other in values)
      np.testing.assert_allclose(total, expected, rtol=0, atol=1e-5)
      assert total.tobytes() == found[0][index].tobytes()
  np.testing.assert_allclose(found_doubled[-1][0], num_towers * found[0][0], rtol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize('fusion_megabytes', small.nightly_but([0.0001], [0.0, 0.0001, 4.0]))
def test_training_does_not_depend_on_fusion(fusion_megabytes):
  num_collectives = {0.0: 4, 0.0001: 2, 4.0: 1}[fusion_megabytes]
  settings = dict(placement='replicated', fusion_megabytes=fusion_megabytes)
  with small.Run(num_towers=3, **settings) as run, small.Run(num_towers=1) as one:
    all_reduce = run.program.gradients.all_reduce
    assert all_reduce.num_collectives == num_collectives
    ops = [op for op in find_needed([run.program.train_op.op])
           if op.type.startswith('CollectiveReduce')]
    assert len(ops) == 3 * num_collectives
    for _ in range(3):
      assert run.train() == pytest.approx(one.train(), abs=1e-6)
    small.assert_same_weights(run.weights(), one.weights())
    if fusion_megabytes == 4.0:
      assert describe_all_reduce(all_reduce) == (
          'all-reduce: 4 gradients of 156 bytes, fused into 1 all-reduce of 156 bytes on average '
          '(ring); 4 messages in a row, each tower sends 208 bytes')


def test_keys_are_those_of_all_workers_and_tell_collectives_apart_that_differ(monkeypatch):
  def keys_of(num_devices, shapes, twice=False):
    devices = [f'/device:CPU:{index}' for index in range(num_devices)]
    with tf.Graph().as_default() as graph:
      for _ in range(2 if twice else 1):
        sum_packed([[tf.zeros(shape) for shape in shapes]] * num_devices, devices=devices,
                  kind='ring', pack_bytes=0)
      ops = [op for op in graph.get_operations() if op.type.startswith('CollectiveReduce')]
      return [(op.get_attr('group_key'), op.get_attr('instance_key')) for op in ops]

  same = keys_of(2, [(3,), (4,)])
  assert same == keys_of(2, [(3,), (4,)]) and len(set(same)) == 2
  assert len(set(keys_of(2, [(3,), (3,)], twice=True))) == 4
  # The last is summed first, so the sums are equal but for their order.
  assert not set(same) & set(keys_of(2, [(4,), (3,)]))
  assert not set(keys_of(2, [(6,)])) & set(keys_of(2, [(2, 3)]))
  # More devices are another group, with other sums.
  for ours, others in zip(zip(*same), zip(*keys_of(3, [(3,), (4,)]))):
    assert set(ours).isdisjoint(others)
  # They differ though their digests are the same.
  monkeypatch.setattr('zlib.crc32', lambda content: 2 ** 32 - 1)
  keys = {key for _, key in keys_of(2, [(3,), (3,)], twice=True)}
  assert len(keys) == 4 and all(2 ** 30 <= key < 2 ** 31 for key in keys)


@pytest.mark.parametrize('num_workers', [1, 2])
def test_keys_fall_in_the_order_in_which_gradients_are_ready(num_workers):
  with tf.Graph().as_default() as graph:
    x = tf.ones([2, 6])
    weights, layer_of = [], {}
    for layer, size in enumerate((5, 4, 3, 2)):
      weights += [tf.get_variable(f'w{layer}', [x.shape[1], size]),
                  tf.get_variable(f'b{layer}', [size])]
      x = tf.tanh(tf.matmul(x, weights[-2]) + weights[-1])
    gradients = tf.gradients(x, weights)
    for index, gradient in enumerate(gradients):
      layer_of[gradient.op] = index // 2
    with tf.device('/device:GPU:0'):
      sums = sum_over_workers(tf.ones([3]), Workers(2))
    sum_packed([gradients] * 2, devices=['/device:GPU:0', '/device:GPU:1'], kind='nccl',
              pack_bytes=0, num_workers=num_workers)

  def find_share(op):
    while op not in layer_of:
      op = op.inputs[0].op
    return op

  ops, shares = [], []
  for device in ('/device:GPU:0', '/device:GPU:1'):
    # TensorFlow starts the collectives of a device by falling keys.
    of_device = [op for op in graph.get_operations() if op.type == 'CollectiveReduce'
                 and op.device == device and op is not sums.op]
    of_device.sort(key=lambda op: -op.get_attr('instance_key'))
    found = [find_share(op) for op in of_device]
    # Several workers sum on one device each, in turn.
    expected = [3, 3, 2, 2, 1, 1, 0, 0] if num_workers == 1 else [3, 2, 1, 0]
    assert [layer_of[share] for share in found] == expected
    ops += of_device
    shares += found if num_workers > 1 or not shares else []
  shares.sort(key=lambda share: -layer_of[share])
  # A gradient needs the gradients of the layers after it.
  needed = [len(find_needed([share])) for share in shares]
  of_layers = [min(needed[index:index + 2]) for index in range(0, 8, 2)]
  assert of_layers == sorted(set(of_layers))
  # Sums of single values, as of moments, do not hold up the gradients that are ready before them.
  assert sums.op.get_attr('instance_key') < min(op.get_attr('instance_key') for op in ops)


def test_the_collective_follows_the_devices():
  cpus, gpus = ['/device:CPU:0', '/device:CPU:1'], ['/device:GPU:0', '/device:GPU:1']
  for kind, devices in (('auto', cpus), ('ring', cpus), ('ring', gpus)):
    assert choose_collective(kind, devices) == 'ring'
  for kind in ('auto', 'nccl'):
    assert choose_collective(kind, gpus) == 'nccl'
  with pytest.raises(UsageError, match='nccl runs on GPUs alone.*CPU:0.*collective=ring'):
    choose_collective('nccl', cpus)
  with pytest.raises(UsageError, match='choose one of auto, ring, nccl'):
    choose_collective('tree', cpus)


def test_what_no_collective_can_sum_is_refused():
  with tf.Graph().as_default():
    shares = [[tf.constant([1, 2], tf.float16, name='wave')]] * 2
    with pytest.raises(UsageError, match='wave is of float16.*variables=host'):
      sum_packed(shares, devices=['/device:CPU:0', '/device:CPU:1'], kind='ring')


@pytest.mark.nightly(but='2-2-float32')
@pytest.mark.parametrize('num_workers, num_towers, wire', [
    (2, 2, 'float32'), (3, 1, 'float32'), *([(2, 2, 'bfloat16')] if SUMS_16_BITS else [])])
def test_workers_send_what_is_told_and_their_towers_add_up_first(num_workers, num_towers, wire):
  dtype = tf.as_dtype(wire)
  random = np.random.RandomState(0)
  values = random.randn(num_workers, num_towers, 2, 150000).astype(np.float32)
  devices = [f'/device:CPU:{tower}' for tower in range(num_towers)]
  links, sessions, sums = CountedLinks(num_workers), [], []
  for rank in range(num_workers):
    workers = Workers(num_workers, rank)
    config = build_session_config(build_devices(num_towers, 'cpu'), workers=workers)
    with tf.Graph().as_default() as graph:
      shares = [list(map(tf.constant, of_tower)) for of_tower in values[rank]]
      found, all_reduce = sum_packed(shares, devices=devices, kind='ring', pack_bytes=0,
                                    num_workers=num_workers,
                                    wires=() if wire == 'float32' else [dtype] * 2)
      ops = [op for op in graph.get_operations() if op.type == 'CollectiveReduce']
      sums.append(found)
    sessions.append(tf.Session(links.target(rank, config), graph=graph, config=config))
  with concurrent.futures.ThreadPoolExecutor(num_workers) as threads:
    def run():
      before = dict(links.passed)
      futures = [threads.submit(*call) for call in zip([s.run for s in sessions], sums)]
      totals = [future.result(60) for future in futures]
      return totals, {way: count - before.get(way, 0) for way, count in links.passed.items()}

    run()
    totals, passed = run()
  links.close()
  # The rings of several workers have a member for each, on the devices in turn.
  assert [op.get_attr('group_size') for op in ops] == [num_workers] * 2
  if wire == 'float32':
    assert {op.device for op in ops} == set(devices)
  in_graph = 2 * (num_workers - 1) * 2 * 150000 * dtype.size // num_workers
  assert all_reduce.sent_bytes == in_graph and all_reduce.num_messages == 2 * (num_workers - 1)
  for rank in range(num_workers):
    sent = sum(count for (source, _), count in passed.items() if source == rank)
    assert in_graph <= sent < 1.05 * in_graph
  expected = values.astype(np.float64).sum((0, 1))
  for of_worker in totals:
    for of_tower in of_worker:
      np.testing.assert_allclose(of_tower, expected, rtol=0,
                                 atol=dict(float32=1e-5, float16=2e-2, bfloat16=0.1)[wire])
      assert np.array(of_tower).tobytes() == np.array(totals[0][0]).tobytes()


@pytest.mark.nightly(but='3')
@pytest.mark.timeout(60)
@pytest.mark.parametrize('num_towers', [2, 3])
def test_a_first_step_ends_where_one_tower_fails_while_the_others_wait_for_it(num_towers):
  def fail(losses):
    time.sleep(1)
    raise ValueError('no such row')

  @small.with_losses
  def model(losses):
    if losses.device.endswith(':1'):
      losses *= tf.reshape(tf.numpy_function(fail, [losses], tf.float32), [-1])
    return losses

  settings = dict(placement='replicated', tower_build='reuse')
  with small.Run(model=model, num_towers=num_towers, **settings) as run, \
      pytest.raises(towers.RunError, match='no such row'):
    run.train()
