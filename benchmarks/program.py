"""The program of main.py, opened for a measurement."""

import contextlib
from typing import Any, Iterator


@contextlib.contextmanager
def open_program(config: Any, data_set: Any, *, num_towers: int, model: Any = None) -> Iterator[Any]:
  """Builds the program in a graph of its own, and opens it with its initial weights.

  Args:
    config: training.config.Config.
    data_set: data.DataSet.
    num_towers: on virtual CPU devices.
    model: towers.Model, or None for the config's.
  Yields:
    training.steps.Steps, to be started, within its graph and session.
  """
  import models
  import towers
  from main import build_program
  from tensorflow_v1 import tf
  from training.steps import Steps

  with tf.Graph().as_default():
    devices = towers.build_devices(num_towers, 'cpu')
    model = model or models.build_classifier(config.model, num_classes=data_set.num_classes)
    program = build_program(config, model, data_set, devices.names)
    session_config = towers.build_session_config(devices, inter_threads=config.inter_threads)
    # Beside other programs in one process each has threads as it asks for them.
    session_config.use_per_session_threads = True
    with tf.Session(config=session_config) as session:
      session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
      yield Steps(session, program)
