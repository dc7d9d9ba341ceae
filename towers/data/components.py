"""Components: the tensors of an example, by name, and the one shape that each must have.

Where TensorFlow does not know it beforehand, the first example decides, and all others are held to
it: TensorFlow's own message would name neither the split nor the component.
"""

import contextlib
import re
from typing import Any, Iterator, NamedTuple, Tuple

import numpy as np

from towers.base.later import data_sets, tf
from towers.base.usage_error import UsageError, find_own_line
from towers.data.composite import find_paths, find_rows


class Component(NamedTuple):
  """One tensor of an example."""
  # Where it is in the example, as `image` or `pair/0`; '' where the example is a single tensor.
  path: str
  dtype: Any  # A tf.DType.
  shape: Any  # A tf.TensorShape, known or not.
  # Whether it is part of a sparse or ragged component, whose sizes may always differ.
  is_of_rows: bool = False

  def __str__(self) -> str:
    # Without quotes: TensorFlow would escape them in the message of an assertion.
    return f'the component {self.path}' if self.path else 'the example'


class Components(NamedTuple):
  """The components of every example of a split."""
  name: str  # Of the split.
  structure: Any  # Of an example, with dtypes as its leaves.
  parts: Tuple[Component, ...]  # The components, in the order of `tf.nest.flatten`.

  def with_shapes_of(self, example: Any) -> 'Components':
    """Returns the same with the shapes of an example, which is a structure of arrays."""
    shapes = [tf.TensorShape(np.shape(value)) for value in tf.nest.flatten(example)]
    return self._replace(parts=tuple(
        part if part.is_of_rows else part._replace(shape=shape)
        for part, shape in zip(self.parts, shapes)))

  def with_ranks_of(self, example: Any) -> 'Components':
    """Returns the same with the numbers of dimensions of an example, and of any sizes there."""
    return self._replace(parts=tuple(
        part._replace(shape=part.shape.merge_with([None] * np.ndim(value)))
        for part, value in zip(self.parts, tf.nest.flatten(example))))

  def zeros(self) -> Any:
    """Returns an example of zeros; numbers of dimensions are known, and unknown sizes are 1."""
    return tf.nest.pack_sequence_as(self.structure, [
        tf.zeros([1 if size is None else size for size in part.shape.as_list()], part.dtype)
        for part in self.parts])

  def hold(self, example: Any, *, fix: str) -> Any:
    """Returns an example with the shapes of the components; a run fails where they are others.

    The error's message ends with `fix`, what to do about it.
    """
    tensors = [self._hold(part, tensor, fix)
               for part, tensor in zip(self.parts, data_sets.flatten_element(example))]
    return tf.nest.pack_sequence_as(self.structure, tensors)

  def _hold(self, part, tensor, fix):
    tensor = tf.convert_to_tensor(tensor, part.dtype)
    expected, shape = part.shape.as_list(), tf.shape(tensor)
    if tensor.shape.is_fully_defined() or (
        tensor.shape.ndims is not None and tensor.shape.as_list() == expected):
      return tensor
    known = np.array([axis for axis, size in enumerate(expected) if size is not None], np.int32)
    sizes = np.array([size for size in expected if size is not None], np.int32)
    is_equal = tf.cond(tf.equal(tf.size(shape), len(expected)),
                       lambda: tf.reduce_all(tf.equal(tf.gather(shape, known), sizes)),
                       lambda: tf.constant(False))
    message = tf.strings.format(self.name + ': ' + describe_shapes(part, '{}', fix), shape)
    with tf.control_dependencies([tf.Assert(is_equal, [message])]):
      tensor = tf.identity(tensor)
    tensor.set_shape(expected)
    return tensor


def describe_shapes(part: Component, shape: Any, fix: str) -> str:
  """Returns what is wrong with an example whose component has another shape than the first."""
  return (f'{part} has shape {shape}, and shape {part.shape.as_list()} in the first example; a '
          f'batch needs one shape: {fix}')


@contextlib.contextmanager
def naming_errors(given: Any, who: str = 'The model', of: str = 'a batch') -> Iterator[None]:
  """Makes an error that TensorFlow or Python tells in its own words a UsageError.

  It is one of a user's function, `who` in the message, of the tensors `given`, which are `of` it.
  """
  try:
    yield
  except UsageError:
    raise
  except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError,
          ValueError) as error:
    line, said = find_own_line(error.__traceback__), str(error)
    if re.match('in (converted|user) code:', said):  # AutoGraph's trace comes before what happened.
      *before, said = said.strip().split('\n\n')
      own = _CONVERTED.findall('\n'.join(before))
      line = '{}:{}: {}'.format(*own[-1]) if own else line
    text, paths = f'{type(error).__name__}: {said}', find_paths(given)
    told = next((told for pattern, told in _MISTAKES.items() if re.search(pattern, text)), '')
    has_keys = any(re.search('[^0-9/]', path) for path in paths)
    if not told or told is _MISTAKES['^KeyError'] and not has_keys:
      raise
    dtypes, shapes = [
        ', '.join(f'{path}: {what(leaf)}'.lstrip(': ')
                  for path, leaf in zip(paths, tf.nest.flatten(given)))
        for what in (lambda leaf: leaf.dtype.name, lambda leaf: leaf.shape)]
    raise UsageError(told.format(
        who=who, of=of, dtypes=dtypes, shapes=shapes, at=f' at {line}' if line else '',
        error=' '.join(said.split()))) from error


