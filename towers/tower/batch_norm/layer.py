"""Batch normalisation with statistics that towers can share (Ioffe & Szegedy 2015).

The layer of arXiv:1502.03167 knows only its own batch. The moments that move its averages pass
through `tf.identity` ops in a collection, so that a builder of several towers can replace their
inputs by the moments of all towers. Otherwise it is ordinary batch normalisation of one batch, by
one fused kernel:

  x ──► fused kernel ──► normalised
             └──► identities (BATCH_MOMENTS) ──► moving averages (UPDATE_OPS)

Where `is_training` is a tensor, one switch of x chooses between two such kernels:

  x ──► Switch ─┬─ yes ─► kernel, by the batch ──┬──► Merge ──► normalised, moments
                └─ no ──► kernel, by averages ───┘

With batch_norm=sync towers normalise by the global batch. A fused kernel has no place for
that, so the layer is made of sums over all towers (see `all_towers`):

  x ──► sums ──► all_sum ──► moments ──► normalise
                                └──► identities (BATCH_MOMENTS) ──► moving averages (UPDATE_OPS)
"""

import contextlib
import re
from typing import Iterator, List, Sequence, Union

from towers.placement.host import is_gpu
from towers.placement.xla import compiles
from towers.tensorflow_v1 import Operation, Tensor, tf, without_zeros
from towers.tower.all_towers import all_sum, joins_norms, named_by_tower

BATCH_SUMS = 'batch_norm_sums'
BATCH_MOMENTS = 'batch_norm_moments'

# cuDNN takes no smaller one.
_MIN_EPSILON = 1.001e-5
_trains: List[bool] = [False]


@contextlib.contextmanager
def gradients_of_training() -> Iterator[None]:
  """Makes gradients within the context those of training: dead where `is_training` is false.

  Other gradients choose between both kernels, as a model may take some that it validates with.
  """
  _trains.append(True)
  try:
    with without_zeros(lambda op: re.match('FusedBatchNorm(V.)?$', op.type) or is_choice(op)):
      yield
  finally:
    _trains.pop()


@tf.RegisterGradient('BatchNormSum')
def _spread_gradient(op, gradient):
  """Returns the gradient of a sum over all axes but the channels', for each summand.

  TensorFlow's own computes the shape of an unknown number of examples by an op of GPUs that takes
  numbers from the host and gives back others: two copies for each sum.
  """
  summed = tf.get_static_value(op.inputs[1])
  kept = [1 if axis in summed else -1 for axis in range(op.inputs[0].shape.ndims)]
  return tf.broadcast_to(tf.reshape(gradient, kept), tf.shape(op.inputs[0])), None


def batch_norm(x: Tensor, is_training: Union[bool, Tensor], *, name: str, momentum: float = 0.9,
               epsilon: float = 1e-5, scale: bool = True, data_format: str = 'NHWC') -> Tensor:
  """Normalises every channel over the batch and all positions.

  Args:
    x: float `[batch, height, width, channels]`, with 'NCHW' `[batch, channels, height, width]`, or
      `[batch, channels]`; `channels` is known.
    is_training: a bool or a scalar bool tensor: the batch's own moments, or the moving averages.
    name: the variable scope: makes `name/offset`, `name/scale`, `name/moving_mean` and
      `name/moving_variance`, each `[channels]`.
    momentum: the share of a moving average that a step keeps. The updates are in UPDATE_OPS. The
      moving variance is that of the population, from the batch (with n - 1).
    epsilon: added to the variance; at least 1.001e-5.
    scale: whether there is a scale; it is of no use before a ReLU and a layer with weights.
    data_format: 'NHWC' or 'NCHW'; not every device has kernels for both.
  """
  # Sums, moments and variables are float32, whatever the dtype of x.
  channels = x.shape.as_list()[1 if data_format == 'NCHW' else -1]
  epsilon = max(epsilon, _MIN_EPSILON)

  def get(name, first, **settings):
    return tf.get_variable(name, [channels], tf.float32, tf.constant_initializer(first), **settings)

  with named_by_tower(), tf.variable_scope(name):
    offset = get('offset', 0)
    # Read here: a read inside of a branch has the device of neither the variable nor the tower.
    factor = tf.convert_to_tensor(get('scale', 1) if scale else tf.ones([channels]))
    moving = [get('moving_mean', 0, trainable=False), get('moving_variance', 1, trainable=False)]
    averages = list(map(tf.convert_to_tensor, moving))
    is_fused = x.shape.ndims == 4 and not joins_norms() and x.dtype != tf.float64
    kernel = _Kernel(x if is_fused else tf.cast(x, tf.float32), factor,
                     tf.convert_to_tensor(offset), epsilon, data_format)
    if not is_fused:
      y, *moments = kernel.by_sums(averages, is_training)
      y = tf.cast(y, x.dtype)
    elif is_training is False:
      return kernel.by_averages(averages)[0]
    elif is_training is True:
      y, *moments = kernel.by_batch()
    elif _is_compiled(x):
      y, *moments = kernel.by_both(averages, is_training)
    else:
      # A branch, since the batch's moments cost time.
      y, *moments = kernel.by_either(averages, is_training)
    if is_training is not False:
      _move_averages(moving, averages, moments, momentum)
    return y


