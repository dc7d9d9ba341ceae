"""Live tensors: the most bytes that a run holds at a time on a device, found without running it.

The ops go as in TensorFlow's executor, with a number of threads:

  an op             is ready once all that it waits for has run; first ready, first run
  a tensor          lives from its op to the last op that takes it
  in its place      an op on single elements writes over its input, if nobody else still reads it
  shared memory     identities, reshapes and sums over no axis take none of their own
  kernels           take some more while they run
  other devices     what a GPU takes from elsewhere is copied as soon as it is there

Constants and variables are there before the run, and batches wait in their staging areas: here they
take nothing. Neither do branches of conditions that are known not to be taken.
"""

import collections
import heapq
import math
from typing import Any, Collection, Dict, List, Optional, Set, Tuple

from tensorflow_v1 import Operation, Tensor, kernel_bytes, multiply
from towers.graph.shapes import Shapes
from towers.graph.sizes import READS_SHAPES

# What is there before the run, or has been made beside it.
_GIVEN = {'Const', 'IteratorGetNext', 'IteratorGetNextSync', 'Placeholder', 'ReadVariableOp',
          'Unstage', 'VarHandleOp', 'VariableV2'}
# Ops whose outputs share the memory of an input.
_ALIASES = {'CheckNumerics', 'EnsureShape', 'Enter', 'Exit', 'ExpandDims', 'Identity', 'LoopCond',
            'Merge', 'NextIteration', 'PlaceholderWithDefault', 'PreventGradient', 'Reshape',
            'Squeeze', 'StopGradient', 'Switch'}
# Ops that write their output over an input of the same size, if nobody else reads it any more.
_IN_PLACE = {
    'Abs', 'Add', 'AddN', 'AddV2', 'BiasAdd', 'Ceil', 'CollectiveReduce', 'CollectiveReduceV2',
    'Cos', 'Div', 'DivNoNan', 'Elu', 'EluGrad', 'Erf', 'Exp', 'Expm1', 'Floor', 'FloorDiv',
    'FusedBatchNorm', 'FusedBatchNormGrad', 'FusedBatchNormGradV2', 'FusedBatchNormGradV3',
    'FusedBatchNormV2', 'FusedBatchNormV3', 'Inv', 'InvGrad', 'LeakyRelu', 'LeakyReluGrad', 'Log',
    'Log1p', 'LogSoftmax', 'LogicalAnd', 'LogicalNot', 'LogicalOr', 'Maximum', 'Minimum', 'Mul',
    'MulNoNan', 'Neg', 'OnesLike', 'Pow', 'RealDiv', 'Reciprocal', 'ReciprocalGrad', 'Relu',
    'Relu6', 'Relu6Grad', 'ReluGrad', 'Round', 'Rsqrt', 'RsqrtGrad', 'Select', 'SelectV2', 'Selu',
    'SeluGrad', 'Sigmoid', 'SigmoidGrad', 'Sign', 'Sin', 'Softmax',
    'SoftmaxCrossEntropyWithLogits', 'Softplus', 'SoftplusGrad', 'Softsign',
    'SparseSoftmaxCrossEntropyWithLogits', 'Sqrt', 'SqrtGrad', 'Square', 'SquaredDifference',
    'Sub', 'Tan', 'Tanh', 'TanhGrad', 'Xdivy', 'Xlogy', 'ZerosLike'}

# Ops that an executor on CPUs runs before others.
_CHEAP = {*_GIVEN, *_ALIASES, *READS_SHAPES}
# Loops pile up what their backward passes take, once for every turn.
_PILES = {'StackPushV2', 'TensorListPushBack'}
# Ops that multiply matrices, or do as much.
_PRODUCTS = {'BatchMatMul', 'BatchMatMulV2', 'Conv2D', 'Conv2DBackpropFilter',
             'Conv2DBackpropInput', 'MatMul'}


