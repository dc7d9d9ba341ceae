"""A task: what all kinds of a benchmark train, so that their losses and weights can be compared.

Every kind gets the same model function with the same initial weights, the same examples in the same
order, the same optimizer. How it reads them, where it keeps weights and how it sums gradients is
its own.
"""

import re
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

LEARNING_RATE = 0.001
MOMENTUM = 0.9
NUM_CLASSES = 10
SYNTHETIC = 'synthetic'
_MIN_EXAMPLES = 4096
# What a variable's name begins with where there is one for each tower.
_COPY = re.compile(r'^(copies/tower_\d+|tower\d+)/')


class Net(NamedTuple):
  """A net that is measured.

  Attributes:
    image_shape: of its images, unless these are of a data set.
    batch_size: of each tower, by default.
    is_training: what the model function is called with. Nets without batch normalisation are called
      as for validation: that leaves out their dropout, of which no two kinds would drop the same.
    tuned_on: the data set of main.py on which its fastest settings are looked for.
  """
  image_shape: Tuple[int, int, int]
  batch_size: int
  is_training: bool
  tuned_on: str


NETS: Dict[str, Net] = {
    'linear': Net((28, 28, 1), 1, False, 'sample'),
    'lenet': Net((28, 28, 1), 32, False, 'sample'),
    'convnet': Net((32, 32, 3), 32, False, 'synthetic'),
    'resnet20': Net((32, 32, 3), 8, True, 'synthetic'),
}


class Task(NamedTuple):
  """What is trained.

  Attributes:
    net: one of NETS.
    num_towers: on virtual CPU devices.
    batch_size: of each tower.
    data: 'synthetic', or a data set of main.py that needs nothing but, maybe, a folder.
    data_dir: its folder, if it needs one.
    intra_threads: inside of one op; None leaves it to TensorFlow.
  """
  net: str
  num_towers: int
  batch_size: int
  data: str = SYNTHETIC
  data_dir: Any = None
  intra_threads: Any = None

  @property
  def global_batch_size(self) -> int:
    """Examples of one step."""
    return self.num_towers * self.batch_size

  def load(self) -> Any:
    """Returns the data set, whose epochs are whole numbers of steps.

    Raises:
      ValueError: a data set of files has another size.
    """
    from towers import data
    step = self.global_batch_size
    if self.data == SYNTHETIC:
      return data.load_synthetic(image_shape=NETS[self.net].image_shape, num_classes=NUM_CLASSES,
                                 num_train=-(-_MIN_EXAMPLES // step) * step)
    data_set = data.load(self.data,
                         **({} if self.data_dir is None else dict(data_dir=self.data_dir)))
    if data_set.train.num_examples % step:
      raise ValueError(f'{data_set.train.num_examples} examples of {self.data} are no whole number '
                       f'of steps of {step}: choose a batch size that divides them.')
    return data_set

  def load_arrays(self) -> Tuple[np.ndarray, ...]:
    """Returns images `[examples, height, width, channels]` uint8 and labels `[examples]` int32, in
    their order.
    """
    return self.load().train.arrays

  def build_model(self) -> Callable[[Any, Any], Any]:
    """Returns the net as a `towers.Model` that starts from `initial_weights`."""
    import models
    from tensorflow_v1 import tf
    is_training = NETS[self.net].is_training
    build = models.build_classifier(self.net, num_classes=NUM_CLASSES)

    def from_initial_weights(getter, name, shape, **kwargs):
      values = initial_weights(name, tuple(shape))
      if values is not None:
        kwargs['initializer'] = lambda *_, **__: tf.constant(values)
      return getter(name, shape, **kwargs)

    def model(batch, _):
      with tf.variable_scope(tf.get_variable_scope(), custom_getter=from_initial_weights):
        return build(batch, is_training)

    return model

  def build_optimizer(self) -> Any:
    """Returns the optimizer."""
    from tensorflow_v1 import tf
    return tf.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)

  def build_session_config(self) -> Any:
    """Returns a `tf.ConfigProto` with a device for each tower, and what else TensorFlow does by
    itself.
    """
    from tensorflow_v1 import tf
    return tf.ConfigProto(device_count={'CPU': self.num_towers},
                          intra_op_parallelism_threads=self.intra_threads or 0)


def initial_weights(name: str, shape: Tuple[int, ...]) -> Any:
  """Returns what the matrix or kernel of this name starts from; None for others, which all models
  set to constants.
  """
  name = _COPY.sub('', name)
  return draw_weights(name, shape) if name.endswith('/weights') else None


def draw_weights(name: str, shape: Tuple[int, ...]) -> np.ndarray:
  """Returns float32 numbers that depend on the name and the shape alone, scaled as by He et al.
  (2015).
  """
  random = np.random.RandomState(zlib.crc32(name.encode()))
  return (random.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[:-1]))).astype(np.float32)


def weigh(values: Dict[str, np.ndarray]) -> Dict[str, List[float]]:
  """Returns for each variable how far it has moved from its initial value, and how far in a random
  direction.

  Movements rather than values: a sum instead of a mean hardly shows in weights that have barely
  moved.
  """
  told = {}
  for name, value in values.items():
    name = name.split(':')[0]
    start = initial_weights(name, value.shape)
    # Scales of batch normalisation start from 1; all else that is no matrix from 0.
    moved = value - (float(name.endswith('/scale')) if start is None else start)
    direction = np.random.RandomState(zlib.crc32(b'direction of ' + name.encode())).standard_normal(
        value.shape)
    told[name] = [
        float(np.linalg.norm(moved)),
        float(np.sum(moved * direction) / np.linalg.norm(direction))
    ]
  return told
