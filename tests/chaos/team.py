"""The processes of one life: a run of main.py on each of its workers, and what they note."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import List, Optional, Sequence

from tests import ROOT
from tests.chaos.shape import Shape
from tests.harness.in_process_cluster import find_ports
from towers_launch.tf_config import format_tf_config

# For a busy machine: nothing in a life takes so long.
LIMIT_SECONDS = 180.0
_REDIRECTIONS = {'closed': '>&- 2>&-', 'full': '>/dev/full 2>&1'}


class Lost(Exception):
  """A law does not hold: an end that does not come, a wrong code, or an example too few."""


class Member:
  """One process.

  Attributes:
    process: the subprocess.
    notes: its lines, split into words.
  """

  def __init__(self, command: Sequence[str], streams: str, environment=None):
    """Starts it with its streams `read`, `closed`, `full` or `unread` until the end."""
    source, sink = os.pipe()
    words = [sys.executable, '-m', 'tests.chaos.life', str(sink), *command]
    redirection = _REDIRECTIONS.get(streams)
    if redirection:
      words = ['sh', '-c', f'exec "$0" "$@" {redirection}', *words]
    self.process = subprocess.Popen(
        words, cwd=ROOT, env=dict(os.environ, **(environment or {})), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[sink], start_new_session=True,
        preexec_fn=_handle_signals)
    os.close(sink)
    self.notes: List[List[str]] = []
    self._said: List[bytes] = []
    self._threads = [threading.Thread(target=self._read_notes, args=[source], daemon=True)]
    if streams != 'unread':
      self._threads.append(threading.Thread(target=self._read_stream, daemon=True))
    for thread in self._threads:
      thread.start()

  def _read_notes(self, source):
    with os.fdopen(source, 'rb') as lines:
      for line in lines:
        self.notes.append(line.decode().split())  # A pipe takes each line whole, or not at all.

  def _read_stream(self):
    while True:
      try:
        received = os.read(self.process.stdout.fileno(), 1 << 16)
      except (OSError, ValueError):
        return
      self._said.append(received)
      if not received:
        return

  def leave_reader(self) -> None:
    """Closes the reading end of its streams, as `| head -1` does."""
    # The other thread may be reading: the end of a pipe of nothing takes the place of this one.
    nothing, other = os.pipe()
    os.close(other)
    os.dup2(nothing, self.process.stdout.fileno())
    os.close(nothing)

  @property
  def said(self) -> str:
    return b''.join(self._said).decode('utf-8', 'replace')

  def count(self, word: str) -> int:
    return sum(words[0] == word for words in list(self.notes))

  def close(self) -> None:
    """Kills what is left, and waits for its last notes."""
    if self.process.poll() is None:
      os.killpg(self.process.pid, signal.SIGKILL)
      self.process.wait()
    for thread in self._threads:
      thread.join(10)
    self.process.stdout.close()


def _handle_signals():
  # A background job ignores them, and its children would too.
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


class Team:
  """All workers of one life."""

  def __init__(self, shape: Shape, folder: str, flags: Sequence[str], *, drops_out: bool,
               streams: str = 'read'):
    self.shape = shape
    self.folder = folder
    command = ['drop' if drops_out else 'keep', *shape.to_flags(), *flags,
               f'--checkpoint_dir={folder}']
    if shape.workers == 1:
      self.members = [Member(command, streams)]
      return
    addresses = [f'127.0.0.1:{port}' for port in find_ports(shape.workers)]
    self.members = [
        Member(command, streams, {'TF_CONFIG': format_tf_config(addresses, 'worker', rank)})
        for rank in range(shape.workers)]

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for member in self.members:
      member.close()

  def send(self, number: int, ranks: Optional[Sequence[int]] = None) -> None:
    for rank in range(len(self.members)) if ranks is None else ranks:
      self.members[rank].process.send_signal(number)

  def has_ended(self) -> bool:
    return all(member.process.poll() is not None for member in self.members)

  def wait_for(self, word: str, times: int = 1, rank: int = 0) -> bool:
    """Waits until a member has noted a word so many more times; False if one ended before."""
    member = self.members[rank]
    wanted = member.count(word) + times
    deadline = time.monotonic() + LIMIT_SECONDS
    while member.count(word) < wanted:
      if any(other.process.poll() is not None for other in self.members):
        return False
      if time.monotonic() > deadline:
        raise Lost(f'worker {rank} does not come to {word!r} {times} times\n{self.describe()}')
      time.sleep(0.002)
    return True

  def finish(self) -> List[int]:
    """Waits for the ends; returns the exit codes.

    Raises:
      Lost: a process does not end, leaves another one behind, or prints a stack trace.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    codes = []
    for rank, member in enumerate(self.members):
      try:
        codes.append(member.process.wait(max(1.0, deadline - time.monotonic())))
      except subprocess.TimeoutExpired:
        raise Lost(f'worker {rank} does not end\n{self.describe()}') from None
    for member in self.members:
      try:
        os.killpg(member.process.pid, 0)
      except ProcessLookupError:
        pass
      else:
        raise Lost(f'a process of group {member.process.pid} is left\n{self.describe()}')
      member.close()
      if 'Traceback' in member.said:
        raise Lost(f'a stack trace\n{self.describe()}')
    return codes

  def describe(self) -> str:
    return '\n'.join(
        f'---- worker {rank}: {member.process.poll()}, {len(member.notes)} notes, last '
        f'{member.notes[-1:]}\n{member.said[-1500:]}' for rank, member in enumerate(self.members))
