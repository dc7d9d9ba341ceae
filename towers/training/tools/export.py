"""Export: a run's best weights as a SavedModel, in a graph of its own without training.

  checkpoint ─► weights ───┐
                           ├─►  served/315/saved_model.pb, variables/
  predict(images) ─────────┘      inputs by its parameters, outputs by name, see `serving`

The folder is named after the step of the weights: TensorFlow Serving reads it as a version. Without
iterators, staging areas, devices and towers the model loads anywhere, also on one CPU. The weights
are those of the best validation that has a checkpoint, otherwise the newest: their averages where
validation measured these. Averages that a model keeps for itself, as for a teacher, are its own.
"""

import contextlib
import os
import sys
from typing import Any, Iterator, Tuple

from tensorflow_v1 import Session, tf
from towers.base.files import folder_aside
from towers.base.output import write_line
from towers.base.paths import check_local_path
from towers.base.reason import find_reason, is_about_room
from towers.base.usage_error import UsageError
from towers.data import Examples
from towers.placement.cluster import read_cluster
from towers.training.faults.run_error import RunError
from towers.training.saving.files import list_steps, open_reader, path_of
from towers.training.saving.history import History
from towers.training.saving.restore import (
  Part,
  Tensor,
  check_same_variables,
  find_part,
  read_tensors,
  read_values,
)
from towers.training.tools.serving import Predict, Serving, build_serving
from towers.training_graph import TrainingGraph
from towers.update.averages import AVERAGES_TENSOR, name_average

_KEY = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_TAG = tf.saved_model.tag_constants.SERVING


def export(program: TrainingGraph, export_dir: str, *, predict: Predict, checkpoint_dir: str,
           best_metric: str = 'loss') -> str:
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
    predict: a function of parts of a batch, `[n, ...]` each: of a tuple as many as it has
      parameters, the first ones; of a dict those that its parameters name, or all by `**features`.
      It returns a tensor, or a dict of tensors by name, each `[n, ...]`.
    checkpoint_dir: of the run.
    best_metric: of the validations, to choose the weights by; without any, the newest are taken.

  Returns:
    The folder, or '' in a worker other than the chief, which writes nothing.

  Raises:
    UsageError: there is no checkpoint, it is of another model, or `predict` does not fit the batch.
    RunError: the model cannot be written.
  """
  if not read_cluster(os.environ).is_chief:
    return ''
  return write_best(export_dir, predict=predict, examples=program.train_examples,
                    checkpoint_dir=checkpoint_dir, best_metric=best_metric)


def write_best(export_dir: str, *, checkpoint_dir: str, predict: Predict, examples: Examples,
               best_metric: str = 'loss') -> str:
  """Does the same as `export` for any `examples` of the model's data."""
  check_local_path('export_dir', export_dir)
  opened = open_checkpoint(checkpoint_dir, predict, examples, best_metric=best_metric)
  with opened as (session, serving, step):
    try:
      return _write(export_dir, session, serving, step)
    except (OSError, tf.errors.OpError) as error:
      reason = find_reason(error)
      advice = 'make room or choose' if is_about_room(reason) else 'choose'
      raise RunError(f'The model cannot be exported to {export_dir}: {reason}. '
                     f'The checkpoints are whole: {advice} another export_dir, and start the same '
                     'command again.') from None


def _write(export_dir, session, serving, step):
  for op in session.graph.get_operations():
    if op.type == 'VarHandleOp' and 'debug_name' in op.node_def.attr:
      op._clear_attr('debug_name')  # 2.x uses it in messages, and 1.14 cannot load it.
  signature = tf.saved_model.predict_signature_def(inputs=serving.inputs, outputs=serving.outputs)
  folder = os.path.join(export_dir, str(step))
  os.makedirs(export_dir, exist_ok=True)
  with folder_aside(export_dir) as aside:
    written = os.path.join(aside, 'model')
    builder = tf.saved_model.Builder(written)
    builder.add_meta_graph_and_variables(
        session, [_TAG], signature_def_map={_KEY: signature}, strip_default_attrs=True,
        assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
        main_op=tf.tables_initializer(), clear_devices=True)
    builder.save()
    if os.path.isdir(folder):
      os.replace(folder, os.path.join(aside, 'before'))
    os.replace(written, folder)
  return folder


@contextlib.contextmanager
def open_checkpoint(checkpoint_dir: str, predict: Predict, examples: Examples, *,
                    best_metric: str = 'loss') -> Iterator[Tuple[tf.Session, Serving, int]]:
  """Opens a session on the model of a run; yields the session, the model and its weights' step.

  The arguments are those of `write_best`.

  Raises:
    UsageError: there is no checkpoint, or it is of another model.
  """
  step = find_best(checkpoint_dir, best_metric)
  # The default session is also Keras's, where a model loads weights.
  with tf.Graph().as_default(), tf.Session(config=session_config()) as session:
    serving = build_serving(predict, examples)
    restore_weights(session, path_of(checkpoint_dir, step))
    session.run(tf.tables_initializer())
    yield session, serving, step


@contextlib.contextmanager
def open_export(folder: str) -> Iterator[Tuple[tf.Session, Serving, int]]:
  """Opens a session on an exported model; yields the session, the model and its weights' step.

  Args:
    folder: of a SavedModel, or with several of them, of which the newest is opened.

  Raises:
    UsageError: there is none, or it is damaged.
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
      serving = Serving(*[
          {name: graph.get_tensor_by_name(infos[name].name) for name in sorted(infos)}
          for infos in (signature.inputs, signature.outputs)])
    except (OSError, RuntimeError, KeyError, ValueError, tf.errors.OpError) as error:
      raise UsageError(f'The model in {folder} cannot be loaded: {find_reason(error)}. Export it '
                       'again.') from None
    yield session, serving, max(steps, default=0)


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


def restore_weights(session: Session, path: str) -> None:
  """Gives the default graph's variables a checkpoint's weights, or their averages, and no more.

  Raises:
    UsageError: it is of another model, or damaged.
  """
  variables = tf.global_variables()
  try:
    reader = open_reader(path)
    tensors = read_tensors(reader)
    parts = {variable: find_part(variable, tensors) for variable in variables}
    averages = {variable: name_average(variable.op.name) for variable in variables
                if name_average(variable.op.name) in tensors}
    if averages and not reader.has_tensor(AVERAGES_TENSOR):
      write_line(f'{min(averages.values())} in {path} is an average of the model itself, which '
                 'validation did not measure: the weights are taken. A variable of this name in '
                 'predict reads it.')
      averages = {}
    parts.update({variable: Part(name, Tensor(variable.shape, variable.dtype.base_dtype))
                  for variable, name in averages.items()})
    expected = {part.name: part.tensor for part in parts.values()}
    check_same_variables(
        path, {name: tensor for name, tensor in tensors.items() if name in expected}, expected,
        fix='Give the flags that it was written with, or another checkpoint_dir.')
    for variable, value in read_values(reader, parts).items():
      variable.load(value, session)
  except UsageError:
    raise
  except Exception as error:  # A damaged file makes TensorFlow raise anything.
    raise UsageError(f'{path} cannot be read: {find_reason(error)}. Put a copy that is whole '
                     'there.') from None
