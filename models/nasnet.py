"""NASNet-A: mobile, large, and for CIFAR (Zoph et al. 2018, "Learning Transferable Architectures",
arXiv:1707.07012).

  CIFAR      conv 3x3 ───────────────────────────────────────┐
  ImageNet   conv 3x3 / 2 ─ reduction cell ─ reduction cell ─┴─ normal cells ─ reduction cell
                              ─ normal cells ─ reduction cell ─ normal cells ─ mean ─ logits

A cell takes what the last two cells gave, `h` and `p`, both brought to its size and number of
channels. Each of its blocks adds up two operations on these or on earlier blocks, and the cell
joins the channels of what no block has taken. The two cells are data below.

Initial values and hyper-parameters of the authors' program (github.com/tensorflow/models,
slim/nets/nasnet): variance 2 / fan_out, but for the logits by Glorot, since 2 / 10 for 10 classes
would start with losses in the tens. CIFAR: batches of 32, 600 epochs, momentum 0.9, rate 0.025 with
one cosine, weight decay 0.0005, gradients clipped at 5, paths dropped at a rate that rises to 0.4.
ImageNet: RMSProp, 0.97 of the rate every 2.4 epochs, weight decay 0.00004 (large 0.00005),
gradients clipped at 10, label smoothing 0.1, large also with paths dropped at a rate that rises to
0.3. The auxiliary head, a second loss on a middle cell, is left out.

Everything reads what a cell gives through a ReLU, so that it stands at the cell's end, once. Sums
are `add_n`, whose gradient takes no op where that of `+` takes seven.
"""

import functools
from typing import Any, Dict, NamedTuple, Tuple

from towers.tensorflow_v1 import tf

from .layers import Layers, dense, he_normal

# Each side of a block's sum: (operation, size of its kernel, what it is applied to).
_Operation = Tuple[str, int, str]


class _Cell(NamedTuple):
  """The operations of a cell."""
  stride: int  # Of the operations on `h` and `p`.
  # By name, in order, the two operations that are added up.
  blocks: Dict[str, Tuple[_Operation, _Operation]]
  outputs: str  # The states whose channels are joined.


_NORMAL = _Cell(stride=1, outputs='pabcde', blocks={
    'a': (('separable', 5, 'h'), ('separable', 3, 'p')),
    'b': (('separable', 5, 'p'), ('separable', 3, 'p')),
    'c': (('average', 3, 'h'), ('same', 1, 'p')),
    'd': (('average', 3, 'p'), ('average', 3, 'p')),
    'e': (('separable', 3, 'h'), ('same', 1, 'h')),
})
_REDUCTION = _Cell(stride=2, outputs='bcde', blocks={
    'a': (('separable', 5, 'h'), ('separable', 7, 'p')),
    'b': (('max', 3, 'h'), ('separable', 7, 'p')),
    'c': (('average', 3, 'h'), ('separable', 5, 'p')),
    'd': (('average', 3, 'a'), ('same', 1, 'b')),
    'e': (('separable', 3, 'a'), ('max', 3, 'h')),
})


class _Variant(NamedTuple):
  """What differs between the members of the family."""
  num_normal: int  # Normal cells of each of the three stages.
  channels: int  # Of an operation in the first stage; each reduction doubles them.
  stem_channels: int  # Of the first convolution.
  has_reducing_stem: bool = False  # The stem for ImageNet, which divides height and width by 8.
  # The cell after a reduction takes as `p` not what the reduction took, but what the cell before
  # that.
  skips_reduction: bool = False
  dropout_rate: float = 0.0  # Before the logits.
  momentum: float = 0.9  # Of batch normalisation.
  epsilon: float = 1e-5  # Of batch normalisation.


_IMAGENET: Dict[str, Any] = dict(has_reducing_stem=True, dropout_rate=0.5, momentum=0.9997,
                                 epsilon=1e-3)
# In the paper's notation, normal cells @ channels of the last outputs: 6 @ 768, 4 @ 1056, 6 @ 4032.
_VARIANTS = {
    'cifar': _Variant(num_normal=6, channels=32, stem_channels=96),
    'cifar_large': _Variant(num_normal=6, channels=168, stem_channels=504),
    'mobile': _Variant(num_normal=4, channels=44, stem_channels=32, **_IMAGENET),
    'large': _Variant(num_normal=6, channels=168, stem_channels=96, skips_reduction=True,
                      **_IMAGENET),
}


