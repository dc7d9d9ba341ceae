"""TensorFlow as every file here sees it: the 1.x graph API, silent, the same on 1.14 and 2.x.

  from tensorflow_v1 import StagingArea, Tensor, tf

Only this folder imports TensorFlow, so all differences between the two targets are here.
"""

# Before all others, which import parts of TensorFlow.
from tensorflow_v1.load import StagingArea, load_keras, tf

# isort: split
import tensorflow_v1.gradients  # noqa: F401
from tensorflow_v1.before_runs import before_each_run
from tensorflow_v1.call import Call
from tensorflow_v1.collectives import (
    SUMS_16_BITS,
    all_reduce,
    all_reduce_one_of,
    broadcast,
)
from tensorflow_v1.compiled_cache import count_compiled
from tensorflow_v1.constants import get_constant
from tensorflow_v1.data_sets import (
    as_written,
    copy_dataset,
    find_last_op,
    get_next_by_reader,
    is_dataset,
    map_by_reader,
    plain_data_options,
    unbatch,
    with_own_thread,
)
from tensorflow_v1.devices import (
    SPINNING_HINDERS,
    compiles_on_cpus,
    get_compute_capabilities,
    give_sessions_threads,
    keep_memory,
    private_session,
    set_gpu_memory,
    use_deterministic_kernels,
    use_tf32,
    uses_persistent_batch_norm,
)
from tensorflow_v1.graph_import import import_placed
from tensorflow_v1.kernels import TAKING_KERNELS, kernel_bytes, multiply
from tensorflow_v1.select import select
from tensorflow_v1.server_session import ServerSession
from tensorflow_v1.types import (
    Dataset,
    DType,
    Gradient,
    Graph,
    Operation,
    Optimizer,
    Session,
    Tensor,
    Variable,
)

__all__ = [
    'Call', 'DType', 'Dataset', 'Gradient', 'Graph', 'Operation', 'Optimizer', 'SPINNING_HINDERS',
    'SUMS_16_BITS', 'ServerSession', 'Session', 'StagingArea', 'TAKING_KERNELS', 'Tensor',
    'Variable', 'all_reduce', 'all_reduce_one_of', 'as_written', 'before_each_run', 'broadcast',
    'compiles_on_cpus', 'copy_dataset', 'count_compiled', 'find_last_op',
    'get_compute_capabilities', 'get_constant', 'get_next_by_reader', 'give_sessions_threads',
    'import_placed', 'is_dataset', 'keep_memory', 'kernel_bytes', 'load_keras', 'map_by_reader',
    'multiply', 'plain_data_options', 'private_session', 'select', 'set_gpu_memory', 'tf',
    'unbatch', 'use_deterministic_kernels', 'use_tf32', 'uses_persistent_batch_norm',
    'with_own_thread',
]
