"""The processes of one life: a run of main.py on each of its workers, and what they note."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import List, Optional, Sequence

from tests import ROOT
from tests.chaos.shape import Shape
from tests.harness.in_process_cluster import find_ports
from towers_launch.tf_config import format_tf_config

# For a busy machine: nothing in a life takes so long.
LIMIT_SECONDS = 180.0


class Lost(Exception):
  """A law does not hold: an end that does not come, a wrong code, or an example too few."""


class Member:
  """One process, what it notes and what it says; `process` is the subprocess."""

  def __init__(self, command: Sequence[str], folder: str, name: str, **environment: str):
    self._notes, self._output = folder, os.path.join(folder, name)
    with open(self._output, 'wb') as output:
      self.process = subprocess.Popen(
          [sys.executable, '-m', 'tests.chaos.life', folder, *command], cwd=ROOT,
          env=dict(os.environ, **environment), stdin=subprocess.DEVNULL, stdout=output,
          stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_handle_signals)

  @property
  def notes(self) -> List[List[str]]:
    return read_notes(self._notes, self.process.pid)

  @property
  def said(self) -> str:
    with open(self._output, encoding='utf-8', errors='replace') as file:
      return file.read()

  def count(self, word: str) -> int:
    return sum(words[0] == word for words in self.notes)


def read_notes(folder: str, pid: int) -> List[List[str]]:
  """Returns the whole lines that a life has noted, split into words."""
  try:
    with open(os.path.join(folder, str(pid)), encoding='ascii') as file:
      return [line.split() for line in file.read().split('\n')[:-1]]
  except FileNotFoundError:
    return []


def _handle_signals():
  # A background job ignores them, and its children would too.
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


class Team:
  """All workers of one life."""

  def __init__(self, shape: Shape, folder: str, flags: Sequence[str], *, drops_out: bool):
    self.shape = shape
    self.folder = folder
    command = ['drop' if drops_out else 'keep', *shape.to_flags(), *flags,
               f'--checkpoint_dir={folder}']
    # Not on the disk that may be full.
    self._notes = tempfile.mkdtemp()
    addresses = [f'127.0.0.1:{port}' for port in find_ports(shape.workers)]
    configs = [dict(TF_CONFIG=format_tf_config(addresses, 'worker', rank))
               for rank in range(shape.workers)] if shape.workers > 1 else [{}]
    self.members = [Member(command, self._notes, f'worker_{rank}', **config)
                    for rank, config in enumerate(configs)]

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for member in self.members:
      if member.process.poll() is None:
        os.killpg(member.process.pid, signal.SIGKILL)
        member.process.wait()
    shutil.rmtree(self._notes)

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
      time.sleep(0.005)
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
      if 'Traceback' in member.said:
        raise Lost(f'a stack trace\n{self.describe()}')
    return codes

  def describe(self) -> str:
    return '\n'.join(
        f'---- worker {rank}: {member.process.poll()}, {len(member.notes)} notes, last '
        f'{member.notes[-1:]}\n{member.said[-1500:]}' for rank, member in enumerate(self.members))