def build_logits(images, is_training, num_classes, *, variant='cifar', drop_path_rate=None,
                 data_format='NHWC'):
  """Builds the logits, see `models`: with 1,000 classes 5,289,978 weights (mobile), 88,753,150
  (large).

  Args:
    images: in the paper 32x32 for CIFAR, 224x224 for mobile and 331x331 for large; of any known
      size from 32x32 on.
    variant: 'cifar', 'cifar_large' (cells of the large one, stem for CIFAR), 'mobile' or 'large'.
    drop_path_rate: the share of examples for which an operation of the last cell is left out while
      training, a float or, as a schedule gives it, a scalar tensor; earlier cells have
      proportionally less.
  """
  net = _Net(_VARIANTS[variant], Layers(is_training, data_format))
  kind, layers = net
  num_cells = 3 * kind.num_normal + (4 if kind.has_reducing_stem else 2)
  numbers = iter(range(1, num_cells + 1))

  def build(cell, x, before, channels):
    number = next(numbers)
    drop_rate = None if drop_path_rate is None else drop_path_rate * (number / num_cells)
    with tf.variable_scope(f'cell{number}'):
      return net.build_cell(cell, x, before, channels, drop_rate)

  # `x` is what the last cell gave, `before` the one before it, both through a ReLU.
  x = 2 * layers.normalize(images) - 1
  stride, padding = (2, 'VALID') if kind.has_reducing_stem else (1, 'SAME')
  before = x = tf.nn.relu(
      net.conv(x, kind.stem_channels, 3, name='stem', stride=stride, padding=padding))
  if kind.has_reducing_stem:
    x, before = build(_REDUCTION, x, None, kind.channels // 4), x
    x, before = build(_REDUCTION, x, before, kind.channels // 2), x
  for stage in range(3):
    channels = kind.channels * 2 ** stage
    if stage:
      x, before = build(_REDUCTION, x, before, channels), before if kind.skips_reduction else x
    for _ in range(kind.num_normal):
      x, before = build(_NORMAL, x, before, channels), x
  x = layers.mean(x)
  if kind.dropout_rate:
    x = layers.dropout(x, kind.dropout_rate)
  return dense(x, num_classes, name='logits')


class _Net(NamedTuple):
  """The pieces of a member of the family."""
  variant: _Variant
  layers: Layers

  def build_cell(self, cell, x, before, channels, drop_rate):
    """Returns a cell's output, through a ReLU, from those of the two before it (or one)."""
    layers = self.layers
    states = {'h': self.conv(x, channels, 1, name='h'),
              'p': x if before is None else self._fit(before, x, channels)}

    @functools.lru_cache(maxsize=None)
    def relu(source):
      return tf.nn.relu(states[source])

    @functools.lru_cache(maxsize=None)
    def pool(operation, size, source, stride):
      build = {'max': layers.max_pool, 'average': layers.average_pool}[operation]
      return build(states[source], size, stride)

    def apply(name, operation, size, source):
      if operation == 'same':
        return states[source]
      stride = cell.stride if source in 'hp' else 1
      if operation == 'separable':
        y = self._separable(relu(source), channels, size, stride, name)
      else:
        y = pool(operation, size, source, stride)
      return y if drop_rate is None else layers.drop_path(y, drop_rate)

    for block, (left, right) in cell.blocks.items():
      states[block] = tf.add_n([apply(block + '_left', *left), apply(block + '_right', *right)])
    return tf.nn.relu(layers.concat([states[name] for name in cell.outputs]))

  def conv(self, x, channels, size, *, name, **settings):
    """A convolution and batch normalisation."""
    return self._norm(self._conv(x, channels, size, name=name, **settings), name + '_norm')

  def _fit(self, before, x, channels):
    """Returns `before`, the output of the cell before the last, in the size of `x`, of the last.

    If it is larger, half of the channels come from even rows and columns, half from odd ones.
    """
    layers = self.layers
    if layers.count_pixels(before) == layers.count_pixels(x):
      return self.conv(before, channels, 1, name='p')
    halves = [self._conv(pixels, channels // 2, 1, name=name, stride=2)
              for name, pixels in (('p_even', before), ('p_odd', layers.shift(before)))]
    return self._norm(layers.concat(halves), 'p_norm')

  def _separable(self, x, channels, size, stride, name):
    """Two separable convolutions, the first with a stride; `x` has been through a ReLU."""
    with tf.variable_scope(name):
      x = self.layers.separable_conv(x, channels, size, name='conv1', stride=stride)
      x = tf.nn.relu(self._norm(x, 'norm1'))
      return self._norm(self.layers.separable_conv(x, channels, size, name='conv2'), 'norm2')

  def _conv(self, x, channels, size, **settings):
    return self.layers.conv(x, channels, size, activation=None, has_biases=False,
                            initializer=he_normal('fan_out'), **settings)

  def _norm(self, x, name):
    return self.layers.batch_norm(x, name=name, momentum=self.variant.momentum,
                                  epsilon=self.variant.epsilon)
