"""Components: the tensors of an example, by name, and the one shape that each must have.

A batch stacks examples, so each component has one shape in all of them. Where TensorFlow does not
know the shape beforehand, that of the first example counts, and every other is held against it:
TensorFlow's own message would name neither the split nor the component.
"""

from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from towers.base.usage_error import UsageError


class Component(NamedTuple):
  """One tensor of an example.

  Attributes:
    path: to it in the example, as `image` or `pair/0`; '' where the example is a single tensor.
    dtype: a tf.DType.
    shape: a tf.TensorShape.
  """
  path: str
  dtype: Any
  shape: Any

  @property
  def is_static(self) -> bool:
    """Whether the shape is known."""
    return self.shape.is_fully_defined()

  def __str__(self) -> str:
    return f"the component '{self.path}'" if self.path else 'the example'


def find_components(dataset: Any, name: str) -> List[Component]:
  """Returns the components of a tf.data.Dataset's elements, in the order of `tf.nest.flatten`.

  Raises:
    UsageError: one is no dense tensor, or there is none.
  """
  from tensorflow_v1 import tf
  types = tf.data.get_output_types(dataset)
  paths = _find_paths(types)
  kinds = tf.nest.flatten(tf.data.get_output_classes(dataset))
  shapes = tf.nest.flatten(tf.data.get_output_shapes(dataset))
  components = [Component(*parts) for parts in zip(paths, tf.nest.flatten(types), shapes)]
  for component, kind in zip(components, kinds):
    if kind is not tf.Tensor:
      raise UsageError(
          f'{name}: {component} is a {kind.__name__}, and towers take dense tensors of one shape: '
          'make it one in the data set, as with tf.sparse.to_dense and padding to a fixed length.')
  if not components:
    raise UsageError(f'{name}: an element has no tensor, so there is nothing to train on.')
  return components


def _find_paths(structure: Any, path: str = '') -> List[str]:
  """Returns the path of each leaf, in the order of `tf.nest.flatten`, which sorts keys."""
  if isinstance(structure, dict):
    parts = sorted(structure.items())
  elif isinstance(structure, (tuple, list)):
    parts = list(enumerate(structure))
  else:
    return [path]
  return [leaf for key, part in parts for leaf in _find_paths(part, f'{path}/{key}'.lstrip('/'))]


def with_shapes(components: Sequence[Component], example: Any, name: str) -> List[Component]:
  """Returns the components with the shapes of a first example.

  Args:
    components: of the split.
    example: arrays in the structure of the first example.
    name: of the split.

  Raises:
    UsageError: the example is a batch of none.
  """
  import numpy as np

  from tensorflow_v1 import tf
  del name
  return [component._replace(shape=tf.TensorShape(np.shape(array)))
          for component, array in zip(components, tf.nest.flatten(example))]


def hold_to_shapes(components: Sequence[Component], name: str, fix: str
                   ) -> Callable[..., Any]:
  """Returns a function that returns an example as it is, with static shapes.

  It fails for an example of any other shape, naming split, component, both shapes and `fix`.

  Args:
    components: all static.
    name: of the split.
    fix: what to do, the end of a sentence.
  """
