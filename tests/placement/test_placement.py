"""The device of each op and variable, asserted on the graph before anything runs."""

import itertools
import os

import pytest

from tests.harness import small
from towers.base.usage_error import UsageError
from towers.input.feed import build_batches, build_feed
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.placement.devices import Devices, build_devices, build_session_config
from towers.placement.variables import VariableStore, format_device_table
from towers.placement.workers import Workers
from towers.tensorflow_v1 import tf
from towers.tower.towers import build_towers

HOST = '/device:CPU:0'
IS_1 = tf.__version__.startswith('1.')


@pytest.mark.nightly(but='next-1')
@pytest.mark.parametrize('mode, depth', list(itertools.product(small.MODES, small.DEPTHS)))
def test_every_op_of_a_tower_stands_on_its_device(mode, depth):
  with small.Run(mode=mode, num_towers=4, depth=depth) as run:
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
  with small.Run(num_towers=4, placement=placement, optimizer=optimizer) as run, \
      run.graph.as_default():
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
    for gradient, variable in run.program.gradients.gradients:
      assert gradient.device == variable.device
    updates = [op for op in run.graph.get_operations() if op.type.startswith('ResourceApply')]
    assert len(updates) == 4 * (4 if placement == 'replicated' else 1)
    for op in updates:
      assert op.inputs[0].op.device in op.device or op.device == '' and op.colocation_groups()


CPUS, GPUS = [[f'/device:{kind}:{index}' for index in range(2)] for kind in ('CPU', 'GPU')]


@pytest.mark.parametrize('placement, devices, expected', [
    # By bytes: the last three are no more than the first.
    ('balanced', CPUS, [CPUS[0]] + 3 * [CPUS[1]]), ('first', GPUS, 4 * [GPUS[0]]),
    ('host', GPUS, 4 * [HOST])], ids=['balanced', 'first', 'host'])
def test_a_store_places_each_variable_where_it_says(placement, devices, expected):
  with tf.Graph().as_default():
    store = VariableStore(placement=placement, devices=devices)
    with tf.variable_creator_scope(store.creator):
      found = [tf.get_variable(name, [size]).device for name, size in zip('abcd', (20, 4, 12, 3))]
  assert found == expected


def test_a_name_that_is_taken_outside_of_scopes_is_counted_up():
  config = tf.ConfigProto(device_count={'CPU': 2})
  with tf.Graph().as_default(), tf.Session(config=config) as session:
    store = VariableStore(placement='replicated', devices=CPUS)
    with tf.variable_creator_scope(store.creator):
      for size in (3, 4):
        tf.Variable(lambda size=size: tf.random.normal([size]), name='kernel')
    session.run([variable.initializer for variables in (store.made, store.replicas[1])
                 for variable in variables.values()])
    assert list(store.made) == list(store.replicas[1]) == ['kernel', 'kernel_1']
    values = session.run([store.made, store.replicas[1]])
    assert [value.size for value in values[1].values()] == [3, 4]
    assert (values[0]['kernel'] != values[0]['kernel_1'][:3]).all()


def test_a_session_has_all_towers_and_no_others():
  config = build_session_config(build_devices(5, 'cpu'))
  with tf.Session(config=config) as session:
    assert sum(device.device_type == 'CPU' for device in session.list_devices()) == 5
  assert not config.allow_soft_placement


@pytest.fixture
def on_four_cores(monkeypatch):
  for name in ('TF_NUM_INTEROP_THREADS', 'TF_NUM_INTRAOP_THREADS'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr('towers.base.cores.list_cores', lambda: range(4))


def threads(devices=1, **settings):
  """Returns how many ops run at a time, and the threads inside of one."""
  made = build_devices(devices, 'cpu') if isinstance(devices, int) else (
      Devices('GPU', devices, ''))
  config = build_session_config(made, **settings)
  return config.inter_op_parallelism_threads, config.intra_op_parallelism_threads


@pytest.mark.usefixtures('on_four_cores')
def test_threads_are_as_many_as_cores_and_what_the_user_set_wins(monkeypatch):
  assert [threads(count) for count in (1, 2, 3, 8)] == [(4, 4), (4, 2), (4, 1), (4, 1)]
  assert threads(8, inter_threads=3, intra_threads=1) == (3, 1)
  # On 2.x the session of a process of eager mode's threads would have as many as that.
  assert os.environ.get('TF_OVERRIDE_GLOBAL_THREADPOOL') == (None if IS_1 else '1')
  with tf.Graph().as_default(), monkeypatch.context() as shallow:
    shallow.setattr('towers.placement.devices._DEEP_OPS', 1)
    tf.constant(1)
    assert threads(8) == (4, 1)
    tf.constant(1)
    assert threads(8) == (8, 1) and threads(2) == (4, 2)
  assert threads([f'/device:GPU:{tower}' for tower in range(8)])[0] == 8
  with monkeypatch.context() as alone:
    alone.setattr('towers.base.cores.list_cores', lambda: range(1))
    assert threads(1) == (2, 1)
  monkeypatch.setenv('TF_NUM_INTEROP_THREADS', '5')
  assert threads(8) == (0, 1) and threads(8, inter_threads=3) == (3, 1)
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '6')
  assert threads(8) == (0, 0) and threads(8, intra_threads=5) == (0, 5)


