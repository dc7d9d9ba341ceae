"""The device of each op and variable, asserted on the graph before anything runs."""

import itertools
import os
import subprocess
import sys

import pytest

import towers
from tensorflow_v1 import tf
from tests import ROOT
from tests.harness import small
from tests.harness.small import Run
from towers.base.usage_error import UsageError

HOST = '/device:CPU:0'


@pytest.mark.nightly(but='next-1')
@pytest.mark.parametrize('mode, depth', list(itertools.product(small.MODES, small.DEPTHS)))
def test_every_op_of_a_tower_stands_on_its_device(mode, depth):
  with Run(mode=mode, num_towers=4, depth=depth) as run:
    gradient_ops = 0
    for op in run.graph.get_operations():
      # A variable is read on its device, and the value is sent to the tower.
      if op.name.startswith('tower_') and op.type != 'ReadVariableOp':
        tower = int(op.name.split('/')[0][len('tower_'):])
        assert op.device == f'/device:CPU:{tower}', op.name
        gradient_ops += '/gradients/' in op.name
      if op.type.startswith('Iterator') or op.type.endswith('Dataset') or op.type.endswith(
          'DatasetV2'):
        assert op.device == HOST, op.name
    assert gradient_ops > 4 * 10


@pytest.mark.nightly(but='first-adam')
@pytest.mark.parametrize('placement, optimizer',
                         list(itertools.product(small.PLACEMENTS, ['momentum', 'adam'])))
def test_variables_and_their_slots_stand_where_the_placement_says(placement, optimizer):
  with Run(num_towers=4, placement=placement, optimizer=optimizer) as run, run.graph.as_default():
    assert all(op.type != 'VariableV2' for op in run.graph.get_operations())
    device_of = {variable.op.name: variable.device for variable in tf.global_variables()}
    trainable = {variable.op.name: variable.device for variable in tf.trainable_variables()}
    if placement == 'balanced':
      # Greedy by bytes in the order of creation: 5×4 weights, 4 biases, 4×3 weights, 3 biases over
      # four towers.
      assert trainable == {'hidden/weights': '/device:CPU:0', 'hidden/biases': '/device:CPU:1',
                           'logits/weights': '/device:CPU:2', 'logits/biases': '/device:CPU:3'}
    else:
      assert set(trainable.values()) == {HOST}
    for name, device in trainable.items():
      slots = [other for other in device_of if other.startswith(name + '/')]
      assert slots and {device_of[slot] for slot in slots} == {device}
    assert not [name for name in device_of if 'tower' in name]


def test_balancing_is_by_bytes():
  devices = ['/device:CPU:0', '/device:CPU:1']
  with tf.Graph().as_default():
    store = towers.build_variable_store(placement='balanced', devices=devices)
    with tf.variable_creator_scope(store.creator):
      found = [tf.get_variable(name, [size]).device for name, size in zip('abcd', (20, 4, 12, 3))]
  # The last three are no more bytes than the first.
  assert found == [devices[0]] + 3 * [devices[1]]


def test_the_first_tower_is_where_first_says():
  with tf.Graph().as_default():
    store = towers.build_variable_store(placement='first', devices=['/device:GPU:0',
        '/device:GPU:1'], seed=0)
    with tf.variable_creator_scope(store.creator):
      assert [tf.get_variable(name, [3]).device for name in 'ab'] == ['/device:GPU:0'] * 2
    store = towers.build_variable_store(placement='host', devices=['/device:GPU:0'], seed=0)
    with tf.variable_creator_scope(store.creator):
      assert tf.get_variable('c', [3]).device == HOST


