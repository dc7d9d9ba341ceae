"""Opens the program of main.py for a measurement."""

import contextlib
import dataclasses
import sys
import time
from typing import Any, Iterator

from towers.placement.cluster import ALONE, Cluster
from towers.placement.devices import build_devices
from towers.placement.workers import Workers
from towers.settings.table import common_to_workers


@contextlib.contextmanager
def _open_worker(config: Any, devices: Any, cluster: Cluster) -> Iterator[Any]:
  """Yields the worker of this process, which joins the others, or None in a cluster of one."""
  from towers.process.startup import Startup
  from towers.workers.worker import join_workers

  with Startup(time.monotonic(), stream=sys.stderr) as startup, join_workers(
      cluster, common_to_workers(vars(config)), startup=startup,
      session_settings=dict(config.session_settings(), devices=devices,
                            collective=config.collective),
      start_seconds=config.start_seconds, worker_seconds=config.worker_seconds) as worker:
    startup.limit(None)  # What is measured may take any time.
    yield worker
    if worker:
      worker.peers.stop()


@contextlib.contextmanager
def open_program(config: Any, data_set: Any, *, num_towers: int, model: Any = None,
                 cluster: Cluster = ALONE) -> Iterator[Any]:
  """Yields the session of a program in its own graph, whose input is not started yet.

  Without a `model` it is the config's, and the towers stand on virtual CPU devices unless the
  config asks for GPUs.
  """
  import models
  import towers
  from towers.cli.jobs import build_configured
  from towers.process.startup import Startup
  from towers.tensorflow_v1 import tf

  kind = 'gpu' if config.device == 'gpu' else 'cpu'
  devices = build_devices(num_towers, kind)
  with tf.Graph().as_default(), _open_worker(config, devices, cluster) as worker:
    whole = model or models.build_classifier(config.model, num_classes=data_set.num_classes)

    def losses_alone(batch, is_training):
      # The programs that it is compared with compute no metrics either.
      returned = whole(batch, is_training)
      return returned[0] if isinstance(returned, tuple) else returned

    session = towers.Session(build_configured(
        dataclasses.replace(config, num_towers=num_towers, device=kind), losses_alone, data_set,
        Workers(cluster.num_workers, cluster.rank)), **config.session_settings())
    with session.opened(Startup(time.monotonic()), worker), session.as_default():
      session.resume()
      yield session
