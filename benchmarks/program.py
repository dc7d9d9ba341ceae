"""The program of main.py, opened for a measurement."""

import contextlib
import sys
import time
from typing import Any, Iterator

from training.cluster import ALONE, Cluster


@contextlib.contextmanager
def open_worker(config: Any, devices: Any, cluster: Cluster) -> Iterator[Any]:
  """Meets the other workers of a cluster; gives a training.worker.Worker, or None where there are none.

  Args:
    config: training.config.Config.
    devices: towers.Devices.
    cluster: of which this process is a worker; all others call this at the same time.
  """
  from training.startup import Startup
  from training.worker import join_workers

  with Startup(time.monotonic(), stream=sys.stderr) as startup, join_workers(
      cluster, config=config, devices=devices, facts={}, startup=startup) as worker:
    yield worker
    if worker:
      worker.peers.stop()


def open_session(worker: Any, devices: Any, config: Any, needs_threads: bool = True) -> Any:
  """Returns a session for the default graph, on a worker's server unless that is None."""
  from tensorflow_v1 import tf
  from training.session import build_session_config
  if worker:
    return tf.Session(worker.target, config=worker.session_config)
  return tf.Session(config=build_session_config(config, devices, needs_threads=needs_threads))


@contextlib.contextmanager
def open_program(config: Any, data_set: Any, *, num_towers: int, model: Any = None,
                 cluster: Cluster = ALONE) -> Iterator[Any]:
  """Builds the program in a graph of its own, and opens it with its initial weights.

  Args:
    config: training.config.Config.
    data_set: data.DataSet.
    num_towers: on virtual CPU devices.
    model: towers.Model, or None for the config's.
    cluster: of which this process is a worker; with others, all open it at once.
  Yields:
    training.steps.Steps, to be started, within its graph and session.
  """
  import models
  import towers
  from main import build_program
  from tensorflow_v1 import tf
  from training.steps import Steps
  from training.worker import facts_of_graph

  devices = towers.build_devices(num_towers, 'cpu')
  with tf.Graph().as_default() as graph, open_worker(config, devices, cluster) as worker:
    model = model or models.build_classifier(config.model, num_classes=data_set.num_classes)
    program = build_program(config, model, data_set, devices.names, cluster.worker, cluster.num_workers)
    if worker:
      worker.compare('graphs', facts_of_graph(graph), 'See what they differ in.')
    with open_session(worker, devices, config, program.needs_threads) as session:
      steps = Steps(session, program)
      steps.start_variables()
      steps.spread()
      yield steps
