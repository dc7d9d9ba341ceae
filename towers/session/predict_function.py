"""Predict function: what one of your own predicts of a batch, and its export as a SavedModel.

`predict` takes parts of a batch: the first ones, in order; or, of a dict that a batch is or begins
with, the keys that its parameters name. It makes the model's variables, by the same names.
"""

import inspect
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from towers.base.usage_error import UsageError
from towers.extras import load_extra
from towers.placement.cluster import read_cluster
from towers.settings.arguments import with_known_names
from towers.tensorflow_v1 import Tensor, tf
from towers.training_graph import TrainingGraph

# A function of parts of a batch, which returns a tensor, or a dict of tensors by name.
Predict = Callable[..., Any]


@with_known_names('export')
def export(program: TrainingGraph, export_dir: str, *, predict: Optional[Predict] = None,
           checkpoint_dir: str, best_metric: Optional[str] = None,
           inputs: Optional[Mapping[str, Any]] = None) -> str:
  """Writes what a program's model predicts as a SavedModel, with the best weights of a run.

    def predict(images):                       # The parameters name the inputs.
      return {'class': tf.argmax(net(images), 1)}

    towers.train(program, epochs=5, checkpoint_dir='saved')
    towers.export(program, 'served', predict=predict, checkpoint_dir='saved')

  The graph is a new one, in which `predict` makes the model's variables by the same names, as with
  `tf.get_variable`. It has no iterator, staging area, tower or device, and loads on one CPU without
  towers.

  Args:
    program: a `towers.Program`, or another on the same data.
    export_dir: where a folder named after the step is made; one of the same step is replaced once
      the new one is whole.
    predict: a function of parts of a batch, `[n, ...]` each: as many as it has parameters, the
      first ones; of a dict, or of `(dict, labels)`, also the keys that its parameters name, or all
      by `**features`. It returns a tensor, or a dict of tensors by name, each `[n, ...]`.
    checkpoint_dir: of the run.
    best_metric: of the validations, to choose the weights by; None for that of the run. Without
      any validation, the newest are taken.
    inputs: where they are no parts of a batch: by name, what the parameters of `predict` take, as
      `{'files': tf.TensorSpec([None], tf.string)}` for one that decodes JPEGs and PNGs by
      `towers.data.decode_images`.

  Returns:
    The folder, or '' in a worker other than the chief, which writes nothing.

  Raises:
    UsageError: there is no checkpoint, it is of another model, or `predict` does not fit the batch.
    RunError: the model cannot be written.
  """
  if not isinstance(program, TrainingGraph):
    raise UsageError(f'towers.export takes a program, and got {program!r:.100}: write '
                     "towers.export(program, 'served', predict=predict, checkpoint_dir='saved').")
  if not callable(predict):
    raise UsageError(f'predict is {predict!r:.100}: give a function of parts of a batch, as '
                     'predict=lambda images: tf.argmax(net(images), 1).')
  if not read_cluster(os.environ).is_chief:
    return ''
  return load_extra('towers.export')(
      export_dir, predict=predict, examples=program.train_examples, checkpoint_dir=checkpoint_dir,
      best_metric=best_metric, inputs=inputs)


def call_predict(predict: Predict, batch: Any) -> Any:
  """Returns what a function returns of its parts of a batch, a structure of tensors."""
  chosen = choose_parts(predict, batch)
  return predict(*[part for _, part, is_named in chosen if not is_named],
                 **{name: part for name, part, is_named in chosen if is_named})


def choose_parts(predict: Predict, batch: Any) -> List[Tuple[str, Any, bool]]:
  """Returns (name, part, whether it is passed by name) of what a function takes of a batch.

  Where a batch is a dict, or begins with one, a function whose parameters are its keys takes these.
  Any other takes the parts in order, and a dict by itself is one part.

  Raises a UsageError where the parameters do not fit the structure of the batch.
  """
  parameters, chosen = inspect.signature(predict).parameters, []
  needed = {name: parameter.kind for name, parameter in parameters.items()
            if parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD}
  parts = batch if isinstance(batch, (list, tuple)) else [batch]
  if isinstance(parts[0], dict):
    others = [name for name, kind in needed.items()
              if name not in parts[0] or kind == inspect.Parameter.VAR_POSITIONAL]
    if 0 < len(others) < len(needed):
      raise _misfit(predict, others[0], parts)
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    if not others:
      chosen = [(name, part, True) for name, part in parts[0].items()
                if takes_all or name in parameters]
      needed = {}
  for position, (name, kind) in enumerate(needed.items()):
    if kind == inspect.Parameter.VAR_POSITIONAL:
      chosen += [(f'{name}_{index}', part, False) for index, part in enumerate(parts[position:])]
    elif position == len(parts) or kind == inspect.Parameter.KEYWORD_ONLY:
      raise _misfit(predict, name, parts)
    else:
      chosen.append((name, parts[position], False))
  if not chosen:
    raise _misfit(predict, ', '.join(map(str, parameters.values())) or 'nothing', parts)
  return chosen


def _misfit(predict, taken, parts) -> UsageError:
  """Returns the error of a function that takes what a batch does not have."""
  has = f'has {len(parts)} part{"s" * (len(parts) > 1)}'
  fix = 'give it a parameter for each part that it needs, the first ones in order'
  if isinstance(parts[0], dict):
    keys = ', '.join(map(str, parts[0]))
    has = f'is a dict with {keys}' if len(parts) == 1 else f'{has}, the first a dict with {keys}'
    fix = (f'write predict({keys}) with the keys that it needs and nothing else, '
           'predict(**features), or predict(features), a name that is no key, for the dict itself')
  return UsageError(f'{name_function(predict)} takes {taken}, and a batch {has}: {fix}.')


def classify(build_logits: Callable[[Tensor, bool], Tensor]) -> Predict:
  """Returns what a classifier predicts, of its `build_logits(images, is_training)`."""
  def predict(images):
    logits = build_logits(images, False)
    return {'logits': logits, 'probabilities': tf.nn.softmax(logits), 'class': tf.argmax(logits, 1)}
  return predict


def name_outputs(predict: Predict, returned: Any) -> Dict[str, Tensor]:
  """Returns what a function has returned by name, each as an op of that name."""
  fix = 'return a tensor, or a dict of tensors by name, each [n, ...]'
  outputs = returned if isinstance(returned, dict) else {'output': returned}
  named = {}
  for name, value in outputs.items():
    try:
      if isinstance(value, (list, tuple)):  # TensorFlow would stack what is in it.
        raise TypeError
      tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
      raise UsageError(f'{name_function(predict)} returns {value!r} as {name}: {fix}.') from None
    if tensor.shape.ndims == 0:
      raise UsageError(f'{name_function(predict)} returns {name} of shape []: {fix}.')
    named[str(name)] = tf.identity(tensor, name=f'output/{name_op(str(name))}')
  return named


def name_op(name: str) -> str:
  """Returns a name that an op may have."""
  return re.sub('[^A-Za-z0-9.]', '_', name).lstrip('_') or 'unnamed'


def name_function(predict: Predict) -> str:
  """Returns a function in words."""
  return f"predict function {getattr(predict, '__name__', type(predict).__name__)}"
