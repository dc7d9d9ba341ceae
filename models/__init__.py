"""Models: plain functions from images to logits, which know nothing of devices, towers or staging.

  import models
  model = models.build_classifier('convnet', num_classes=10)      # what `towers.build_towers` takes

TensorFlow is imported with the model, not with this package, so that a wrong name fails at once.
"""

import functools
import importlib
from typing import Any, Callable, Dict, Tuple

from towers.base.usage_error import UsageError, check_choice

__all__ = ['DATA_FORMATS', 'MODELS', 'build_classifier', 'build_logits']

# The module of each, with `build_logits(images, is_training, num_classes, *, data_format)`, and its
# further arguments.
MODELS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    'linear': ('linear', {}), 'lenet': ('lenet', {}), 'convnet': ('convnet', {}),
    'alexnet': ('alexnet', {}), 'alexnet_cifar': ('alexnet', dict(for_cifar=True)),
    'vgg16': ('vgg', dict(depth=16)), 'vgg19': ('vgg', dict(depth=19)),
    **{f'resnet{depth}': ('resnet', dict(depth=depth)) for depth in (
        20, 32, 56, 110, 50, 101, 152)},
    **{f'nasnet_{variant}': ('nasnet', dict(variant=variant)) for variant in (
        'cifar', 'cifar_large', 'mobile', 'large')},
}
DATA_FORMATS = ('NHWC', 'NCHW')


def build_logits(name: str, *, num_classes: int, data_format: str = 'NHWC',
                 drop_path: float = 0.0) -> Callable[[Any, Any], Any]:
  """Returns a model's function from images to logits.

  Args:
    name: one of `MODELS`.
    num_classes: labels are 0 … num_classes - 1.
    data_format: of the layers inside, one of `DATA_FORMATS`; images are NHWC, and weights the same,
      in both.
    drop_path: for NASNets, the share of the last cell's paths that a training step drops; earlier
      cells drop proportionally less.

  Returns:
    `logits(images, is_training)`: float32 `[batch, num_classes]`, of images `[batch, height, width,
    channels]` uint8 or float32. `is_training`, a Python bool or a scalar bool tensor, is for
    dropout and batch normalisation.

  Raises:
    UsageError: an unknown name or data format, or paths to drop of a model without them.
  """
  check_choice('model', name, MODELS)
  check_choice('data_format', data_format, DATA_FORMATS)
  module, settings = MODELS[name]
  if drop_path:
    if module != 'nasnet':
      raise UsageError(f'drop_path={drop_path:g} has no effect on {name}, which has no paths to '
                       'drop: use a model of the NASNet family.')
    settings = dict(settings, drop_path_rate=drop_path)
  build = importlib.import_module(f'{__name__}.{module}').build_logits
  return functools.partial(build, num_classes=num_classes, data_format=data_format, **settings)


def build_classifier(name: str, *, num_classes: int, data_format: str = 'NHWC',
                     label_smoothing: float = 0.0, drop_path: float = 0.0
                     ) -> Callable[[Any, Any], Tuple[Any, Dict[str, Any]]]:
  """Returns a model function over batches of (images, labels).

  Args:
    name, num_classes, data_format, drop_path: as for `build_logits`.
    label_smoothing: the share of each training label that is spread evenly over all classes
      (Szegedy et al. 2016, arXiv:1512.00567). Validation measures the labels as they are.

  Returns:
    `model((images, labels), is_training)`: the cross-entropy of every example, `[batch]`, and the
    metrics 'accuracy' and, with more than 5 classes, 'top_5', both `[batch]` bool. Images are
    `[batch, height, width, channels]` uint8 or float32, labels `[batch]` int32.
  """
  build = build_logits(name, num_classes=num_classes, data_format=data_format, drop_path=drop_path)

  def model(batch, is_training):
    from towers.tensorflow_v1 import tf
    images, labels = batch
    logits = tf.cast(build(images, is_training), tf.float32)  # Whatever the layers compute in.
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    if label_smoothing and is_training is not False:
      share = label_smoothing * tf.cast(is_training, tf.float32)
      # Minus the mean over all classes of the log of their probabilities.
      of_all = tf.reduce_logsumexp(logits, 1) - tf.reduce_mean(logits, 1)
      losses += share * (of_all - losses)
    # GPUs compare int64 themselves, and leave int32 to the host.
    metrics = {'accuracy': tf.equal(tf.argmax(logits, 1), tf.cast(labels, tf.int64))}
    if num_classes > 5:
      metrics['top_5'] = tf.nn.in_top_k(logits, labels, 5)
    return losses, metrics

  return model