def test_a_name_that_is_taken_outside_of_scopes_is_counted_up():
  config = tf.ConfigProto(device_count={'CPU': 2})
  with tf.Graph().as_default(), tf.Session(config=config) as session:
    devices = ['/device:CPU:0', '/device:CPU:1']
    store = towers.build_variable_store(placement='replicated', devices=devices)
    with tf.variable_creator_scope(store.creator):
      for size in (3, 4):
        tf.Variable(lambda size=size: tf.random.normal([size]), name='kernel')
    session.run([variable.initializer for variables in (store.made, store.replicas[1])
                 for variable in variables.values()])
    assert list(store.made) == list(store.replicas[1]) == ['kernel', 'kernel_1']
    values = session.run([store.made, store.replicas[1]])
    assert [value.size for value in values[1].values()] == [3, 4]
    assert (values[0]['kernel'] != values[0]['kernel_1'][:3]).all()


def test_averages_and_updates_stand_with_their_variable():
  with Run(num_towers=3, placement='balanced') as run:
    for gradient, variable in run.program.gradients.gradients:
      assert gradient.device == variable.device
    updates = [op for op in run.graph.get_operations() if op.type.startswith('ResourceApply')]
    assert len(updates) == 4
    for op in updates:
      assert op.inputs[0].op.device in op.device or op.device == '' and op.colocation_groups()


def test_a_session_has_all_towers_and_no_others():
  config = towers.build_session_config(towers.build_devices(5, 'cpu'))
  with tf.Session(config=config) as session:
    assert sum(device.device_type == 'CPU' for device in session.list_devices()) == 5
  assert not config.allow_soft_placement


def test_threads_are_as_many_as_cores_and_what_the_user_set_wins(monkeypatch):
  for name in ('TF_NUM_INTEROP_THREADS', 'TF_NUM_INTRAOP_THREADS'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(4))

  def threads(num_towers, **settings):
    config = towers.build_session_config(towers.build_devices(num_towers, 'cpu'), **settings)
    return config.inter_op_parallelism_threads, config.intra_op_parallelism_threads

  assert threads(1) == (4, 4)
  assert threads(2) == (4, 2)
  assert threads(3) == (4, 1)
  assert threads(8) == (4, 1)
  assert threads(8, inter_threads=3, intra_threads=1) == (3, 1)
  with tf.Graph().as_default(), monkeypatch.context() as shallow:
    shallow.setattr('towers.placement.devices._DEEP_OPS', 1)
    tf.constant(1)
    assert threads(8) == (4, 1)
    tf.constant(1)
    assert threads(8) == (8, 1) and threads(2) == (4, 2)
  gpus = towers.Devices('GPU', [f'/device:GPU:{tower}' for tower in range(8)], '')
  assert towers.build_session_config(gpus).inter_op_parallelism_threads == 8
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(1))
  assert threads(1) == (2, 1)
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(4))
  monkeypatch.setenv('TF_NUM_INTEROP_THREADS', '5')
  assert threads(8) == (0, 1)
  assert threads(8, inter_threads=3) == (3, 1)
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '6')
  assert threads(8) == (0, 0)
  assert threads(8, intra_threads=5) == (0, 5)


def test_one_small_tower_runs_in_its_callers_thread(monkeypatch):
  monkeypatch.delenv('TF_NUM_INTEROP_THREADS', raising=False)
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(4))

  def threads(num_towers=1, needs_threads=False, **settings):
    devices = towers.build_devices(num_towers, 'cpu')
    config = towers.build_session_config(devices, needs_threads=needs_threads, **settings)
    return config.inter_op_parallelism_threads

  with tf.Graph().as_default():
    tf.zeros([128, 255])
    assert threads() == -1
    assert threads(2) == threads(needs_threads=True) == threads(workers=towers.Workers(2, 0)) == 4
    assert threads(inter_threads=3) == 3
    gpu = towers.Devices('GPU', ['/device:GPU:0'], '')
    assert towers.build_session_config(gpu, needs_threads=False).inter_op_parallelism_threads == 4
    tf.zeros([128, 256])
    assert threads() == 4
  monkeypatch.setenv('TF_NUM_INTEROP_THREADS', '5')
  with tf.Graph().as_default():
    assert threads() == 0


