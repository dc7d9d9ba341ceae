"""The task that all kinds of a benchmark train, so that losses and weights can be compared.

Every kind gets the same model function with the same initial weights, the same examples in the same
order and the same optimizer. Each reads examples, keeps weights and sums gradients in its own way.
"""

import re
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

LEARNING_RATE = 0.001
MOMENTUM = 0.9
NUM_CLASSES = 10
_MIN_EXAMPLES = 4096
# Of large images there are fewer, for graphs of others hold them as constants.
_MOST_BYTES = 64 * 1024 ** 2
# Prefixes of the names of replicas.
_REPLICA = re.compile(r'^(copies/tower_\d+|tower\d+)/')


class Net(NamedTuple):
  """A net to measure.

  Attributes:
    image_shape: of its images.
    batch_size: of each tower, by default.
    is_training: argument of the model function. It is False for nets without batch normalisation,
      to leave out their dropout, which differs between kinds: with it one is `--kinds=towers`.
    model: name of the model, if it is another.
  """
  image_shape: Tuple[int, int, int]
  batch_size: int
  is_training: bool
  model: Optional[str] = None


NETS: Dict[str, Net] = {
    'linear': Net((28, 28, 1), 1, False),
    'lenet': Net((28, 28, 1), 32, False),
    'convnet': Net((32, 32, 3), 32, False),
    'convnet_dropout': Net((32, 32, 3), 32, True, 'convnet'),
    'resnet20': Net((32, 32, 3), 8, True),
    'resnet50': Net((224, 224, 3), 64, True),
}


class Task(NamedTuple):
  """A net, its data, and the towers that train it."""
  net: str  # One of NETS.
  num_towers: int  # That train.
  batch_size: int  # Of each tower.
  kind: str = 'CPU'  # Of the towers' devices, 'CPU' for virtual ones or 'GPU'.

  @property
  def devices(self) -> List[str]:
    """The device of each tower."""
    return [f'/device:{self.kind}:{tower}' for tower in range(self.num_towers)]

  @property
  def global_batch_size(self) -> int:
    """Examples of one step."""
    return self.num_towers * self.batch_size

  def load(self) -> Any:
    """Returns synthetic examples; an epoch is a whole number of steps."""
    from towers import data
    step = self.global_batch_size
    image_shape = NETS[self.net].image_shape
    least = min(_MIN_EXAMPLES, _MOST_BYTES // int(np.prod(image_shape)))
    return data.load_synthetic(image_shape=image_shape, num_classes=NUM_CLASSES,
                               num_train=-(-least // step) * step)

  def load_arrays(self) -> Tuple[np.ndarray, ...]:
    """Returns images `[n, height, width, channels]` uint8 and labels `[n]` int32, in order."""
    return self.load().train.arrays

  def build_model(self) -> Callable[[Any, Any], Any]:
    """Returns the net as a `towers.Model` that starts from `initial_weights`."""
    import models
    from towers.tensorflow_v1 import tf
    net = NETS[self.net]
    build = models.build_classifier(net.model or self.net, num_classes=NUM_CLASSES)

    def from_initial_weights(getter, name, shape, **kwargs):
      values = initial_weights(name, tuple(shape))
      if values is not None:
        kwargs['initializer'] = lambda *_, **__: tf.constant(values)
      return getter(name, shape, **kwargs)

    def model(batch, _):
      with tf.variable_scope(tf.get_variable_scope(), custom_getter=from_initial_weights):
        return build(batch, net.is_training)

    return model

  def build_optimizer(self) -> Any:
    """Returns the optimizer."""
    from towers.tensorflow_v1 import tf
    return tf.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)

  def build_session_config(self) -> Any:
    """Returns a `tf.ConfigProto` with a device for each tower and TensorFlow's other defaults."""
    from towers.tensorflow_v1 import tf
    if self.kind == 'GPU':
      return tf.ConfigProto(allow_soft_placement=True)
    return tf.ConfigProto(device_count={'CPU': self.num_towers})


def initial_weights(name: str, shape: Tuple[int, ...]) -> Any:
  """Returns the initial value of a matrix or kernel; None for others, which start as constants."""
  name = _REPLICA.sub('', name)
  return draw_weights(name, shape) if name.endswith('/weights') else None


def draw_weights(name: str, shape: Tuple[int, ...]) -> np.ndarray:
  """Returns float32 weights drawn from name and shape alone, scaled as in He et al. (2015)."""
  random = np.random.RandomState(zlib.crc32(name.encode()))
  return (random.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[:-1]))).astype(np.float32)


def measure_movement(values: Dict[str, np.ndarray]) -> Dict[str, List[float]]:
  """Returns how far each variable has moved since its start, in all and in a random direction.

  Movements show faults that values hide: after a few steps, weights that were moved by a sum
  instead of a mean differ by little from the right ones.
  """
  movements = {}
  for name, value in values.items():
    name = name.split(':')[0]
    start = initial_weights(name, value.shape)
    if start is None:  # Scales of batch normalisation start from 1, biases and offsets from 0.
      start = float(name.endswith('/scale'))
    moved = value - start
    random = np.random.RandomState(zlib.crc32(b'direction of ' + name.encode()))
    direction = random.standard_normal(value.shape)
    along = np.sum(moved * direction) / np.linalg.norm(direction)
    movements[name] = [float(np.linalg.norm(moved)), float(along)]
  return movements
