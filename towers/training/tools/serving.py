"""Serving: what a model predicts, in a graph of its own without training.

  placeholders [n, …] ─► predict(images) ─► outputs [n, …]
        ▲
  the batch of a split: its structure, shapes and dtypes

`predict` takes parts of a batch: of a tuple the first ones, in order; of a dict those that its
parameters name. It makes the same variables as the model, by the same names.
"""

import inspect
import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from tensorflow_v1 import DType, Tensor, tf
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.data import Examples
from towers.data.composite import find_rows
from towers.graph.walk import find_needed
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan

# A function of parts of a batch, which returns a tensor, or a dict of tensors by name.
Predict = Callable[..., Any]


class ExampleType(NamedTuple):
  """The type of a tensor of one example.

  Attributes:
    shape: without the batch.
    dtype: of the data set.
  """
  shape: List[Any]
  dtype: DType


class Serving(NamedTuple):
  """A model for inference: feed the inputs, fetch the outputs.

  Attributes:
    inputs: placeholders by name, each `[n, ...]`, of the data set's own dtypes.
    outputs: by name, each `[n, ...]`.
  """
  inputs: Dict[str, Tensor]
  outputs: Dict[str, Tensor]


def build_serving(predict: Predict, examples: Examples) -> Serving:
  """Builds what a model predicts in the default graph.

  Args:
    predict: see above. An input is called by its parameter; in a dict within a parameter, by its
      key.
    examples: of the model; gives the structure, shapes and dtypes of a batch.

  Raises:
    UsageError: parameters that do not fit the batch, or outputs that are not tensors `[n, ...]` of
      the inputs.
  """
  inputs: Dict[str, Tensor] = {}

  def feed(value, name):
    if isinstance(value, dict):
      return {key: feed(part, str(key)) for key, part in value.items()}
    if isinstance(value, list):
      return [feed(part, f'{name}_{index}') for index, part in enumerate(value)]
    if name in inputs:
      raise UsageError(f'{_name(predict)} has two inputs that are called {name}: give the keys of '
                       'the batch different names.')
    inputs[name] = tf.placeholder(value.dtype, [None, *value.shape], _as_op(name))
    return inputs[name]

  positional, named = [], {}
  for name, part, is_named in _choose_parts(predict, read_types(examples)):
    value = feed(part, name)
    if is_named:
      named[name] = value
    else:
      positional.append(value)
  try:
    returned = predict(*positional, **named)
  except TypeError as error:  # An op of another dtype, as of a JPEG's bytes for an array.
    given = ', '.join(f'{name} {tensor.dtype.name} {tensor.shape.as_list()}'
                      for name, tensor in inputs.items())
    raise UsageError(f'{_name(predict)} cannot be built on what a batch of the training split '
                     f'holds, {given}: {find_reason(error)}. It is fed examples as the model is: '
                     'train on encoded images, or decode before it is fed.') from error
  outputs = name_outputs(predict, returned)
  # Labels, for example, which a function of the whole batch takes and does not use.
  needed = find_needed([output.op for output in outputs.values()])
  used = {name: tensor for name, tensor in inputs.items() if tensor.op in needed}
  if not used:
    raise UsageError(f'What {_name(predict)} returns depends on none of its inputs '
                     f"({', '.join(inputs)}): compute it from them.")
  return Serving(used, outputs)


