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
from typing import Dict, List, Optional, Tuple

from tensorflow_v1 import TAKING_KERNELS, kernel_bytes, multiply
from towers.graph.numbered import NumberedOps
from towers.graph.shapes import Shapes, static_bytes
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
# Ops whose outputs have static shapes.
_STATIC = {'Const', 'VarHandleOp'}
# Loops pile up what their backward passes take, once for every turn.
_PILES = {'StackPushV2', 'TensorListPushBack'}
# Ops that multiply matrices, or do as much.
_PRODUCTS = {'BatchMatMul', 'BatchMatMulV2', 'Conv2D', 'Conv2DBackpropFilter',
             'Conv2DBackpropInput', 'MatMul'}


class LiveTensors:
  """The ops of a run as an executor takes them, and the tensors that live meanwhile."""

  def __init__(self, run: NumberedOps, *, device: str, is_gpu: bool, threads: int = 1):
    """Finds what each op gives memory to and lets go.

    Args:
      run: all ops.
      device: whose memory counts.
      is_gpu: whether it is a GPU. CPU devices of one process share what they make.
      threads: of which each runs an op.
    """
    self._run, self._is_gpu, self._threads = run, is_gpu, threads
    self._readers = [0] * len(run.tensors)  # How many inputs each tensor is.
    self._given: List[List[int]] = [[] for _ in run.ops]
    self._sources: Dict[int, int] = {}  # Of tensors that share the memory of another one.
    self._spares: Dict[int, List[int]] = {}  # Tensors in whose place one may be written.
    self._sums: List[Tuple[int, int]] = []
    self._kernels: List[int] = []
    self._give((device, ''))
    self._working = [op for op in run.order if threads > 1 and run.kinds[op] not in _CHEAP]
    self._sizes: List[Optional[int]] = [None] * len(run.tensors)
    self._open_ops = [op for op in run.order
                      if run.kinds[op] not in _STATIC and not self._measure(run.outputs[op])]
    counted = {tensor for given in self._given for tensor in given}
    counted.update(tensor for _, tensor in self._sums)
    for op in self._working:
      counted.update(run.inputs[op], run.outputs[op])
    self._open_tensors = [tensor for tensor in counted if self._sizes[tensor] is None
                          and not self._measure([tensor])]

  def _give(self, here):
    """Finds the tensors to which ops give memory, and those whose memory they may have instead."""
    run = self._run
    keeps = [not self._is_gpu or op.device in here for op in run.ops]
    for inputs, keeps_inputs in zip(run.inputs, keeps):
      if keeps_inputs:
        for tensor in inputs:
          self._readers[tensor] += 1
    # Writes of single rows go to a variable's own memory, so its reads are copies.
    copied = {inputs[0] for kind, inputs in zip(run.kinds, run.inputs)
              if kind.startswith('ResourceScatter')}
    for op in run.order:
      kind = run.kinds[op]
      is_there = kind in _GIVEN and not (kind == 'ReadVariableOp' and run.inputs[op][0] in copied)
      if is_there and not self._is_gpu:
        continue
      if run.ops[op].device not in here:
        if self._is_gpu:
          self._given[op] = [tensor for tensor in run.outputs[op]
                             if self._readers[tensor] and tensor not in run.dead]
      elif not is_there:
        self._given[op] = [tensor for tensor in run.outputs[op] if tensor not in run.dead]
        self._place(op, kind)
    self._freed = [given + inputs if keeps_inputs else given
                   for given, inputs, keeps_inputs in zip(self._given, run.inputs, keeps)]

  def _place(self, op, kind):
    run, inputs = self._run, self._run.inputs[op]
    if kind in _ALIASES:
      source = next(tensor for tensor in inputs if tensor not in run.dead)
      for tensor in self._given[op]:
        self._sources[tensor] = source
    elif kind == 'Sum':
      self._sums.append((run.outputs[op][0], inputs[0]))
    elif kind in _IN_PLACE:
      for tensor in self._given[op]:
        dtype = run.tensors[tensor].dtype
        self._spares[tensor] = [other for other in inputs if run.tensors[other].dtype is dtype]
    elif kind in TAKING_KERNELS and not self._is_gpu:
      self._kernels.append(op)

  def _measure(self, tensors):
    """Returns whether the shapes of tensors are static; then their bytes are known."""
    is_static = True
    for tensor in tensors:
      size = self._sizes[tensor] = static_bytes(self._run.tensors[tensor])
      is_static = is_static and size is not None
    return is_static

  def find_peak(self, rows: int) -> Tuple[int, List[str]]:
    """Returns the most bytes for a batch of `rows` examples, and what counts as nothing since its
    size depends on values."""
    shapes = Shapes(rows)
    for op in self._open_ops:
      shapes.add(self._run.ops[op])
    sizes = self._sizes[:]
    for tensor in self._open_tensors:
      sizes[tensor] = shapes.count_bytes(self._run.tensors[tensor])
    piles = [self._run.ops[op].name for op in self._run.order if self._run.kinds[op] in _PILES]
    works = {op: kernel_bytes(self._run.ops[op], shapes.find, threads=self._threads)
             for op in self._kernels}
    peak = self._execute(sizes, works, self._guess_durations(sizes))
    return peak, shapes.unknown + piles

  def _execute(self, sizes, works, durations):
    """Returns the most bytes that live at a time.

    Args:
      sizes: bytes of the tensors.
      works: bytes that kernels take while they run, by op.
      durations: of the ops.
    """
    # Over no axis a sum is what it sums.
    sources = {**self._sources, **{total: tensor for total, tensor in self._sums
                                   if sizes[total] == sizes[tensor]}}
    # A buffer has the number of the first tensor in it.
    buffers: List[Optional[int]] = [None] * len(sizes)
    readers = [0] * len(sizes)
    live = peak = 0
    waiting = self._run.waiting[:]
    ready = collections.deque(op for op, count in enumerate(waiting) if not count)
    running: List[Tuple[float, int]] = []
    now = 0.0
    while ready or running:
      if ready and len(running) < self._threads:
        op = ready.popleft()
        for tensor in self._given[op]:
          if tensor in sources:
            buffer = buffers[sources[tensor]]
          else:
            buffer = tensor
            for other in self._spares.get(tensor, ()):
              spare = buffers[other]
              if spare is not None and readers[spare] == 1 and sizes[spare] == sizes[tensor]:
                buffer = spare
                break
            else:
              live += sizes[tensor]
          if buffer is not None:
            buffers[tensor] = buffer
            readers[buffer] += 1 + self._readers[tensor]  # One is the op itself, while it runs.
        live += works.get(op, 0)
        if live > peak:
          peak = live
        heapq.heappush(running, (now + durations[op], op))
        continue
      now, op = heapq.heappop(running)
      live -= works.get(op, 0)
      for tensor in self._freed[op]:
        buffer = buffers[tensor]
        if buffer is not None:
          readers[buffer] -= 1
          if not readers[buffer]:
            live -= sizes[buffer]
      for follower in self._run.followers[op]:
        waiting[follower] -= 1
        if waiting[follower]:
          continue
        if not self._is_gpu and self._run.kinds[follower] in _CHEAP:
          ready.appendleft(follower)
        else:
          ready.append(follower)
    return peak

  def _guess_durations(self, sizes):
    """Returns about how long each op takes on a CPU: as many bytes as it could move meanwhile."""
    durations = [0.0] * len(self._run.ops)
    for op in self._working:
      num_bytes = [sizes[tensor] for tensor in [*self._run.inputs[op], *self._run.outputs[op]]]
      durations[op] = float(sum(num_bytes))
      if self._run.kinds[op] in _PRODUCTS:
        # Of matrices the root of all sizes is the number of products.
        durations[op] += math.sqrt(multiply(sorted(num_bytes)[-3:])) / 16
    return durations
