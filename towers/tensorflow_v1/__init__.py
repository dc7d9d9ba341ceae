"""TensorFlow as every file here sees it: the 1.x graph API, silent, the same on 1.14 and 2.x.

  from towers.tensorflow_v1 import StagingArea, Tensor, tf

Only this folder imports TensorFlow, so all differences between the two targets are here.
"""

# Before all others, which import parts of TensorFlow.
from towers.tensorflow_v1.load import StagingArea, load_keras, tf

# isort: split
from towers.tensorflow_v1.call import Call
from towers.tensorflow_v1.collectives import SUMS_16_BITS, all_reduce, all_reduce_one_of, broadcast
from towers.tensorflow_v1.compiled_cache import count_compiled
from towers.tensorflow_v1.data_sets import (
    as_written,
    copy_dataset,
    find_last_op,
    flatten_element,
    get_constant,
    get_next_by_reader,
    is_dataset,
    map_by_reader,
    plain_data_options,
    unbatch,
    with_own_thread,
)
from towers.tensorflow_v1.devices import (
    SPINNING_HINDERS,
    compiles_on_cpus,
    get_compute_capabilities,
    give_sessions_threads,
    keep_memory,
    set_gpu_memory,
    uncompiled,
    use_deterministic_kernels,
    use_tf32,
    uses_persistent_batch_norm,
)
from towers.tensorflow_v1.graph_import import import_placed
from towers.tensorflow_v1.norms import other_norms
from towers.tensorflow_v1.ops import (
  MAKES_PLACEHOLDERS,
  control_flow_v1,
  dense_where_mixed,
  loops_keeping,
  naming_layers,
  replaced,
  select,
  without_zeros,
)
from towers.tensorflow_v1.rewiring import replace_tensor, stop_waiting
from towers.tensorflow_v1.sessions import (
    ServerSession,
    SharedSession,
    before_each_run,
    private_session,
)
from towers.tensorflow_v1.types import (
    RUN_ERRORS,
    BaseSession,
    Dataset,
    DType,
    Gradient,
    Graph,
    Operation,
    Optimizer,
    Session,
    SessionInterface,
    Tensor,
    Variable,
    is_run_error,
)
