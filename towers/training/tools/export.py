"""Export: a run's best weights as a SavedModel, in a graph of its own that knows nothing of
training.

  checkpoint ─► weights ───────────────────────┐     images         [n, height, width, channels],
                                               │                    as the data has them
  build_logits(images, is_training=False) ─────┴─►   logits         [n, classes]
                                                     probabilities  [n, classes]
  served/315/saved_model.pb, variables/              class          [n]

The folder is named by the step that the weights are from, which is what TensorFlow Serving takes
for a version. No iterator, no staging area, no `is_validating`, no device and no tower: it loads
anywhere, on one CPU as well. The weights are those of the best validation where one was saved, else
the newest.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from typing import Any, Callable, Iterator, NamedTuple, Tuple

import towers
from tensorflow_v1 import tf
from towers.base.usage_error import UsageError
from towers.data import DataSet, Examples
from towers.training.faults.reason import find_reason
from towers.training.faults.run_error import RunError
from towers.training.saving.checkpoints import check_same_variables, list_steps, path_of
from towers.training.saving.history import History
from towers.training.settings.config import Config
from towers.training.settings.zoo import load_zoo

_KEY = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_TAG = tf.saved_model.tag_constants.SERVING


class Serving(NamedTuple):
  """A model to be asked: feed `images`, fetch the others.

  Attributes:
    images: `[n, height, width, channels]`, a placeholder.
    logits: float32 `[n, classes]`.
    probabilities: float32 `[n, classes]`.
    classes: int64 `[n]`, the most probable ones.
  """
  images: Any
  logits: Any
  probabilities: Any
  classes: Any


def export(config: Config, data_set: DataSet) -> str:
  """Writes the model of a run's `checkpoint_dir` to a folder in its `export_dir`; returns that
  folder.

  What stood there before is replaced once the new one is whole.

  Raises:
    UsageError: there is no checkpoint, or it is of another model.
    RunError: it cannot be written.
  """
  assert config.export_dir is not None
  with open_checkpoint(config, data_set) as (session, serving, step):
    for op in session.graph.get_operations():
      if op.type == 'VarHandleOp' and 'debug_name' in op.node_def.attr:
        op._clear_attr('debug_name')  # A name for messages on 2.x, which 1.14 refuses to load.
    outputs = dict(logits=serving.logits, probabilities=serving.probabilities)
    outputs['class'] = serving.classes
    signature = tf.saved_model.predict_signature_def(inputs=dict(images=serving.images),
                                                     outputs=outputs)
    try:
      os.makedirs(config.export_dir, exist_ok=True)
      aside = tempfile.mkdtemp(prefix='.writing-', dir=config.export_dir)
      try:
        written = os.path.join(aside, 'model')
        builder = tf.saved_model.Builder(written)
        builder.add_meta_graph_and_variables(session, [_TAG], signature_def_map={_KEY: signature},
                                             strip_default_attrs=True)
        builder.save()
        folder = os.path.join(config.export_dir, str(step))
        if os.path.isdir(folder):
          os.replace(folder, os.path.join(aside, 'before'))
        os.replace(written, folder)
      finally:
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
      raise RunError(f'The model cannot be exported to {config.export_dir}: {find_reason(error)}. '
                     'The checkpoints are whole: make room or choose another export_dir, and '
                     'start the same command again.') from None
  return folder


@contextlib.contextmanager
def open_checkpoint(config: Config, data_set: DataSet) -> Iterator[Tuple[Any, Serving, int]]:
  """Opens a session on the model of a run, with its best weights; gives the session, the model and
  the weights' step.

  Raises:
    UsageError: there is no checkpoint, or it is of another model.
  """
  assert config.checkpoint_dir is not None
  step = find_best(config.checkpoint_dir, config.best_metric)
  path = path_of(config.checkpoint_dir, step)
  shape, dtype = find_image_type(data_set.validation)
  with tf.Graph().as_default():
    build_logits = load_zoo().build_logits(config.model, num_classes=data_set.num_classes)
    serving = build_serving(build_logits, image_shape=shape, image_dtype=dtype)
    with tf.Session(config=session_config()) as session:
      _restore(session, path)
      yield session, serving, step


@contextlib.contextmanager
def open_export(folder: str) -> Iterator[Tuple[Any, Serving, int]]:
  """Opens a session on an exported model: a SavedModel's folder, or the newest one of those that a
  folder holds.

  Raises:
    UsageError: there is none, it is damaged, or has other inputs and outputs than `export` gives.
  """
  steps = [int(name) for name in os.listdir(folder) if name.isdigit()
          ] if os.path.isdir(folder) else []
  if steps and not os.path.exists(os.path.join(folder, 'saved_model.pb')):
    folder = os.path.join(folder, str(max(steps)))
  if not os.path.exists(os.path.join(folder, 'saved_model.pb')):
    raise UsageError(f'export_dir={folder} holds no exported model: make one with --export_dir '
                     'beside --checkpoint_dir.')
  with tf.Graph().as_default() as graph, tf.Session(config=session_config()) as session:
    try:
      signature = tf.saved_model.loader.load(session, [_TAG], folder).signature_def[_KEY]
      names = [signature.inputs['images'].name] + [
          signature.outputs[name].name for name in ('logits', 'probabilities', 'class')]
      serving = Serving(*[graph.get_tensor_by_name(name) for name in names])
    except (OSError, RuntimeError, KeyError, ValueError, tf.errors.OpError) as error:
      raise UsageError(f'The model in {folder} cannot be loaded: {find_reason(error)}. Export it '
                       'again.') from None
    yield session, serving, max(steps, default=0)


def build_serving(build_logits: Callable[[Any, Any], Any], *, image_shape: Any,
                  image_dtype: Any) -> Serving:
  """Builds a model to be asked, in the default graph.

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