@pytest.mark.nightly(but=["{'depth': 1}", "{'tower_build': 'clone', 'clip_norm': 1.0}"])
@pytest.mark.parametrize('settings', [
    dict(depth=1), dict(depth=2, shuffle=True), dict(mode='next'), dict(mode='shard', depth=2),
    dict(accumulate=2), dict(tower_build='clone', clip_norm=1.0)], ids=str)
def test_a_tower_that_is_run_by_its_caller_computes_the_same(settings):
  told = []
  for is_gathered in (True, False):
    splits = dict(train=small.random_examples(24)._replace(is_gathered=is_gathered),
                  validation=small.random_examples(16, 'validation'))
    with Run(num_towers=1, **splits, **settings) as run:
      assert (run.session_config.inter_op_parallelism_threads == -1) == is_gathered
      losses = [run.train() for _ in range(7)]
      told.append([losses, run.validate(), [run.train() for _ in range(2)]])
      run.steps.start(3)
      told[-1] += [run.train(), run.weights()['hidden/weights'].tolist()]
  assert told[0] == told[1]


def test_a_tower_whose_input_is_not_staged_has_threads():
  even = small.random_examples(16)
  with Run(num_towers=1, depth=0, train=even, validation_kind='none') as run:
    assert run.session_config.inter_op_parallelism_threads > 0


@pytest.mark.nightly
@pytest.mark.parametrize('num_workers, needs_threads, sleeps',
                         [(1, True, not tf.__version__.startswith('1.')), (1, False, False),
                          (2, True, True), (2, False, True)])
def test_idle_threads_sleep_at_once_where_others_need_their_core(num_workers, needs_threads,
                                                                 sleeps):
  config = towers.build_session_config(towers.build_devices(2, 'cpu'),
                                       workers=towers.Workers(num_workers,
                                                              0), needs_threads=needs_threads)
  assert config.experimental.disable_thread_spinning == sleeps


_PROGRAM_OF_THREADS = '''
import os, sys
from tensorflow_v1 import tf
import towers

devices = towers.build_devices(2, 'cpu')
examples = tf.data.Dataset.range(4).map(lambda number: number + 1)
config = towers.build_session_config(devices, intra_threads=int(sys.argv[1]), inter_threads=2)
with tf.Session(config=config) as session:
  session.run(tf.matmul(tf.ones([64, 64]), tf.ones([64, 64])))
  print(len(os.listdir('/proc/self/task')))
'''


def _count_threads(count, **environ):
  """Returns the threads of a process whose session asks for `count` inside of an op."""
  environ = dict({name: value for name, value in os.environ.items() if name not in (
      'TF_OVERRIDE_GLOBAL_THREADPOOL', 'TF_NUM_INTRAOP_THREADS')}, **environ)
  told = subprocess.run([sys.executable, '-c', _PROGRAM_OF_THREADS,
                         str(count)], cwd=ROOT, env=environ, check=True, stdout=subprocess.PIPE)
  return int(told.stdout.decode().split()[-1])


@pytest.mark.nightly
@pytest.mark.skipif(not os.path.isdir('/proc/self/task'),
                    reason='this system does not list threads')
def test_an_ops_threads_are_as_many_as_the_session_says():
  # On 1.14 all devices share them.
  assert _count_threads(9) - _count_threads(3) == (6 if tf.__version__.startswith('1.') else 2 * 6)


@pytest.mark.parametrize('rewriter, num_ops, is_simplified', [
    ('auto', 20, True), ('auto', 30, False), ('off', 30, False), ('on', 30, True)])
def test_without_a_rewriter_a_deep_graph_keeps_its_ops(rewriter, num_ops, is_simplified,
                                                               monkeypatch):
  monkeypatch.setattr('towers.placement.devices._DEEP_OPS', 20)
  with tf.Graph().as_default():
    for _ in range(num_ops):
      tf.constant(1)
    options = towers.build_session_config(towers.build_devices(2, 'cpu'),
                                          graph_rewriter=rewriter).graph_options
  assert options.rewrite_options.disable_meta_optimizer == (rewriter != 'on')
  assert (options.optimizer_options.opt_level == tf.OptimizerOptions.L1) == is_simplified


