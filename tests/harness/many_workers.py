"""Many workers without TensorFlow: all that `Peers` do for a thousand of them, counted.

  python -m tests.harness.many_workers 64 1024

  this process ──┬─► chief      one Peers, whose bytes, lines and memory are counted
                 ├─► others     256 Peers, each with its own thread and connection over loopback
                 └─► others     …

  meet     all connect to the chief, and wait for each other
  share    the same facts of all, as flags and data are
  text     a text of the chief's, as a history is
  signs    what three seconds of training cost
  loss     one is gone: until all others name it

Times say nothing on a machine that has fewer cores than workers; bytes, lines and memory do.
"""

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import re
import resource
import sys
import threading
import time

from towers.placement.cluster import Cluster
from towers.workers import meeting as meeting_module
from towers.workers.connection import encode
from towers.workers.meeting import Peers
from towers_launch.ports import find_free_ports

_OF_A_PROCESS = 256
_SECONDS = 300
_SIGNS = 6
_FACTS = {f'--flag_{index}': f'value {index}' for index in range(64)}
_TEXT = 'step 1: loss 2.30\n' * 2000
# Epoll and its waker, the connection, and a few of each process.
_FILES_OF_A_PEER, _FILES_OF_A_PROCESS = 4, 32
_SIGN_OF_CHIEF, _SIGN = encode(missing=[], gone={}), encode()


class Counts:
  """What all connections of this process have sent and received, in bytes and lines.

  `named` counts the lines that name one that has ended. Signs of life, of which there are more the
  longer a phase takes, are counted apart.
  """

  def __init__(self):
    self.sent = self.received = self.sent_lines = self.received_lines = self.named = 0
    self.signs_sent = self.signs_received = 0
    write, feed = asyncio.StreamWriter.write, asyncio.StreamReader.feed_data

    def count_written(writer, data):
      if data == _SIGN_OF_CHIEF:
        self.signs_sent += len(data)
      else:
        self.sent += len(data)
        self.sent_lines += bytes(data).count(b'\n')
        self.named += bytes(data).count(b'has ended')
      write(writer, data)

    def count_fed(reader, data):
      signs = data.count(_SIGN)
      self.signs_received += signs * len(_SIGN)
      self.received += len(data) - signs * len(_SIGN)
      self.received_lines += data.count(b'\n') - signs
      feed(reader, data)

    asyncio.StreamWriter.write, asyncio.StreamReader.feed_data = count_written, count_fed

  def read(self):
    return dict(vars(self))


def _read_memory():
  """Returns the most memory that this process has had, in bytes; `getrusage` adds its parent's."""
  with open('/proc/self/status') as file:
    return 1024 * int(re.search(r'VmHWM:\s+(\d+) kB', file.read()).group(1))


def _cluster_of(port, num_workers, rank):
  # The chief's alone is connected to.
  others = [f'10.0.{other // 256}.{other % 256}:2222' for other in range(1, num_workers)]
  return Cluster([f'127.0.0.1:{port}', *others], rank)


def _live(peers, act=lambda phase: None):
  """Does what a worker does, up to its training; `act` is told what has ended."""
  peers.meet(_SECONDS)
  act('meet')
  facts = peers.share(_FACTS)
  assert facts == [_FACTS] * len(facts)
  act('share')
  assert peers.share(_TEXT if peers._cluster.is_chief else '')[0] == _TEXT
  act('text')
  # All have it, so that the next second holds signs of life alone.
  peers.share('serves')


def _run_chief(pipe, port, num_workers):
  counts, found, before = Counts(), {}, {}
  memory = _read_memory()

  def note(phase):
    now = counts.read()
    found[phase] = {name: value - before.get(name, 0) for name, value in now.items()}
    before.update(now)

  def end(reason, code):
    note('loss')
    pipe.send(dict(found, memory=_read_memory() - memory, reason=reason, gap=max(gaps)))
    os._exit(code)

  beats, gaps = [time.monotonic()], [0.0]
  miss = Peers._miss

  def beat(self, gone):
    gaps.append(time.monotonic() - beats.pop())
    beats.append(time.monotonic())
    miss(self, gone)

  meeting_module.end_process, Peers._miss = end, beat
  peers = Peers(_cluster_of(port, num_workers, 0), tell=str)
  _live(peers, note)
  with peers.watched(_SECONDS):
    before.update(counts.read())
    last = len(gaps) + _SIGNS
    while len(gaps) < last:
      time.sleep(0.02)
    note('signs')
    pipe.send('ready')
    time.sleep(_SECONDS)


