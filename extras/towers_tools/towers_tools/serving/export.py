"""Export: a run's best weights as a SavedModel, in a graph of its own without training.

  checkpoint ─► weights ───┐
                           ├─►  served/315/saved_model.pb, variables/
  predict(images) ─────────┘      inputs by its parameters, outputs by name, see `model`

The folder is named after the step of the weights: TensorFlow Serving reads it as a version. Without
iterators, staging areas, devices and towers the model loads anywhere, also on one CPU. The weights
are those of the best validation that has a checkpoint, otherwise the newest: their averages where
validation measured these. Averages that a model keeps for itself, as for a teacher, are its own.
"""

import contextlib
import functools
import os
from typing import Any, Callable, Iterator, Mapping, Optional, Tuple

from towers.base.files import folder_aside
from towers.base.paths import check_local_path
from towers.base.reason import find_reason, is_about_room
from towers.base.usage_error import UsageError
from towers.checkpoint.checkpoints import find_best, path_of
from towers.checkpoint.restore import restore_weights
from towers.data import Examples
from towers.process.run_error import RunError
from towers.session.predict_function import Predict, choose_parts
from towers.tensorflow_v1 import tf
from towers_tools.serving.model import Serving, build_serving, read_types

_KEY = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_TAG = tf.saved_model.tag_constants.SERVING


def prepare_export(export_dir: str, *, predict: Predict, examples: Examples,
                   **settings: Any) -> Callable[[], str]:
  """Returns what calls `write_best`, once a run has ended; checks what can be checked before.

  Raises:
    UsageError: the parameters of `predict` do not fit a batch of the examples.
  """
  choose_parts(predict, read_types(examples))
  return functools.partial(write_best, export_dir, predict=predict, examples=examples, **settings)


def write_best(export_dir: str, *, checkpoint_dir: str, predict: Predict, examples: Examples,
               best_metric: Optional[str] = None, inputs: Optional[Mapping[str, Any]] = None
               ) -> str:
  """Does the same as `towers.export` for any `examples` of the model's data."""
  check_local_path('export_dir', export_dir)
  opened = open_checkpoint(checkpoint_dir, predict, examples, best_metric=best_metric,
                           inputs=inputs)
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
    for node in builder._saved_model.meta_graphs[0].graph_def.node:
      if 'debug_name' in node.attr:
        del node.attr['debug_name']  # 2.x uses it in messages, and 1.14 cannot load it.
    builder.save()
    if os.path.isdir(folder):
      os.replace(folder, os.path.join(aside, 'before'))
    os.replace(written, folder)
  return folder


@contextlib.contextmanager
def open_checkpoint(checkpoint_dir: str, predict: Predict, examples: Examples, *,
                    best_metric: Optional[str] = None,
                    inputs: Optional[Mapping[str, Any]] = None
                    ) -> Iterator[Tuple[tf.Session, Serving, int]]:
  """Opens a session on the model of a run; yields the session, the model and its weights' step.

  The arguments are those of `write_best`.

  Raises:
    UsageError: there is no checkpoint, or it is of another model.
  """
  step = find_best(checkpoint_dir, best_metric)
  # The default session is also Keras's, where a model loads weights.
  with tf.Graph().as_default(), tf.Session(config=session_config()) as session:
    serving = build_serving(predict, examples, own_inputs=inputs)
    restore_weights(session, path_of(checkpoint_dir, step))
    session.run(tf.tables_initializer())
    yield session, serving, step


@contextlib.contextmanager
def open_export(folder: str) -> Iterator[Tuple[tf.Session, Serving, int]]:
  """Opens a session on an exported model; yields the session, the model and its weights' step.

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


def session_config() -> Any:
  """Returns a `tf.ConfigProto` with which a session takes only the GPU memory that it needs."""
  return tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True), allow_soft_placement=True)