@pytest.mark.parametrize('flags, is_rewritten', [
    ('--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit', True), (
        '--tf_xla_cpu_global_jit=true --tf_xla_auto_jit=1', True),
    ('--tf_xla_auto_jit=2', False), ('--tf_xla_auto_jit=-1 --tf_xla_cpu_global_jit', False),
    ('--tf_xla_auto_jit=0 --tf_xla_cpu_global_jit', False), ('--tf_xla_clustering_fuel=0', False), (
        '', False),
    ('--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit=false', False)])
def test_what_xla_compiles_on_cpus_is_rewritten_before(flags, is_rewritten, monkeypatch):
  monkeypatch.setenv('TF_XLA_FLAGS', flags)
  options = towers.build_session_config(towers.build_devices(2,
                                                             'cpu')).graph_options.rewrite_options
  assert options.disable_meta_optimizer != is_rewritten


def test_the_device_table_adds_up():
  with Run(num_towers=2, placement='balanced') as run, run.graph.as_default():
    table = towers.format_device_table(['/device:CPU:0', '/device:CPU:1'], tf.global_variables(),
                                       ['tower 0', 'tower 1'])
    lines = table.splitlines()
    assert len(lines) == 3
    assert sum(int(line.split()[-2]) for line in lines[1:]) == len(tf.global_variables()) == 10
    assert sum(int(line.split()[-1]) for line in lines[1:]) == 2 * 4 * (20 + 4 + 12 + 3) + 2 * 8


def test_fewer_gpus_than_asked_for_is_an_error_before_anything_is_built(monkeypatch):
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: 2)
  assert towers.build_devices(2, 'auto').names == ['/device:GPU:0', '/device:GPU:1']
  assert towers.build_devices(2, 'auto').notice == ''
  assert towers.build_devices(2, 'cpu').kind == 'CPU'
  for kind, count in itertools.product(('auto', 'gpu'), (3, 4)):
    with pytest.raises(UsageError, match=f'num_towers={count}.*sees 2.*num_towers=2'):
      towers.build_devices(count, kind)


def test_without_a_gpu_auto_says_so_and_gpu_refuses(monkeypatch):
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: 0)
  devices = towers.build_devices(8, 'auto')
  assert devices.kind == 'CPU' and 'no GPU' in devices.notice and '8 towers' in devices.notice
  assert towers.build_devices(8, 'cpu').notice == ''
  with pytest.raises(UsageError, match='sees 0'):
    towers.build_devices(1, 'gpu')


@pytest.mark.parametrize('part, name', [
    ('store', '/cpu'), ('feed', '/device:GPU'), ('towers', '/cpu'), ('store', ''),
    ('feed', 'gpu 1')])
def test_devices_have_an_index_which_collectives_need(part, name):
  devices = {key: [HOST, name if key == part else '/gpu:1']
             for key in ('feed', 'store', 'towers')}
  plan = towers.build_plan(num_examples=8, batch_size=4, num_towers=2)
  with tf.Graph().as_default(), pytest.raises(
      UsageError, match=f"devices has '{name}': name the type and the index"):
    inputs = towers.build_inputs(small.random_examples(8), plan=plan, mode='split')
    batches = towers.build_batches(towers.build_feed(inputs, devices=devices['feed']))
    store = towers.build_variable_store(devices=devices['store'])
    towers.build_towers(small.model, batches, devices=devices['towers'], store=store)


@pytest.mark.parametrize('build', [
    lambda: towers.build_devices(0, 'cpu'),
    lambda: towers.build_devices(2, 'tpu'),
    lambda: towers.build_variable_store(placement='everywhere', devices=[HOST], seed=0),
])
def test_wrong_settings_are_refused(build):
  with pytest.raises(UsageError):
    build()
