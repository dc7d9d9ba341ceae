"""Export: a run's best weights as a SavedModel, in a graph of its own without training.

  checkpoint ─► weights ───────────────────────┐     images         [n, height, width, channels],
                                               │                    as in the data set
  build_logits(images, is_training=False) ─────┴─►   logits         [n, classes]
                                                     probabilities  [n, classes]
  served/315/saved_model.pb, variables/              class          [n]

The folder is named after the step of the weights: TensorFlow Serving reads it as a version. Without
iterators, staging areas, devices and towers the model loads anywhere, also on one CPU. The weights
are those of the best validation that has a checkpoint, otherwise the newest.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from typing import Any, Callable, Iterator, List, NamedTuple, Tuple

import towers
from tensorflow_v1 import tf
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError
from towers.data import Examples
from towers.training.faults.run_error import RunError
from towers.training.saving.checkpoints import check_same_variables, list_steps, path_of
from towers.training.saving.history import History

_KEY = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_TAG = tf.saved_model.tag_constants.SERVING

# `build_logits(images, is_training)`, with variables by `tf.get_variable`.
BuildLogits = Callable[[tf.Tensor, bool], tf.Tensor]


class Serving(NamedTuple):
  """A model for inference: feed `images`, fetch the others.

  Attributes:
    images: `[n, height, width, channels]`, a placeholder.
    logits: float32 `[n, classes]`.
    probabilities: float32 `[n, classes]`.
    classes: int64 `[n]`, the most probable ones.
  """
  images: tf.Tensor
  logits: tf.Tensor
  probabilities: tf.Tensor
  classes: tf.Tensor


def export(export_dir: str, *, checkpoint_dir: str, build_logits: BuildLogits,
           examples: Examples, best_metric: str = 'loss') -> str:
  """Writes the model of a run to a folder named after its step, and returns that folder.

  A folder of the same step is replaced once the new one is whole.

  Args:
    export_dir: where the folder is made.
    checkpoint_dir: of the run.
    build_logits: `build_logits(images, is_training)`, the model up to its logits.
    examples: a split with the images' shape and dtype.
    best_metric: of the validations, to choose the weights by.

  Raises:
    UsageError: there is no checkpoint, or it is of another model.
    RunError: the model cannot be written.
  """
  opened = open_checkpoint(checkpoint_dir, build_logits, examples, best_metric=best_metric)
  with opened as (session, serving, step):
    try:
      return _write(export_dir, session, serving, step)
    except (OSError, tf.errors.OpError) as error:
      raise RunError(f'The model cannot be exported to {export_dir}: {find_reason(error)}. '
                     'The checkpoints are whole: make room or choose another export_dir, and '
                     'start the same command again.') from None


def _write(export_dir, session, serving, step):
  for op in session.graph.get_operations():
    if op.type == 'VarHandleOp' and 'debug_name' in op.node_def.attr:
      op._clear_attr('debug_name')  # 2.x uses it in messages, and 1.14 cannot load it.
  outputs = dict(logits=serving.logits, probabilities=serving.probabilities)
  outputs['class'] = serving.classes
  signature = tf.saved_model.predict_signature_def(inputs=dict(images=serving.images),
                                                   outputs=outputs)
  folder = os.path.join(export_dir, str(step))
  os.makedirs(export_dir, exist_ok=True)
  aside = tempfile.mkdtemp(prefix='.writing-', dir=export_dir)
  try:
    written = os.path.join(aside, 'model')
    builder = tf.saved_model.Builder(written)
    builder.add_meta_graph_and_variables(session, [_TAG], signature_def_map={_KEY: signature},
                                         strip_default_attrs=True)
    builder.save()
    if os.path.isdir(folder):
      os.replace(folder, os.path.join(aside, 'before'))
    os.replace(written, folder)
  finally:
    shutil.rmtree(aside, ignore_errors=True)
  return folder


@contextlib.contextmanager
def open_checkpoint(checkpoint_dir: str, build_logits: BuildLogits, examples: Examples, *,
                    best_metric: str = 'loss') -> Iterator[Tuple[tf.Session, Serving, int]]:
  """Opens a session on the model of a run; yields the session, the model and its weights' step.

  The arguments are those of `export`.

  Raises:
    UsageError: there is no checkpoint, or it is of another model.
  """
  step = find_best(checkpoint_dir, best_metric)
  shape, dtype = find_image_type(examples)
  with tf.Graph().as_default():
    serving = build_serving(build_logits, image_shape=shape, image_dtype=dtype)
    with tf.Session(config=session_config()) as session:
      _restore(session, path_of(checkpoint_dir, step))
      yield session, serving, step


@contextlib.contextmanager
def open_export(folder: str) -> Iterator[Tuple[tf.Session, Serving, int]]:
  """Opens a session on an exported model; yields the session, the model and its weights' step.

  Args:
    folder: of a SavedModel, or with several of them, of which the newest is opened.

  Raises:
    UsageError: there is none, it is damaged, or has other inputs and outputs than `export` gives.
  """
  names = os.listdir(folder) if os.path.isdir(folder) else []
  steps = [int(name) for name in names if name.isdigit()]
  if steps and 'saved_model.pb' not in names:
    folder = os.path.join(folder, str(max(steps)))
  if not os.path.exists(os.path.join(folder, 'saved_model.pb')):
    raise UsageError(f'export_dir={folder} holds no exported model: make one with --export_dir '
                     'beside --checkpoint_dir.')
  with tf.Graph().as_default() as graph, tf.Session(config=session_config()) as session:
    try:
      signature = tf.saved_model.loader.load(session, [_TAG], folder).signature_def[_KEY]
      tensors = [signature.inputs['images']]
      tensors += [signature.outputs[name] for name in ('logits', 'probabilities', 'class')]
      serving = Serving(*[graph.get_tensor_by_name(tensor.name) for tensor in tensors])
    except (OSError, RuntimeError, KeyError, ValueError, tf.errors.OpError) as error:
      raise UsageError(f'The model in {folder} cannot be loaded: {find_reason(error)}. Export it '
                       'again.') from None
    yield session, serving, max(steps, default=0)


def build_serving(build_logits: BuildLogits, *, image_shape: List[int],
                  image_dtype: tf.DType) -> Serving:
  """Builds a model for inference in the default graph.

  Args:
    build_logits: `build_logits(images, is_training)`, with variables by `tf.get_variable`.
    image_shape: `[height, width, channels]`.
    image_dtype: of the images as they are fed.
  """
  images = tf.placeholder(image_dtype, [None] + list(image_shape), 'images')
  logits = build_logits(images, False)
  return Serving(images, tf.identity(logits, 'output/logits'),
                 tf.nn.softmax(logits, name='output/probabilities'),
                 tf.argmax(logits, 1, name='output/class'))


def find_image_type(examples: Examples) -> Tuple[List[int], tf.DType]:
  """Returns the shape `[height, width, channels]` and the dtype of a split's images."""
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=examples.num_examples, batch_size=1, num_towers=1,
                             name=examples.name)
    [batch] = towers.build_inputs(examples, plan=plan, mode='split').next_batches()
    images = batch.tensors[0]
    return images.shape.as_list()[1:], images.dtype