def _is_compiled(x):
  """Returns whether XLA compiles for the GPU of x. On CPUs its batch normalisation is slower."""
  return is_gpu(x.device) and compiles('GPU', 'float32' if x.dtype == tf.float32 else 'mixed')


def _move_averages(variables, averages, moments, momentum):
  names = ('batch_mean', 'batch_variance')
  for variable, old, moment, name in zip(variables, averages, moments, names):
    moment = tf.identity(moment, name=name)
    tf.add_to_collection(BATCH_MOMENTS, moment)
    with tf.device(variable.device):
      share = _share_constant(1 - momentum, moment.name.split('/')[0] + variable.device)
      moved = tf.raw_ops.Mul(x=share, y=tf.raw_ops.Sub(x=old, y=moment))
      update = variable.assign_sub(moved, read_value=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)


def _share_constant(value, place):
  """Returns a constant that all layers of a place share: deep nets have hundreds."""
  with tf.init_scope():
    made = tf.get_collection_ref(f'batch_norm_{value}_{place}')
    if not made:
      made.append(tf.constant(value))
  return made[0]


class _Kernel:
  """What normalises x; all methods return the normalised tensor, mean and variance."""

  def __init__(self, x, factor, offset, epsilon, data_format):
    self._x = x
    self._settings = dict(scale=factor, offset=offset, epsilon=epsilon, data_format=data_format)

  def by_batch(self, x=None) -> Sequence[Tensor]:
    return self._fuse(x, [tf.constant([], tf.float32)] * 2, is_training=True)

  def by_averages(self, averages, x=None) -> Sequence[Tensor]:
    return (self._fuse(x, averages, is_training=False)[0], *averages)

  def _fuse(self, x, averages, is_training):
    mean, variance = averages
    return tf.raw_ops.FusedBatchNormV3(x=self._x if x is None else x, mean=mean, variance=variance,
                                       is_training=is_training, **self._settings)[:3]

  def by_either(self, averages, is_training) -> Sequence[Tensor]:
    graph = tf.get_default_graph()
    if graph._get_control_flow_context() is not None:
      return tf.cond(is_training, self.by_batch, lambda: self.by_averages(averages))
    # A kernel whose x is dead is dead. tf.cond would add a switch for each tensor, in the backward
    # pass too: 55 ops more for each layer and tower of a deep net, where these are 3.
    with graph.gradient_override_map({'Switch': 'BatchNormSwitch'}):
      for_averages, for_batch = tf.raw_ops.Switch(data=self._x, pred=is_training)
    with graph.gradient_override_map({'FusedBatchNormV3': 'BatchNormByEither'}):
      by_batch, *of_batch = self.by_batch(for_batch)
    by_averages = self.by_averages(averages, for_averages)[0]
    with graph.gradient_override_map({'Merge': 'BatchNormMerge'}):
      y = tf.raw_ops.Merge(inputs=[by_averages, by_batch])[0]
    return [y, *_choose(of_batch, averages, is_training)]

  def by_both(self, averages, is_training) -> Sequence[Tensor]:
    """Chooses between the results of both kernels, of which XLA makes one.

    Of a kernel between a switch and a merge it compiles the gradient alone, which did not train.
    """
    by_batch, *of_batch = self.by_batch()
    with tf.get_default_graph().gradient_override_map({'Select': 'BatchNormSelect'}):
      y = tf.raw_ops.Select(condition=is_training, x=by_batch, y=self.by_averages(averages)[0])
    return [y, *of_batch]

  def by_sums(self, averages, is_training) -> Sequence[Tensor]:
    """Normalises by moments from sums over the batch, not by a kernel.

    The sums are of differences from the moving mean, which is near the mean: of a large mean, sums
    of squares would leave no digits of the variance. All sums are in one vector, so that towers add
    up only one tensor.
    """
    x, settings = self._x, self._settings
    is_nchw = settings['data_format'] == 'NCHW' and x.shape.ndims == 4

    def per_channel(vector):
      return tf.reshape(vector, [-1, 1, 1]) if is_nchw else vector

    def normalize(mean, variance):
      return tf.nn.batch_normalization(
          x, *map(per_channel, (mean, variance, settings['offset'], settings['scale'])),
          settings['epsilon'])

    if is_training is False:
      return [normalize(*averages), *averages]
    values = x
    is_either, is_joined = is_training is not True, joins_norms()
    if is_either and is_joined:
      # Not a branch: towers join what is inside. In validation, all that follows from the batch's
      # moments is dead, the sums over towers and workers too.
      values = tf.raw_ops.Switch(data=x, pred=is_training)[1]
    channels = averages[0].shape.as_list()[0]
    axes = [0, 2, 3] if is_nchw else list(range(x.shape.ndims - 1))
    differences = values - per_channel(averages[0])
    count = tf.cast(tf.size(values) // channels, x.dtype)
    with tf.get_default_graph().gradient_override_map({'Sum': 'BatchNormSum'}):
      sums = [tf.reduce_sum(terms, axes) for terms in (differences, tf.square(differences))]
    sums = tf.concat([*sums, [count]], 0)
    if is_joined:
      sums = all_sum(sums, name='sums')
    tf.add_to_collection(BATCH_SUMS, sums)

    count = sums[2 * channels]
    mean_difference = sums[:channels] / count
    mean = averages[0] + mean_difference
    variance = tf.maximum(sums[channels:2 * channels] / count - tf.square(mean_difference), 0.0)
    moments = [mean, variance * (count / tf.maximum(count - 1, 1))]
    chosen = [mean, variance]
    if is_either and is_joined:
      chosen = _choose(chosen, averages, is_training)
    elif is_either:
      # Sums of one tower are cheap, and XLA compiles nothing across a switch.
      chosen = [tf.where(is_training, *pair) for pair in zip(chosen, averages)]
    return [normalize(*chosen), *moments]


def _choose(of_batch, averages, is_training):
  """Returns the moments of the batch, or the averages where it is not trained."""
  return [tf.raw_ops.Merge(inputs=[moment, tf.raw_ops.Switch(
      data=average, pred=is_training)[0]])[0] for moment, average in zip(of_batch, averages)]


def is_choice(op: Operation) -> bool:
  """Returns whether an op is the switch of a layer, or its merge: all training takes one branch."""
  return (op.type in ('Switch', 'Merge')
          and op.node_def.attr['_gradient_op_type'].s in (b'BatchNormSwitch', b'BatchNormMerge'))


@tf.RegisterGradient('BatchNormSelect')
def _pass_to_chosen(op, gradient):
  """Leaves gradients of training to the kernel by the batch."""
  if _trains[-1]:
    return None, gradient, None
  is_training, zeros = op.inputs[0], tf.zeros_like(gradient)
  return (None, tf.raw_ops.Select(condition=is_training, x=gradient, y=zeros),
          tf.raw_ops.Select(condition=is_training, x=zeros, y=gradient))


@tf.RegisterGradient('BatchNormMerge')
def _pass_to_batch(op, gradient, _):
  """Leaves both branches to the gradient of the kernel by the batch."""
  return None, gradient


@tf.RegisterGradient('BatchNormSwitch')
def _pass_to_input(op, _, gradient):
  return gradient, None


@tf.RegisterGradient('BatchNormByEither')
def _differentiate_either(op, gradient, *_):
  """Returns the gradients of x, scale and offset, whichever kernel has run."""
  x, is_training = op.inputs[0].op.inputs
  factor, offset = op.inputs[1:3]
  settings = dict(epsilon=op.get_attr('epsilon'), data_format=op.get_attr('data_format').decode())

  def by_batch():
    return list(tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=gradient, x=x, scale=factor, is_training=True, **settings,
        **{f'reserve_space_{place}': op.outputs[place + 2] for place in (1, 2, 3)})[:3])

  def by_averages():
    [merge] = [reader for reader in op.outputs[0].consumers() if is_choice(reader)]
    kernel = _Kernel(x, factor, offset, **settings)
    return tf.gradients(kernel.by_averages(merge.inputs[0].op.inputs[3:5])[0],
                        [x, factor, offset], gradient)

  if _trains[-1]:
    return [*by_batch(), None, None]
  return [*tf.cond(is_training, by_batch, by_averages), None, None]
