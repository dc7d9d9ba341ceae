"""A child process: a command in its own process group, its lines, and how it ended.

  command ── stdout ──► pipe ──► Lines ──► worker 0 │ whole line ──► stdout
          └─ stderr ──► pipe ──► Lines ──► worker 0 │ whole line ──► stderr

The group is killed when its first process ends, so what a worker started does not outlive it.
"""

import contextlib
import os
import signal
import subprocess
import time
from typing import IO, Callable, Dict, List, NamedTuple, Optional, Sequence, TextIO

from towers.base.output import write_bytes
from towers.process.signals import exit_code

_READ_BYTES = 1 << 16
# More than a pipe holds: one read takes all that an ended process left.
_LAST_READ_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
_SECONDS_BETWEEN_REDRAWN_LINES = 5.0
_COLOURS = (36, 33, 35, 32, 34, 31)
# Of the real-time signals only the first and the last have names.
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


class Lines:
  """Cuts the output of a pipe into whole lines.

  A progress line that redraws itself with `\\r` is shown every few seconds, and in its last state.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Starts with an empty line."""
    self._rest = b''
    self._clock = clock
    self._shown_at = float('-inf')

  def add(self, received: bytes) -> List[bytes]:
    """Returns the lines that are now whole, without their line ends."""
    *lines, self._rest = (self._rest + received).replace(b'\r\n', b'\n').split(b'\n')
    lines = [_last_drawn(line) for line in lines]
    if len(self._rest) > _LONGEST_LINE:  # A line that never ends must not fill the memory.
      lines += self.end()
    elif b'\r' in self._rest[:-1]:  # A \r at the very end may be half of a line end.
      now = self._clock()
      if now - self._shown_at >= _SECONDS_BETWEEN_REDRAWN_LINES:
        self._shown_at = now
        lines.append(_last_drawn(self._rest))
    return lines

  def end(self) -> List[bytes]:
    """Returns the last line if it has no line end."""
    last, self._rest = _last_drawn(self._rest), b''
    return [last] if last else []


def _last_drawn(line):
  return line.rstrip(b'\r').rpartition(b'\r')[2]


class Output:
  """A stream of the launcher, which shows the lines of all children under their names."""

  def __init__(self, stream: TextIO):
    """Colours tags if `stream` is a terminal and NO_COLOR is not set."""
    self._descriptor = stream.fileno()
    self._encoding = stream.encoding or 'ascii'
    takes_colours = not os.environ.get('NO_COLOR') and os.environ.get('TERM') != 'dumb'
    self._is_coloured = stream.isatty() and takes_colours

  def format_tag(self, name: str, index: int) -> bytes:
    """Returns the start of each line of a child."""
    bar = '│' if 'utf' in self._encoding.lower() else '|'
    tag = f'{name} {bar} '
    if self._is_coloured:
      tag = f'\x1b[{_COLOURS[index % len(_COLOURS)]}m{tag}\x1b[0m'
    return tag.encode(self._encoding)

  def write(self, tag: bytes, lines: Sequence[bytes]) -> None:
    """Writes whole lines."""
    write_bytes(self._descriptor, b''.join(tag + line + b'\n' for line in lines))


class _Stream(NamedTuple):
  pipe: IO[bytes]
  lines: Lines
  output: Output
  tag: bytes


class ChildProcess:
  """A command that was started.

  Attributes:
    name: in messages and before its lines, such as 'worker 0'.
    returncode: its exit code, or minus the number of the signal that ended it; None while it runs.
  """

  def __init__(self, name: str, command: Sequence[str], *, environment: Dict[str, str],
               cores: Sequence[int], index: int, orphans: IO[bytes], outputs: Sequence[Output]):
    """Starts the command; `index` chooses the colour of its tag.

    Raises:
      OSError: the command cannot be executed.
    """
    def prepare():
      # The child registers itself before it becomes the command, so it never runs unregistered.
      _register(orphans, f'+{os.getpid()}')
      if cores:
        os.sched_setaffinity(0, cores)

    self.name = name
    self.returncode: Optional[int] = None
    self._orphans = orphans
    # A new session is also a new group, and Ctrl-C in the terminal does not reach it: only the
    # launcher sends signals. It has no threads, which makes preexec_fn safe.
    self._process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True, preexec_fn=prepare)
    pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe]
    self._streams = {pipe.fileno(): _Stream(pipe, Lines(), output, output.format_tag(name, index))
                     for pipe, output in zip(pipes, outputs)}
    for descriptor in self._streams:
      os.set_blocking(descriptor, False)

  @property
  def descriptors(self) -> List[int]:
    """The open pipes."""
    return list(self._streams)

  @property
  def has_failed(self) -> bool:
    """Whether it ended with another code than 0."""
    return self.returncode is not None and self.returncode != 0

  def read(self, descriptor: int, size: int = _READ_BYTES) -> None:
    """Shows what a pipe holds; closes the pipe at its end."""
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
    """If its first process has ended, kills the rest of the group and shows its last lines."""
    if self.returncode is not None:
      return
    if not os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
      return
    # Its zombie keeps the id, so this kills no other group.
    self._signal_group(signal.SIGKILL)
    _register(self._orphans, f'-{self._process.pid}')
    self.returncode = self._process.wait()
    for descriptor in self.descriptors:
      self.read(descriptor, _LAST_READ_BYTES)
    # A process that left the group may keep a pipe open.
    for descriptor in self.descriptors:
      self._close(descriptor)

  def send(self, number: int) -> None:
    """Sends a signal to the group, unless its first process has ended."""
    if self.returncode is None:
      self._signal_group(number)
      # A stopped process handles no signal but SIGKILL until it continues.
      self._signal_group(signal.SIGCONT)

  def _signal_group(self, number):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, number)

  def describe_end(self) -> str:
    """Returns the sentence of how it ended."""
    assert self.returncode is not None
    if self.returncode < 0:
      number = -self.returncode
      return f"{self.name} was killed by {_SIGNAL_NAMES.get(number, f'signal {number}')}"
    return f'{self.name} ended with exit code {self.returncode}'

  @property
  def shell_code(self) -> int:
    """Its exit code as a shell gives it: 128 plus the number of a signal."""
    assert self.returncode is not None
    return exit_code(-self.returncode) if self.returncode < 0 else self.returncode


def _register(orphans, line):
  # A run does not end if somebody kills that program.
  with contextlib.suppress(BrokenPipeError):
    os.write(orphans.fileno(), f'{line}\n'.encode())
