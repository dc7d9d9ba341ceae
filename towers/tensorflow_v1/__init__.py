"""TensorFlow as every file here sees it: the 1.x graph API, silent, the same on 1.14 and 2.x.

  from towers.tensorflow_v1 import StagingArea, Tensor, tf

Only this folder imports TensorFlow, so all differences between the two targets are here. What one
file alone takes it takes from a module, as `data_sets.unbatch`.
"""

# Before all others, which import parts of TensorFlow.
from towers.tensorflow_v1.load import StagingArea, load_keras, tf

# isort: split
from towers.tensorflow_v1 import collectives, compiled_cache, data_sets, devices, sessions
from towers.tensorflow_v1.call import Call
from towers.tensorflow_v1.data_sets import as_written
from towers.tensorflow_v1.devices import uncompiled, use_deterministic_kernels, use_tf32
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
from towers.tensorflow_v1.sessions import ServerSession, SharedSession, private_session
from towers.tensorflow_v1.types import (
    RUN_ERRORS,
    BaseSession,
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
