"""Horovod 0.19 with gloo, as its users write a session's loop on TensorFlow 1.14.

Newer versions need a newer TensorFlow. It is no dependency: docs/workers.md says how to build it.
"""

import importlib.util
import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any, Callable, Sequence

from towers.placement.cluster import Cluster

_SECONDS_TO_START = 60


def is_installed() -> bool:
  """Whether Horovod can be imported."""
  return importlib.util.find_spec('horovod') is not None


def run_horovod(turns: Any, model: Any, optimizer: Any, arrays: Sequence[Any], batch_size: int, *,
                cluster: Cluster, cycle_milliseconds: str = '') -> None:
  """Takes steps with a `DistributedOptimizer`; examples, batch and losses are this worker's own.

  Horovod looks for gradients to sum every `cycle_milliseconds`, by default 5.
  """
  from towers.tensorflow_v1 import tf
  if cycle_milliseconds:
    os.environ['HOROVOD_CYCLE_TIME'] = cycle_milliseconds
  _join(cluster)
  import horovod.tensorflow as hvd

  hvd.init()
  data_set = tf.data.Dataset.from_tensor_slices(arrays).repeat().batch(
      batch_size, drop_remainder=True).prefetch(2)
  batches = data_set.make_initializable_iterator()
  losses, _ = model(batches.get_next(), True)
  loss = tf.reduce_mean(losses)
  update = hvd.DistributedOptimizer(optimizer).minimize(loss)
  with tf.Session() as session:
    session.run([tf.global_variables_initializer(), batches.initializer])
    session.run(hvd.broadcast_global_variables(0))
    step: Callable[[], Any] = session.make_callable([loss, update])
    while turns.end_step(step()[0]):
      pass


def _join(cluster):
  """Sets what Horovod's launcher would set, and serves as its meeting point in worker 0."""
  size = cluster.num_workers
  host, _, port = cluster.addresses[0].rpartition(':')
  os.environ.update({
      'HOROVOD_CONTROLLER': 'gloo', 'HOROVOD_CPU_OPERATIONS': 'gloo', 'HOROVOD_GLOO_IFACE': 'lo',
      'HOROVOD_GLOO_RENDEZVOUS_ADDR': host, 'HOROVOD_GLOO_RENDEZVOUS_PORT': port,
      'HOROVOD_RANK': str(cluster.rank), 'HOROVOD_SIZE': str(size),
      'HOROVOD_LOCAL_RANK': str(cluster.rank), 'HOROVOD_LOCAL_SIZE': str(size),
      'HOROVOD_CROSS_RANK': '0', 'HOROVOD_CROSS_SIZE': '1'})
  if cluster.is_chief:
    from horovod.run.http import http_server
    server = http_server.RendezvousServer(False)
    server.httpd = http_server.RendezvousHTTPServer(
        (host, int(port)), http_server.RendezvousHandler, False)
    server.httpd.extract_scope_size([
        SimpleNamespace(size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1)
        for rank in range(size)])
    threading.Thread(target=server.listen_loop, daemon=True).start()
    return
  until = time.monotonic() + _SECONDS_TO_START
  while True:
    try:
      socket.create_connection((host, int(port))).close()
      return
    except ConnectionRefusedError:
      if time.monotonic() > until:
        raise
      time.sleep(0.05)