def find_image_type(examples: Examples) -> Tuple[Any, Any]:
  """Returns the shape `[height, width, channels]` and the dtype of a split's images."""
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=examples.num_examples, batch_size=1, num_towers=1,
                             name=examples.name)
    [batch] = towers.build_inputs(examples, plan=plan, mode='split').next_batches()
    images = batch.tensors[0]
    return images.shape.as_list()[1:], images.dtype


def find_best(folder: str, metric: str) -> int:
  """Returns the step of the best checkpoint in a folder, or of the newest where no validation says
  which is the best.

  Raises:
    UsageError: there is no folder or no checkpoint.
  """
  steps = list_steps(folder) if os.path.isdir(folder) else []
  if not steps:
    raise UsageError(f"checkpoint_dir={folder} "
                     f"{'has no checkpoint' if os.path.isdir(folder) else 'does not exist'}: "
                     "give the folder of a run that has saved.")
  history = History(metric=metric)
  history.read(folder, sys.maxsize)
  return next(step for step in history.best_first() + steps if step in steps)


def session_config() -> Any:
  """Returns a session's configuration that takes only the memory of a GPU that it needs."""
  return tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True), allow_soft_placement=True)


def _restore(session, path):
  """Reads the weights; the checkpoint also holds what the optimizer keeps, which is left."""
  variables = tf.global_variables()
  ours = {
      variable.op.name: (tuple(variable.shape.as_list()), variable.dtype.base_dtype)
      for variable in variables
  }
  try:
    reader = tf.train.load_checkpoint(path)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    check_same_variables(
        path, {name: (tuple(shapes[name]), dtypes[name]) for name in shapes if name in ours}, ours)
    for variable in variables:
      variable.load(reader.get_tensor(variable.op.name), session)
  except UsageError:
    raise
  except (tf.errors.OpError, ValueError, RuntimeError) as error:
    raise UsageError(f'{path} is damaged: {find_reason(error)}. Remove it, and the one before it '
                     'is taken.'
                     ) from None
