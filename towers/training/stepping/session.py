"""A session as a config asks for it: for a run, for a worker's server, for an evaluator."""

from typing import Any

import towers
from towers.placement.workers import ALONE
from towers.training.settings.config import Config


def build_session_config(config: Config, devices: towers.Devices, workers: towers.Workers = ALONE,
                         needs_threads: bool = True) -> Any:
  """Returns the `tf.ConfigProto` of a config's session on the towers' devices, of one of several
  workers if need be.
  """
  return towers.build_session_config(devices, graph_rewriter=config.graph_rewriter,
                                     collective=config.collective,
                                     inter_threads=config.inter_threads,
                                     intra_threads=config.intra_threads, workers=workers,
                                     needs_threads=needs_threads)