@pytest.mark.usefixtures('on_four_cores')
def test_one_small_tower_runs_in_its_callers_thread(monkeypatch):
  def inter(*devices, needs_threads=False, **settings):
    return threads(*devices, needs_threads=needs_threads, **settings)[0]

  with tf.Graph().as_default():
    tf.zeros([128, 255])
    assert inter() == -1 and inter(inter_threads=3) == 3
    assert inter(2) == inter(needs_threads=True) == inter(workers=Workers(2, 0)) == 4
    assert inter(GPUS[:1]) == 4
    tf.zeros([128, 256])
    assert inter() == 4
  monkeypatch.setenv('TF_NUM_INTEROP_THREADS', '5')
  with tf.Graph().as_default():
    assert inter() == 0


@pytest.mark.nightly(but="{'tower_build': 'clone', 'clip_norm': 1.0}")
@pytest.mark.parametrize('settings', [
    dict(depth=1), dict(depth=2, shuffle=True), dict(mode='next'), dict(mode='shard', depth=2),
    dict(accumulate=2), dict(tower_build='clone', clip_norm=1.0)], ids=str)
def test_a_tower_that_is_run_by_its_caller_computes_the_same(settings):
  told = []
  for is_gathered in (True, False):
    splits = dict(train=small.random_examples(24)._replace(is_gathered=is_gathered),
                  validation=small.random_examples(16, 'validation'))
    with small.Run(num_towers=1, **splits, **settings) as run:
      assert (run.session_config.inter_op_parallelism_threads == -1) == is_gathered
      losses = [run.train() for _ in range(7)]
      told.append([losses, run.validate(), [run.train() for _ in range(2)]])
      run.engine.step = 3
      run.engine.start()
      told[-1] += [run.train(), run.weights()['hidden/weights'].tolist()]
  assert told[0] == told[1]
  # An input that is not staged needs threads.
  with small.Run(num_towers=1, train=splits['train'], depth=0) as run:
    assert run.session_config.inter_op_parallelism_threads > 0


@pytest.mark.nightly
@pytest.mark.parametrize('num_workers, needs_threads, sleeps', [
    (1, True, not IS_1), (1, False, False), (2, True, True), (2, False, True)])
def test_idle_threads_sleep_at_once_where_others_need_their_core(num_workers, needs_threads,
                                                                 sleeps):
  config = build_session_config(
      build_devices(2, 'cpu'), workers=Workers(num_workers, 0),
      needs_threads=needs_threads)
  assert config.experimental.disable_thread_spinning == sleeps


POOL, LIMIT = 'TF_CPU_ALLOCATOR_USE_BFC', 'TF_CPU_BFC_MEM_LIMIT_IN_MB'


@pytest.mark.parametrize('shape, dtype, is_large', [
    ([32768], tf.float32, True), ([32767], tf.float32, False), ([131072], tf.uint8, True),
    ([65535], tf.float16, False), ([None, 2], tf.float32, True), (None, tf.float32, True),
    ([], tf.float32, False), (None, tf.string, False)])
def test_a_pool_keeps_tensors_of_128_kib_or_of_unknown_size_on_1_14(shape, dtype, is_large,
                                                                    monkeypatch):
  for name in (POOL, LIMIT):
    monkeypatch.setenv(name, '')  # Else there may be nothing to undo.
    monkeypatch.delenv(name)
  with tf.Graph().as_default():
    # A step does not allocate what is fed.
    fed = tf.placeholder(dtype, shape)
    threads()
    assert POOL not in os.environ
    tf.identity(fed)
    threads()
    assert (POOL in os.environ) == (LIMIT in os.environ) == (IS_1 and is_large)
    monkeypatch.setenv(POOL, '0')
    threads()
    assert os.environ[POOL] == '0'  # What the user has set.