class LiveTensors:
  """The ops of a run as an executor takes them, and the tensors that live meanwhile."""

  def __init__(self, ops: Collection[Operation], *, device: str, is_gpu: bool, threads: int = 1,
               false: Optional[Tensor] = None):
    """Finds what each op waits for.

    Args:
      ops: of the run.
      device: whose memory counts.
      is_gpu: whether it is a GPU. CPU devices of one process share what they make.
      threads: of which each runs an op.
      false: a scalar bool that is false in this run, or None.
    """
    self._is_gpu, self._threads, self._false = is_gpu, threads, false
    # Asked once, since TensorFlow answers in a microsecond or two.
    self._types = {op: op.type for op in ops}
    self._inputs: Dict[Operation, List[Tensor]] = {}
    self._controls: Dict[Operation, List[Operation]] = {}
    self._here = {op for op in ops if op.device in (device, '')}
    self._followers: Dict[Operation, List[Operation]] = collections.defaultdict(list)
    self._waiting: Dict[Operation, int] = {}  # How many ops each op waits for.
    self._readers: Dict[Tensor, int] = collections.Counter()  # How many inputs each tensor is.
    for op in sorted(ops, key=lambda op: op._id):
      inputs = self._inputs[op] = list(op.inputs)
      controls = self._controls[op] = op.control_inputs
      # A loop's second turn does not wait for itself.
      sources = [source for source in [tensor.op for tensor in inputs]
                 if self._types.get(source, 'NextIteration') != 'NextIteration']
      sources += [source for source in controls if source in self._types]
      for source in sources:
        self._followers[source].append(op)
      self._waiting[op] = len(sources)
      if self._keeps(op):
        for tensor in inputs:
          self._readers[tensor] += 1
    # Writes of single rows go to a variable's own memory, so its reads are copies.
    self._copied = {self._inputs[op][0] for op, kind in self._types.items()
                    if kind.startswith('ResourceScatter')}

  def find_peak(self, rows: int) -> Tuple[int, List[str]]:
    """Returns the most bytes for a batch of `rows` examples, and what counts as nothing since its
    size depends on values."""
    run = _Run(rows, self._false)
    waiting = dict(self._waiting)
    ready = collections.deque(op for op, count in waiting.items() if not count)
    running: List[Tuple[float, int, Operation]] = []
    now = 0.0
    while ready or running:
      if ready and len(running) < self._threads:
        op = ready.popleft()
        heapq.heappush(running, (now + self._begin(op, run), op._id, op))
        continue
      now, _, op = heapq.heappop(running)
      self._end(op, run)
      for follower in self._followers[op]:
        waiting[follower] -= 1
        if waiting[follower]:
          continue
        if not self._is_gpu and self._types[follower] in _CHEAP:
          ready.appendleft(follower)
        else:
          ready.append(follower)
    return run.peak, run.shapes.unknown

  def _keeps(self, op):
    """Returns whether an op keeps what it takes on this device."""
    return op in self._here or not self._is_gpu

  def _begin(self, op, run):
    """Gives the outputs of an op their memory; returns how long it takes, in some unit."""
    kind, inputs = self._types[op], self._inputs[op]
    if run.is_dead(op, kind, inputs, self._controls[op]):
      return 0.0
    run.shapes.add(op)
    if kind in _PILES:
      run.shapes.unknown.append(op.name)
    is_here = op in self._here
    is_given = kind in _GIVEN and not (kind == 'ReadVariableOp' and inputs[0] in self._copied)
    for output in op.outputs:
      if output not in run.dead and (
          not is_given if is_here else self._is_gpu and self._readers[output]):
        self._place(op, output, run, is_here)
        run.hold(output, 1 + self._readers[output])  # One is the op itself, while it runs.
    if is_here and not self._is_gpu:
      taken = kernel_bytes(op, run.shapes.find, threads=self._threads)
      if taken:
        run.take(op, taken)
        run.hold(op, 1)
    if self._threads == 1 or kind in _CHEAP:
      return 0.0
    return _guess_duration(op, run.shapes)

  def _end(self, op, run):
    for tensor in [op, *op.outputs, *(self._inputs[op] if self._keeps(op) else ())]:
      run.release(tensor)

  def _place(self, op, output, run, is_here):
    """Gives a tensor memory of its own, or that of an input."""
    kind, inputs = self._types[op], self._inputs[op]
    if is_here and kind in _ALIASES:
      run.share(output, next(tensor for tensor in inputs if tensor not in run.dead))
      return
    num_bytes = run.shapes.count_bytes(output)
    if is_here and kind == 'Sum' and num_bytes == run.shapes.count_bytes(inputs[0]):
      run.share(output, inputs[0])  # Over no axis.
      return
    if is_here and kind in _IN_PLACE:
      for tensor in inputs:
        if tensor.dtype == output.dtype and run.is_spare(tensor, num_bytes):
          run.share(output, tensor)
          return
    run.take(output, num_bytes)


