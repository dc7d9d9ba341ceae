"""What cannot start a thread says so, with the limit of `ulimit -u`, and waits for none."""

import resource
import threading

import pytest

from tests.harness.in_process_cluster import find_ports
from towers.data.records import open_records
from towers.placement.cluster import Cluster
from towers.process.run_error import RunError
from towers.process.startup import Startup
from towers.process.threads import Threads
from towers.session.watchdog import Watchdog
from towers.workers.meeting import Peers


def meet():
  peers = Peers(Cluster([f'127.0.0.1:{port}' for port in find_ports(2)], 1))
  try:
    peers.meet(10)
  finally:
    peers.close()


STARTS = {
    'startup': lambda: Startup(0).__enter__(),
    'watchdog': lambda: Watchdog(limit_seconds=10).__enter__(),
    'peers': meet,
    'records': lambda: open_records([__file__], None),
    'a call': lambda: Threads(1).submit(len, ''),
}


@pytest.mark.parametrize('start', STARTS)
def test_what_cannot_start_a_thread_says_so_and_ends(start, monkeypatch):
  def refuse(*_, **__):
    raise RuntimeError("can't start new thread")

  monkeypatch.setattr(threading, '_start_new_thread', refuse)
  limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
  with pytest.raises(RunError, match=f"can't start new thread: this user may have {limit} "):
    STARTS[start]()
