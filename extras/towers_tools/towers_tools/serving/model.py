"""What a model predicts, in a graph of its own without training.

  placeholders [n, …] ─► predict(images) ─► outputs [n, …]
        ▲
  the batch of a split: its structure, shapes and dtypes; or inputs of its own
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional

from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.data import Examples
from towers.data.composite import find_rows
from towers.graph.postponed import postpone_writes
from towers.graph.walk import find_needed, list_ops
from towers.input.pipeline import build_inputs
from towers.input.plan import build_plan
from towers.session.predict_function import (
  Predict,
  choose_parts,
  name_function,
  name_op,
  name_outputs,
)
from towers.tensorflow_v1 import Tensor, tf
from towers.tower.all_towers import is_own
from towers.tower.foreign.calls import call_as_is


class Serving(NamedTuple):
  """A model for inference: feed the inputs, fetch the outputs."""
  inputs: Dict[str, Tensor]  # Placeholders by name, each `[n, ...]`, of the data set's own dtypes.
  outputs: Dict[str, Tensor]  # By name, each `[n, ...]`.

  @property
  def num_rows(self) -> Optional[int]:
    """The number of rows that a net needs; None for any."""
    return next(iter(self.inputs.values())).shape.as_list()[0]


def build_serving(predict: Predict, examples: Examples, *,
                  own_inputs: Optional[Mapping[str, Any]] = None) -> Serving:
  """Builds what a model predicts in the default graph, see `towers.export`.

  An input is called by its parameter; in a dict within a parameter, by its key. Examples give the
  structure, shapes and dtypes of a batch, where the model has no inputs of its own.

  Raises:
    UsageError: parameters that do not fit the batch, or outputs that are not tensors `[n, ...]` of
      the inputs.
  """
  inputs: Dict[str, Tensor] = {}

  def feed(value, name):
    if isinstance(value, dict):
      return {key: feed(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
      return [feed(part, f'{name}_{index}') for index, part in enumerate(value)]
    if name in inputs:
      raise UsageError(f'{name_function(predict)} has two inputs that are called {name}: give '
                       'the keys of the batch different names.')
    # No name of a variable, which would get another one.
    inputs[name] = tf.placeholder(value.dtype, value.shape, f'serving/input/{name_op(name)}')
    return inputs[name]

  positional, named = [], {}
  types = read_types(examples) if own_inputs is None else _read_inputs(own_inputs)
  for name, part, is_named in choose_parts(predict, types):
    value = feed(part, name)
    if is_named:
      named[name] = value
    else:
      positional.append(value)
  num_ops = len(tf.get_default_graph().get_operations())
  try:
    returned = call_as_is(predict, *positional, **named)
  except (AttributeError, TypeError, ValueError) as error:
    # An op of a dict, or of another dtype, as of a JPEG's bytes for an array.
    given = ', '.join(f'{name} {tensor.dtype.name} {tensor.shape.as_list()}'
                      for name, tensor in inputs.items())
    raise UsageError(f'{name_function(predict)} cannot be built on its inputs, {given}: '
                     f'{find_reason(error)}. It is fed examples as the model is, unless inputs '
                     "says otherwise, as inputs={'jpegs': tf.TensorSpec([None], tf.string)}; a net "
                     "that needs a number of rows gets it so too, as tf.TensorSpec([8, 28, 28], "
                     "tf.uint8).") from error
  outputs = name_outputs(predict, returned)
  # No answer may change the next one: what is left to the end of a step is left out here.
  postpone_writes(tf.get_default_graph().get_operations()[num_ops:], list_ops(outputs.values()), [],
                  lambda *_: True, lambda write: is_own(write, list(inputs.values())))
  # Labels, for example, which a function of the whole batch takes and does not use.
  needed = find_needed([output.op for output in outputs.values()])
  used = {name: tensor for name, tensor in inputs.items() if tensor.op in needed}
  if not used:
    raise UsageError(f'What {name_function(predict)} returns depends on none of its inputs '
                     f"({', '.join(inputs)}): compute it from them.")
  return Serving(used, outputs)


def _read_inputs(inputs):
  """Returns the inputs that `towers.export` was given, checked."""
  for name, spec in inputs.items():
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.ndims:
      raise UsageError(f'inputs has {spec!r} for {name}: give the shape of a batch, None for any '
                       'number of rows, and the dtype, as tf.TensorSpec([None, 28, 28], tf.uint8).')
  return dict(inputs)


def read_types(examples: Examples) -> Any:
  """Returns the structure of a split's batches, with a `tf.TensorSpec` for each tensor."""
  with tf.Graph().as_default():
    plan = build_plan(num_examples=examples.num_examples, batch_size=1, num_towers=1,
                      name=examples.name)
    [batch] = build_inputs(examples, plan=plan, mode='split').next_batches()

  if any(find_rows(batch.tensors)):
    raise UsageError(f'{examples.name}: an example has a sparse or ragged component, and inputs of '
                     'predict are dense tensors: return dense ones from the split, as '
                     'tf.sparse.to_dense(value) and value.to_tensor() do, and see towers.padded.')

  return tf.nest.map_structure(
      lambda tensor: tf.TensorSpec([None, *tensor.shape.as_list()[1:]], tensor.dtype),
      batch.tensors)