def _guess_duration(op, shapes):
  """Returns about how long an op takes on a CPU: as many bytes as it could move meanwhile."""
  num_bytes = [shapes.count_bytes(tensor) for tensor in [*op.inputs, *op.outputs]]
  duration = float(sum(num_bytes))
  if op.type in _PRODUCTS:
    # Of matrices the root of all sizes is the number of products.
    duration += math.sqrt(multiply(sorted(num_bytes)[-3:])) / 16
  return duration


class _Run:
  """Buffers, each named after the first tensor in it or the op whose kernel takes it.

  Attributes:
    shapes: of the tensors so far.
    dead: ops and tensors of branches that are not taken.
    live: bytes of all buffers.
    peak: the most of these.
  """

  def __init__(self, rows, false):
    self.shapes = Shapes(rows)
    self.dead: Set[Any] = set()
    self.live = self.peak = 0
    self._known = {} if false is None else {false: False}
    self._buffers: Dict[Any, Any] = {}
    self._sizes: Dict[Any, int] = {}
    self._readers: Dict[Any, int] = {}

  def is_dead(self, op, kind, inputs, controls):
    """Returns whether an op is in a branch that is not taken, and finds which of its outputs are.
    """
    are_dead = [tensor in self.dead for tensor in inputs]
    if any(source in self.dead for source in controls) or (
        all(are_dead) if kind == 'Merge' and inputs else any(are_dead)):
      self.dead.add(op)
      self.dead.update(op.outputs)
      return True
    if kind == 'Switch' and inputs[1] in self._known:
      self.dead.add(op.outputs[not self._known[inputs[1]]])
    elif kind in ('Identity', 'LogicalNot') and inputs[0] in self._known:
      self._known[op.outputs[0]] = self._known[inputs[0]] != (kind == 'LogicalNot')
    return False

  def take(self, tensor, num_bytes):
    """Gives a tensor a buffer."""
    self._buffers[tensor] = tensor
    self._sizes[tensor], self._readers[tensor] = num_bytes, 0
    self.live += num_bytes
    self.peak = max(self.peak, self.live)

  def share(self, tensor, other):
    """Puts a tensor where another one is; what is there before the run has no buffer."""
    if other in self._buffers:
      self._buffers[tensor] = self._buffers[other]

  def is_spare(self, tensor, num_bytes):
    """Returns whether a tensor has one reader left, and so many bytes."""
    buffer = self._buffers.get(tensor)
    return buffer is not None and self._readers[buffer] == 1 and self._sizes[buffer] == num_bytes

  def hold(self, tensor, readers):
    """Keeps a tensor for as many readers."""
    if tensor in self._buffers:
      self._readers[self._buffers[tensor]] += readers

  def release(self, tensor):
    """Takes one reader from a tensor; the last one frees its buffer."""
    if tensor in self._buffers:
      buffer = self._buffers[tensor]
      self._readers[buffer] -= 1
      if not self._readers[buffer]:
        self.live -= self._sizes[buffer]