def find_best(folder: str, metric: str) -> int:
  """Returns the step of the best checkpoint in a folder, or the newest without validations.

  Raises:
    UsageError: there is no folder or no checkpoint.
  """
  is_folder = os.path.isdir(folder)
  steps = list_steps(folder) if is_folder else []
  if not steps:
    problem = 'has no checkpoint' if is_folder else 'does not exist'
    raise UsageError(f'checkpoint_dir={folder} {problem}: give the folder of a run that has saved.')
  history = History(metric=metric)
  history.read(folder, sys.maxsize)
  return next(step for step in history.best_first() + steps if step in steps)


def session_config() -> Any:
  """Returns a `tf.ConfigProto` with which a session takes only the GPU memory that it needs."""
  return tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True), allow_soft_placement=True)


def _restore(session, path):
  """Reads the weights; leaves what else the checkpoint holds, such as the optimizer's slots."""
  variables = tf.global_variables()
  expected = {variable.op.name: (tuple(variable.shape.as_list()), variable.dtype.base_dtype)
              for variable in variables}
  try:
    reader = tf.train.load_checkpoint(path)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    saved = {name: (tuple(shapes[name]), dtypes[name]) for name in shapes if name in expected}
    check_same_variables(path, saved, expected)
    for variable in variables:
      variable.load(reader.get_tensor(variable.op.name), session)
  except UsageError:
    raise
  except (tf.errors.OpError, ValueError, RuntimeError) as error:
    raise UsageError(f'{path} is damaged: {find_reason(error)}. Remove it, and the one before it '
                     'is taken.') from None
