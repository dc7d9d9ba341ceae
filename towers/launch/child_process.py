"""A child process: a command in a process group of its own, what it writes, and how it ended.

  command ── stdout ──► pipe ──► Lines ──► worker 0 │ whole line ──► stdout
          └─ stderr ──► pipe ──► Lines ──► worker 0 │ whole line ──► stderr

The group is ended with its first process, so nothing that a worker has started outlives it.
"""

import contextlib
import os
import signal
import subprocess
import time
from typing import IO, Callable, Dict, List, NamedTuple, Optional, Sequence, TextIO

from towers.training.faults.signals import exit_code

_READ_BYTES = 1 << 16
# More than a pipe holds: one reading takes all that an ended process has left.
_LAST_READ_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
_SECONDS_BETWEEN_REDRAWN_LINES = 5.0
_COLOURS = (36, 33, 35, 32, 34, 31)
# Without those for real time, of which only the first and the last have names.
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


class Lines:
  """Cuts what comes from a pipe into whole lines.

  A line that is drawn again and again, with `\\r`, is shown as it stands every few seconds, and as
  it was last.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Begins with an empty line."""
    self._rest = b''
    self._clock = clock
    self._shown_at = float('-inf')

  def add(self, received: bytes) -> List[bytes]:
    """Returns the lines that are whole now, without their ends."""
    *lines, self._rest = (self._rest + received).replace(b'\r\n', b'\n').split(b'\n')
    lines = [_last_drawn(line) for line in lines]
    if len(self._rest) > _LONGEST_LINE:  # What never ends a line must not fill the memory either.
      lines += self.end()
    # A \r at the very end may be the first half of an end of line.
    elif b'\r' in self._rest[:-1] and self._clock(
    ) - self._shown_at >= _SECONDS_BETWEEN_REDRAWN_LINES:
      self._shown_at = self._clock()
      lines.append(_last_drawn(self._rest))
    return lines

  def end(self) -> List[bytes]:
    """Returns the last line if it has no end."""
    last, self._rest = _last_drawn(self._rest), b''
    return [last] if last else []


def _last_drawn(line):
  return line.rstrip(b'\r').rpartition(b'\r')[2]


class Output:
  """One of the launcher's own streams, to which children's lines are written under their names."""

  def __init__(self, stream: TextIO):
    """Prepares; tags are coloured where `stream` is a terminal and NO_COLOR is not set."""
    self._descriptor = stream.fileno()
    self._encoding = stream.encoding or 'ascii'
    self._is_coloured = stream.isatty() and not os.environ.get('NO_COLOR') and os.environ.get(
        'TERM') != 'dumb'

  def format_tag(self, name: str, number: int) -> bytes:
    """Returns what stands before each line of a child."""
    bar = '│' if 'utf' in self._encoding.lower() else '|'
    tag = f'{name} {bar} '
    if self._is_coloured:
      tag = f'\x1b[{_COLOURS[number % len(_COLOURS)]}m{tag}\x1b[0m'
    return tag.encode(self._encoding)

  def write(self, tag: bytes, lines: Sequence[bytes]) -> None:
    """Writes whole lines."""
    text = b''.join(tag + line + b'\n' for line in lines)
    # A terminal that is gone, or a log on a full disk, is no reason to end a run.
    with contextlib.suppress(OSError):
      while text:
        text = text[os.write(self._descriptor, text):]


class _Stream(NamedTuple):
  pipe: IO[bytes]
  lines: Lines
  output: Output
  tag: bytes


class ChildProcess:
  """A command that has been started.

  Attributes:
    name: in messages and before its lines, such as 'worker 0'.
    returncode: its exit code, or minus the number of the signal that ended it; None while it runs.
  """

  def __init__(self, name: str, command: Sequence[str], *, environment: Dict[str, str],
               cores: Sequence[int], number: int, orphans: IO[bytes], outputs: Sequence[Output]):
    """Starts the command.

    Args:
      name: of the child.
      command: words.
      environment: all of it.
      cores: to run on; all of the launcher's if empty.
      number: chooses its colour.
      orphans: where `towers/launch/orphans.py` reads.
      outputs: for its stdout and its stderr.
    Raises:
      OSError: the command cannot be executed.
    """
    def prepare():
      # Told by the child itself, before it becomes the command: at no moment is it there and not
      # known.
      _tell(orphans, b'+%d\n' % os.getpid())
      if cores:
        os.sched_setaffinity(0, cores)

    self.name = name
    self.returncode: Optional[int] = None
    self._orphans = orphans
    # A session is also a group, and takes no Ctrl-C from the terminal: the launcher alone says when
    # to leave. No thread runs in the launcher, so that it may prepare the child in Python.
    self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     start_new_session=True, preexec_fn=prepare)
    pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe]
    self._streams = {pipe.fileno(): _Stream(pipe, Lines(), output, output.format_tag(name, number))
                     for pipe, output in zip(pipes, outputs)}
    for descriptor in self._streams:
      os.set_blocking(descriptor, False)

  @property
  def descriptors(self) -> List[int]:
    """Pipes that may have something to read."""
    return list(self._streams)

  @property
  def has_failed(self) -> bool:
    """Whether it has ended, and not with 0."""
    return self.returncode is not None and self.returncode != 0

  def read(self, descriptor: int, size: int = _READ_BYTES) -> None:
    """Shows what has come from a pipe; closes it at its end."""
    stream = self._streams[descriptor]
    try:
      received = os.read(descriptor, size)
    except BlockingIOError:
      return
    stream.output.write(stream.tag, stream.lines.add(received))
    if not received:
      self._close(descriptor)

  def _close(self, descriptor):
    stream = self._streams.pop(descriptor)
    stream.output.write(stream.tag, stream.lines.end())
    stream.pipe.close()

  def poll(self) -> None:
    """Sees whether it has ended; if so, ends what is left of its group and shows what it has
    written last.
    """
    if self.returncode is not None or not os.waitid(os.P_PID, self._process.pid,
                                                    os.WEXITED | os.WNOHANG | os.WNOWAIT):
      return
    # Until it is waited for, no other group can have its number.
    self._signal_group(signal.SIGKILL)
    _tell(self._orphans, b'-%d\n' % self._process.pid)
    self.returncode = self._process.wait()
    for descriptor in self.descriptors:
      self.read(descriptor, _LAST_READ_BYTES)
    # What has left the group may keep a pipe open for ever.
    for descriptor in self.descriptors:
      self._close(descriptor)

  def send(self, number: int) -> None:
    """Sends a signal to the group, unless its first process has ended."""
    if self.returncode is None:
      self._signal_group(number)
      # A stopped process takes no signal but SIGKILL until it goes on.
      self._signal_group(signal.SIGCONT)

  def _signal_group(self, number):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, number)

  def describe_end(self) -> str:
    """Returns how it ended, as the rest of a sentence that begins with its name."""
    assert self.returncode is not None
    if self.returncode < 0:
      number = -self.returncode
      return '{} was killed by {}'.format(self.name,
                                          _SIGNAL_NAMES.get(number, 'signal %d' % number))
    return f'{self.name} ended with exit code {self.returncode}'

  @property
  def shell_code(self) -> int:
    """Its exit code as a shell tells it: 128 and the number for a signal."""
    assert self.returncode is not None
    return exit_code(-self.returncode) if self.returncode < 0 else self.returncode


def _tell(orphans, line):
  # Who has killed that program as well has to end the children by hand; no reason to end the run.
  with contextlib.suppress(BrokenPipeError):
    os.write(orphans.fileno(), line)