# A line of the program in AutoGraph's trace: its file, number and text.
_CONVERTED = re.compile(r'([^\s"]+)(?:", line |:)(\d+),? (?:in )?\S+ +\*\n *(.+)')

# What a function does wrong, by what TensorFlow says of it; the first that matches is told.
_MISTAKES = {
    '^KeyError: .The name .* refers to a':
    "{who} asks for an op by its name{at}, and those of each tower begin with its scope, as "
    'tower_0/: take the tensor from the call that makes it. TensorFlow says: {error}',

    '^KeyError':
    '{who} looks up {error} in {of} of the keys and shapes {shapes}{at}',

    r"(not|got value) 'TensorShape|'(tuple|dict)' object has no attribute '(shape|dtype|get_shape)|"
    'tuple indices must be integers':
    '{who} takes a tuple or a dict for a tensor, on {of} of the shapes {shapes}: take it '
    'apart, as `[x] = batch` for one array, `x, y = batch` for two, or x = batch["x"]. Python '
    'says{at}: {error}',

    r"'?Draws\b|^TypeError: (uniform|normal|integer|crop|flip)\(\) ":
    '{who} fails{at}: {error}. Its draws are draws.uniform(shape=(), low=0.0, high=1.0), '
    'draws.normal(shape=(), mean=0.0, stddev=1.0), draws.integer(low, high, shape=()), '
    'draws.crop(image, size) and draws.flip(image).',

    'as a Python `bool`':
    '{who} decides in Python by a tensor{at}, whose value only a run knows: write '
    'tf.cond(value, lambda: …, lambda: …), or tf.where.',

    r"(int\(\) argument|operand).*'NoneType'|None values not|(Contents|elements).*None|\(None\)":
    '{who} computes with None: an open size of {of} of the shapes {shapes} or of a placeholder (of '
    'rows a number with last_batch=drop or carry; or write tf.shape(x)[0]), or a gradient by what '
    'is not used. TensorFlow says{at}: {error}',

    'DataType resource|dtype resource':
    '{who} takes the tensor of a variable by its name{at}, which is a handle and no value: take '
    "the variable, as `with tf.variable_scope('dense', reuse=True): tf.get_variable('kernel')`. "
    'TensorFlow says: {error}',

    r"type b?float(16|32) (for|that does not match) .*type b?float(16|32)|"
    r'types \[(?=.*float16)(?=.*float32)':
    '{who} joins float32 with 16 bits, in which precision=mixed computes: cast what it makes to '
    'what it gets, as tf.cast(mask, x.dtype), or the reverse, as tf.cast(x, tf.float32). '
    'TensorFlow says{at}: {error}',

    "does not match type|has DataType|that don't all match|Tensor conversion requested dtype":
    '{who} does not take the dtypes of {of}, which are {dtypes}: cast arrays before, as '
    "features.astype('float32') and labels.astype('int32'), or tensors, as "
    'tf.cast(features, tf.float32); an open size of a batch is an int32 tensor, and of rows a '
    'number with last_batch=drop or carry. TensorFlow says{at}: {error}',

    'with input shapes:|(Dimensions|Shapes) .* are (incompatible|not compatible)|'
    'must have the same shape|Rank mismatch|shape.* must equal':
    '{who} joins tensors whose shapes do not fit, on {of} of the shapes {shapes}: see what '
    'it has there by print(tensor.shape), and change it by tf.reshape, or the shape of the '
    'variable. TensorFlow says{at}: {error}',

    'must be from the same graph|EagerTensor':
    '{who} takes a tensor that was made outside of it, eagerly or in another graph, as all are '
    'for --check and towers.check, which have graphs of their own: make it inside, or '
    'give its value as a NumPy array, as np.float32(2). TensorFlow says{at}: {error}',

    "Cannot convert a symbolic|'(Symbolic)?Tensor' object has no attribute|'DType' object has no "
    "attribute 'type'|argument must be .* not '(Symbolic)?Tensor'":
    '{who} asks a tensor for its values, as NumPy and .numpy() do, and it has none while the '
    "graph is built: write TensorFlow's own function, as tf.reduce_mean(x) for np.mean(x), or "
    'tf.py_func(function, [x], tf.float32). Python says{at}: {error}'}


def find_components(dataset: Any, name: str, *, marks_bad: bool = False) -> Components:
  """Returns the components of a data set's elements, `(example, is_good)` if it marks bad ones."""
  types = tf.data.get_output_types(dataset)
  paths = find_paths(types[0]) + ['is_good'] if marks_bad else find_paths(types)
  shapes = tf.nest.flatten(tf.data.get_output_shapes(dataset))
  parts = tuple(Component(*facts) for facts in zip(
      paths, tf.nest.flatten(types), shapes, find_rows(types)))
  for part, kind in zip(parts, tf.nest.flatten(tf.data.get_output_classes(dataset))):
    if kind is not tf.Tensor:
      what = getattr(kind, '__name__', type(kind).__name__)
      raise UsageError(f'{name}: {part} is a {what}, which cannot be cut over towers: return a '
                       'dense tensor, as tf.sparse.to_dense(value) or value.to_tensor() do; for '
                       "sizes that differ, towers.padded(examples, pad_to='batch').")
  if not parts:
    raise UsageError(f'{name}: an example has no tensor, so there is nothing to train on.')
  return Components(name, types, parts)