def read_types(examples: Examples) -> Any:
  """Returns the structure of a split's batches, with an `ExampleType` for each tensor."""
  with tf.Graph().as_default():
    plan = build_plan(num_examples=examples.num_examples, batch_size=1, num_towers=1,
                      name=examples.name)
    [batch] = build_inputs(examples, plan=plan, mode='split').next_batches()

  if any(find_rows(batch.tensors)):
    raise UsageError(f'{examples.name}: an example has a sparse or ragged component, and inputs of '
                     'predict are dense tensors: return dense ones from the split, as '
                     'tf.sparse.to_dense(value) and value.to_tensor() do, and see towers.padded.')

  def describe(value) -> Any:
    if isinstance(value, dict):
      return {key: describe(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
      return [describe(part) for part in value]
    return ExampleType(value.shape.as_list()[1:], value.dtype)

  return describe(batch.tensors)


def call_predict(predict: Predict, batch: Any) -> Any:
  """Returns what a function returns of its parts of a batch, a tuple or a dict of tensors."""
  chosen = list(_choose_parts(predict, list(batch) if isinstance(batch, tuple) else batch))
  return predict(*[part for _, part, is_named in chosen if not is_named],
                 **{name: part for name, part, is_named in chosen if is_named})


def classify(build_logits: Callable[[Tensor, bool], Tensor]) -> Predict:
  """Returns the function of a classifier: of images, logits, probabilities and the class.

  Args:
    build_logits: `build_logits(images, is_training)`.
  """
  def predict(images):
    logits = build_logits(images, False)
    return {'logits': logits, 'probabilities': tf.nn.softmax(logits),
            'class': tf.argmax(logits, 1)}
  return predict


def check_predict(predict: Predict, tensors: Any) -> None:
  """Refuses a function whose parameters do not fit the structure of a batch.

  Raises:
    UsageError: names the parameters and what a batch holds.
  """
  for _ in _choose_parts(predict, tensors):
    pass


def _choose_parts(predict: Predict, batch: Any) -> Iterator[Tuple[str, Any, bool]]:
  """Yields (name, part, whether it is passed by name) of what a function takes of a batch."""
  parameters = list(inspect.signature(predict).parameters.values())
  if isinstance(batch, dict):
    yield from ((name, part, True) for name, part in _choose_keys(predict, parameters, batch))
    return
  parts = batch if isinstance(batch, list) else [batch]
  position = 0
  for parameter in parameters:
    if parameter.kind == parameter.VAR_POSITIONAL:
      yield from ((f'{parameter.name}_{index}', part, False)
                  for index, part in enumerate(parts[position:]))
    elif parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD:
      if position == len(parts) or parameter.kind == parameter.KEYWORD_ONLY:
        raise UsageError(f'{_name(predict)} takes {parameter.name}, and a batch has {len(parts)} '
                         f'part{"s" * (len(parts) > 1)}: give it a parameter for each part that it '
                         'needs, the first ones in order.')
      yield parameter.name, parts[position], False
      position += 1


def _choose_keys(predict, parameters, batch) -> Iterator[Tuple[str, Any]]:
  """Yields what a function takes of a batch that is a dict."""
  names = [parameter.name for parameter in parameters]
  for parameter in parameters:
    if parameter.kind == parameter.VAR_KEYWORD:
      yield from ((key, part) for key, part in batch.items() if key not in names)
    elif parameter.name in batch and parameter.kind != parameter.VAR_POSITIONAL:
      yield parameter.name, batch[parameter.name]
    elif parameter.default is parameter.empty:
      raise UsageError(f'{_name(predict)} takes {parameter.name}, and a batch is a dict with '
                       f"{', '.join(map(str, batch))}: call its parameters like the keys that it "
                       'needs, or take all by **features.')


def name_outputs(predict: Predict, returned: Any) -> Dict[str, Tensor]:
  """Returns what a function has returned by name, each as an op of that name."""
  fix = 'return a tensor, or a dict of tensors by name, each [n, ...]'
  outputs = returned if isinstance(returned, dict) else {'output': returned}
  named = {}
  for name, value in outputs.items():
    try:
      tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
      raise UsageError(f'{_name(predict)} returns {value!r} as {name}: {fix}.') from None
    if tensor.shape.ndims == 0:
      raise UsageError(f'{_name(predict)} returns {name} of shape []: {fix}.')
    named[str(name)] = tf.identity(tensor, name=f'output/{_as_op(str(name))}')
  return named


def _as_op(name: str) -> str:
  """Returns a name that an op may have."""
  return re.sub('[^A-Za-z0-9.]', '_', name).lstrip('_') or 'unnamed'


def _name(predict: Predict) -> str:
  return f"predict function {getattr(predict, '__name__', type(predict).__name__)}"