@pytest.mark.parametrize('rewriter, num_ops, is_simplified', [
    ('auto', 20, True), ('auto', 30, False), ('off', 30, False), ('on', 30, True)])
def test_without_a_rewriter_a_deep_graph_keeps_its_ops(rewriter, num_ops, is_simplified,
                                                               monkeypatch):
  monkeypatch.setattr('towers.placement.devices._DEEP_OPS', 20)
  with tf.Graph().as_default():
    for _ in range(num_ops):
      tf.constant(1)
    options = build_session_config(build_devices(2, 'cpu'),
                                   graph_rewriter=rewriter).graph_options
  assert options.rewrite_options.disable_meta_optimizer == (rewriter != 'on')
  assert (options.optimizer_options.opt_level == tf.OptimizerOptions.L1) == is_simplified


@pytest.mark.parametrize('flags, is_rewritten', [
    ('--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit', True),
    ('--tf_xla_cpu_global_jit=true --tf_xla_auto_jit=1', True), ('--tf_xla_auto_jit=2', False),
    ('--tf_xla_auto_jit=-1 --tf_xla_cpu_global_jit', False), ('', False),
    ('--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit=false', False)])
def test_what_xla_compiles_on_cpus_is_rewritten_before(flags, is_rewritten, monkeypatch):
  monkeypatch.setenv('TF_XLA_FLAGS', flags)
  config = build_session_config(build_devices(2, 'cpu'))
  assert config.graph_options.rewrite_options.disable_meta_optimizer != is_rewritten


def test_the_device_table_adds_up():
  with small.Run(num_towers=2, placement='balanced') as run, run.graph.as_default():
    tf.Variable(0.0, use_resource=True)  # On no device, as what is made before a program.
    table = format_device_table(['/device:CPU:0', '/device:CPU:1'], tf.global_variables(),
                                ['tower 0', 'tower 1'])
    lines = table.splitlines()
    assert len(lines) == 4 and lines[-1].split() == ['by', 'TensorFlow', '1', '4']
    assert sum(int(line.split()[-2]) for line in lines[1:]) == len(tf.global_variables()) == 11
    assert sum(int(line.split()[-1]) for line in lines[1:]) == 2 * 4 * (20 + 4 + 12 + 3) + 2 * 8 + 4


def test_auto_takes_gpus_and_says_so_where_there_is_none(monkeypatch):
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: 2)
  found = build_devices(2, 'auto')
  assert found.names == GPUS and found.notice == ''
  assert build_devices(2, 'cpu').kind == 'CPU'
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: 0)
  found = build_devices(8, 'auto')
  assert found.kind == 'CPU' and 'no GPU' in found.notice and '8 towers' in found.notice
  assert build_devices(8, 'cpu').notice == ''


@pytest.mark.parametrize('num_gpus, num_towers, kind, message', [
    (2, 3, 'auto', 'num_towers=3.*sees 2.*num_towers=2'),
    (2, 4, 'gpu', 'num_towers=4.*sees 2.*num_towers=2'), (0, 1, 'gpu', 'sees 0'),
    (0, 0, 'cpu', 'num_towers=0: it must be at least 1'), (0, 2, 'tpu', 'device=tpu: choose one')])
def test_what_is_not_there_is_an_error_before_anything_is_built(num_gpus, num_towers, kind, message,
                                                                monkeypatch):
  monkeypatch.setattr('towers.placement.devices.count_gpus', lambda: num_gpus)
  with pytest.raises(UsageError, match=message):
    build_devices(num_towers, kind)


@pytest.mark.parametrize('part, name', [
    ('store', '/cpu'), ('feed', '/device:GPU'), ('towers', '/cpu'), ('store', ''),
    ('feed', 'gpu 1')])
def test_devices_have_an_index_which_collectives_need(part, name):
  devices = {key: [HOST, name if key == part else '/gpu:1'] for key in ('feed', 'store', 'towers')}
  plan = build_plan(num_examples=8, batch_size=4, num_towers=2)
  with tf.Graph().as_default(), pytest.raises(
      UsageError, match=f"devices has '{name}': name the type and the index"):
    inputs = build_inputs(small.random_examples(8), plan=plan, mode='split')
    batches = build_batches(build_feed(inputs, devices=devices['feed']))
    store = VariableStore(devices=devices['store'])
    build_towers(small.model, batches, devices=devices['towers'], store=store)


def test_an_unknown_placement_is_refused():
  with pytest.raises(UsageError, match="variables=everywhere: choose one of auto, host"):
    VariableStore(placement='everywhere', devices=[HOST])