def _run_others(pipe, port, num_workers, ranks):
  # Else hundreds of threads that wait for the interpreter wake every 5 ms to ask for it.
  sys.setswitchinterval(1)
  reasons, lock = {}, threading.Lock()
  threads = concurrent.futures.ThreadPoolExecutor(len(ranks))
  all_peers = [Peers(_cluster_of(port, num_workers, rank), tell=str) for rank in ranks]

  def end(reason, _):  # In the thread of one of them.
    with lock:
      reasons.setdefault(threading.current_thread(), reason)

  meeting_module.end_process = end
  list(threads.map(_live, all_peers))
  with contextlib.ExitStack() as stack:
    for peers in all_peers:
      stack.enter_context(peers.watched(_SECONDS))
    pipe.send('ready')
    lost = pipe.recv()
    gone = [peers for peers in all_peers if peers._cluster.rank == lost]
    for peers in gone:
      peers.close()
    until = time.monotonic() + _SECONDS
    while len(reasons) < len(all_peers) - len(gone) and time.monotonic() < until:
      time.sleep(0.05)
    pipe.send(list(reasons.values()))
  os._exit(0)


def find_need(num_workers):
  """Returns how many open files a process here needs: a message, or None if it may have so many."""
  need = _FILES_OF_A_PEER * min(num_workers, _OF_A_PROCESS) + _FILES_OF_A_PROCESS
  need = max(need, num_workers + _FILES_OF_A_PROCESS)
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft < need:
    if 0 <= hard < need:
      return f'{num_workers} workers need {need} open files, and this process may have {hard}.'
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
  return None


def measure(num_workers):
  """Returns what the chief counts by phase, and how many of the others name the one that is lost.

  Raises:
    OSError: the limit of open files is below what that needs; says both numbers.
  """
  problem = find_need(num_workers)
  if problem:
    raise OSError(problem)
  context = multiprocessing.get_context('spawn')
  [port] = find_free_ports(1)
  lost = num_workers // 2
  groups = [list(range(first, min(first + _OF_A_PROCESS, num_workers)))
            for first in range(1, num_workers, _OF_A_PROCESS)]
  tasks = [(_run_chief,), *((_run_others, ranks) for ranks in groups)]
  pipes, processes = [], []
  try:
    for act, *more in tasks:
      near, far = context.Pipe()
      pipes.append(near)
      processes.append(context.Process(target=act, args=(far, port, num_workers, *more)))
      processes[-1].start()
      far.close()
    assert [pipe.recv() for pipe in pipes] == ['ready'] * len(pipes)
    for pipe in pipes[1:]:
      pipe.send(lost)
    found, *reasons = [pipe.recv() for pipe in pipes]
  finally:
    for process in processes:
      process.kill()
      process.join()
  named = rf'^worker {lost} \([0-9.:]+\) has ended\. '
  said = [reason for of_process in reasons for reason in of_process]
  return dict(found, named=sum(bool(re.match(named, reason)) for reason in said))


def main():
  for num_workers in map(int, sys.argv[1:]):
    found = measure(num_workers)
    print(f"{num_workers} workers: memory of the chief {found['memory'] / 1e6:.1f} MB, "
          f"{found['named']} of {num_workers - 2} others name the lost one; longest pause of the "
          f"chief's signs {found['gap']:.1f} s")
    for phase in ('meet', 'share', 'text', 'signs', 'loss'):
      print(f'  {phase}', {name: f'{value:,} ({value / num_workers:.1f} per worker)'
                           for name, value in found[phase].items()})


if __name__ == '__main__':
  main()
