"""What only GPUs would show: copies between host and device, and the order of collectives."""

from tests.mutants.mutant import mutants_of

_COPIES = 'test_few_tensors_are_copied_between_host_and_device[small]'

MUTANTS = [
    *mutants_of(
        'towers/placement/collectives.py', tests='tests/reduce/test_collectives.py', faults=[
            ('+ index for index in reversed(range(count))]', '+ index for index in range(count)]',
             'the gradients that are known last are summed first',
             'test_keys_fall_in_the_order_in_which_gradients_are_ready[1]'),
            ("'sum', facts, group_size, lowest=_LOWEST_OF_GRADIENTS)", "'sum', facts, group_size)",
             'gradients wait for the moments of layers before them',
             'test_keys_fall_in_the_order_in_which_gradients_are_ready[1]'),
        ]),
    *mutants_of(
        'towers/placement/devices.py', tests='tests/placement/test_gpu_memory.py', faults=[
            ("on_gpus and collective != 'ring' and not devices.memory.num_logical)",
             "on_gpus and collective != 'ring')", 'NCCL is asked for two towers on one GPU',
             'test_logical_gpus_are_towers_on_one_gpu_with_a_ring'),
            ('    _take_memory(memory)\n', '', 'eager mode takes all memory first',
             'test_each_text_sets_one_option[growth-expected1]'),
        ]),
    *mutants_of(
        'towers/update/guard.py', tests='tests/update/test_guard.py', faults=[
            ('on_device.setdefault((total.dtype, tensor.device), [])',
             'on_device.setdefault((total.dtype, total.name), [])',
             'each gradient sends a number to the host',
             'test_each_average_is_checked_once_on_its_own_device'),
        ]),
    *mutants_of(
        'towers/training_graph.py', tests='tests/placement/test_device_audit.py', faults=[
            ('      with tf.device(HOST):\n        is_validating =',
             '      with tf.device(None):\n        is_validating =',
             'TensorFlow places the predicate of validation on a GPU',
             'test_each_op_on_a_gpu_has_a_kernel_there[small]'),
        ]),
    *mutants_of(
        'towers/training/tools/autotune.py', tests='tests/training/tools/test_autotune.py', faults=[
            ("placements = ('first',) if on_gpu else ()", 'placements = ()',
             'weights of one tower on a GPU stay on the host',
             'test_weights_beside_a_tower_are_tried_on_a_gpu[gpu-gpus0-1-expected0]'),
        ]),
    *mutants_of(
        'benchmarks/harness/benchmark_process.py', tests='tests/benchmarks/test_gpu.py', faults=[
            ("if task.kind == 'GPU':", "if task.kind == 'gpu':",
             'the first of several processes takes all memory of a GPU',
             'test_processes_that_are_there_at_once_share_a_gpu[GPU-None-true]'),
        ]),
    *mutants_of(
        'towers/validation.py', tests='tests/placement/test_device_audit.py', faults=[
            ("with tf.device(tower.device), tf.name_scope('measure'):",
             "with tf.device(HOST), tf.name_scope('measure'):",
             'each metric of each tower comes back from its GPU',
             'test_a_validation_step_sends_one_vector_from_each_tower[small]'),
        ]),
    *mutants_of(
        'towers/input/feed.py', tests='tests/placement/test_device_audit.py', faults=[
            ('return is_gpu(device) and value.dtype == tf.int32', 'return value.dtype == tf.bool',
             'labels come back from a GPU to be switched', _COPIES),
        ]),
    *mutants_of(
        'staging/area.py', tests='tests/placement/test_device_audit.py', faults=[
            ('[is_gpu(device) and tensor.shape.ndims == 0 for tensor in tensors]',
             '[False for tensor in tensors]',
             'the number of examples comes back from a GPU', _COPIES),
            ('put_op._add_control_input(other)', 'pass',
             'the host\'s area beside a GPU stays empty',
             'test_what_gpus_keep_on_the_host_is_the_same_batch[split-1]'),
        ]),
    *mutants_of(
        'towers/placement/randomness.py', tests='tests/placement/test_device_audit.py', faults=[
            ('seed = tf.stack([tf.constant(key, tf.int32, name=_KEY), micro_batch])',
             'seed = tf.stack([tf.constant(key, tf.int64, name=_KEY), '
             'tf.cast(micro_batch, tf.int64)])', 'seeds are packed on a GPU', _COPIES),
        ]),
    *mutants_of(
        'towers/placement/replicas.py', tests='tests/placement/test_device_audit.py', faults=[
            ('_BITS = tf.int16', '_BITS = tf.int32',
             'all weights go to the host when a checkpoint is saved',
             'test_replicas_are_compared_where_they_are'),
        ]),
]
