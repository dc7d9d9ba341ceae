"""Rules: the rule of each type of op. An op without one has values that are not known."""

from typing import Dict

from towers.coupling import arithmetic, layout
from towers.coupling.arithmetic import Rule, along_axis, elementwise, reduction


def _rules(names: str, rule: Rule) -> Dict[str, Rule]:
  return dict.fromkeys(names.split(), rule)


ARITHMETIC: Dict[str, Rule] = {
    **_rules('Add AddV2 Sub AddN', elementwise('add')),
    **_rules('Mul MulNoNan', elementwise('multiply')),
    **_rules('RealDiv Div DivNoNan', elementwise('divide')),
    **_rules('Maximum Minimum Pow SquaredDifference FloorDiv FloorMod Mod Xdivy Xlogy Atan2 '
             'Greater GreaterEqual Less LessEqual Equal NotEqual LogicalAnd LogicalOr LogicalNot '
             'Relu Relu6 Elu Selu LeakyRelu Sigmoid Tanh Exp Expm1 Log Log1p Square Sqrt Rsqrt Abs '
             'Sign Floor Ceil Round Rint Softplus Softsign Erf Erfc Sin Cos Tan Reciprocal Inv '
             'IsFinite IsNan IsInf ClipByValue', elementwise('other')),
    **_rules('Identity Neg Cast StopGradient PreventGradient Snapshot CheckNumerics EnsureShape',
             arithmetic.linear),
    'BiasAdd': arithmetic.bias_add,
    **_rules('TanhGrad SigmoidGrad ReluGrad Relu6Grad EluGrad SeluGrad LeakyReluGrad SoftplusGrad '
             'SoftsignGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad',
             elementwise('gradient')),
    **_rules('MaxPoolGrad AvgPoolGrad Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput',
             arithmetic.back_to_rows),
    **_rules('BiasAddGrad Conv2DBackpropFilter DepthwiseConv2dNativeBackpropFilter',
             arithmetic.back_to_weights),
    **_rules('Conv2D Conv3D DepthwiseConv2dNative MaxPool AvgPool MaxPool3D AvgPool3D LRN '
             'ResizeBilinear ResizeNearestNeighbor ResizeBicubic SpaceToDepth DepthToSpace '
             'Dilation2D', arithmetic.to_rows),
    **_rules('FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3', arithmetic.batch_norm),
    **_rules('SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits InTopK InTopKV2',
             arithmetic.both_rows),
    **_rules('MatMul BatchMatMul BatchMatMulV2', arithmetic.matmul),
    'Einsum': arithmetic.einsum,
    **_rules('Softmax LogSoftmax TopKV2 TopK', along_axis()),
    **_rules('Cumsum Cumprod ReverseV2', along_axis(1)),
    'Roll': along_axis(2),
    'Sum': reduction('sum'),
    'Mean': reduction('mean'),
    **_rules('Prod Max Min All Any ArgMax ArgMin', reduction('other')),
    'L2Loss': arithmetic.l2_loss,
    **_rules('UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd '
             'ScatterNd', arithmetic.by_class),
    **_rules('Bincount DenseBincount', arithmetic.bincount),
    **_rules('Cholesky LogMatrixDeterminant MatrixDeterminant MatrixInverse Qr SelfAdjointEigV2 '
             'Svd', arithmetic.matrices),
    **_rules('Select SelectV2', arithmetic.select),
}
RULES: Dict[str, Rule] = {
    **ARITHMETIC,
    **_rules('Fill RandomUniform RandomStandardNormal TruncatedNormal StatelessRandomUniform '
             'StatelessRandomNormal StatelessTruncatedNormal StatelessRandomUniformV2 '
             'StatelessRandomNormalV2 StatelessTruncatedNormalV2', layout.filled),
    **_rules('OnesLike ZerosLike', layout.like),
    **_rules('Pad PadV2 MirrorPad', layout.pad),
    **_rules('Split SplitV', layout.split),
    **_rules('Gather GatherV2 ResourceGather', layout.gather),
    **_rules('Where DynamicPartition GatherNd', layout.choose),
    'ConcatV2': layout.concat, 'ExpandDims': layout.expand_dims, 'Merge': layout.merge,
    'OneHot': layout.one_hot, 'Pack': layout.pack, 'Reshape': layout.reshape,
    'Shape': layout.shape, 'Size': layout.size, 'Slice': layout.slice_,
    'Squeeze': layout.squeeze, 'StridedSlice': layout.strided_slice, 'Switch': layout.switch,
    'Tile': layout.tile, 'Transpose': layout.transpose, 'Unpack': layout.unpack,
}
