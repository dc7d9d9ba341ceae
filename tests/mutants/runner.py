"""The runner: puts each mutant into a copy of the tree, and runs its tests in a process."""

import concurrent.futures
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Callable, Iterator, List, NamedTuple, Sequence

from tests.mutants.mutant import Mutant

# Files that no test reads.
_LEFT_OUT = ('.git', '.venv*', '__pycache__', '.pytest_cache', '.mypy_cache', '.ruff_cache',
             '.hypothesis', 'build', '*.egg-info')
# Exit codes of pytest.
_PASSED, _FAILED = 0, 1


class BaselineError(Exception):
  """Tests fail without any fault."""


class Result(NamedTuple):
  """The result of a mutant's tests.

  Attributes:
    mutant: that was tried.
    verdict: 'killed', 'killed (hangs)', 'survived', 'equivalent', or 'no test ran'.
    seconds: that its tests took.
    output: the end of their output.
  """
  mutant: Mutant
  verdict: str
  seconds: float
  output: str

  @property
  def is_as_it_should_be(self) -> bool:
    """Whether the tests failed for a fault, and passed for an equivalent mutant."""
    if self.mutant.equivalent:
      return self.verdict == 'equivalent'
    return self.verdict.startswith('killed')


def run_mutants(mutants: Sequence[Mutant], *, root: str, python: str, jobs: int = 1,
                seconds: float = 120.0, note: Callable[[Result], Any] = lambda result: None
                ) -> List[Result]:
  """Tries mutants; returns their results in the same order.

  Args:
    mutants: to try.
    root: of the tree, which is copied once for each job and stays unchanged.
    python: that runs the tests.
    jobs: mutants at a time.
    seconds: after which the tests of one mutant count as hanging.
    note: called with each result as it comes.

  Raises:
    BaselineError: a test does not exist, or fails without any fault.
  """
  with contextlib.ExitStack() as stack:
    trees: queue.Queue[str] = queue.Queue()
    for _ in range(jobs):
      trees.put(stack.enter_context(_copy(root)))

    def work(mutant):
      copy = trees.get()
      try:
        result = _try(mutant, copy, python, seconds)
      finally:
        trees.put(copy)
      note(result)
      return result

    _check_tests(mutants, root=trees.queue[0], python=python)
    with concurrent.futures.ThreadPoolExecutor(jobs) as threads:
      return list(threads.map(work, mutants))


def _check_tests(mutants, *, root, python):
  """Raises unless all tests of mutants pass without any, in one process."""
  tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
  code, output = _run_pytest(python, root, tests, seconds=60 + 20 * len(tests))
  if code != _PASSED:
    raise BaselineError(f'Not all tests pass without a fault:\n{output}')


def _try(mutant, copy, python, seconds):
  """Returns the result of one mutant."""
  started = time.monotonic()
  text = mutant.apply(copy)
  try:
    code, output = _run_pytest(python, copy, mutant.tests, seconds)
  finally:
    mutant.restore(copy, text)
  if code is None:
    verdict = 'killed (hangs)'
  elif code == _FAILED:
    verdict = 'killed'
  elif code == _PASSED:
    verdict = 'equivalent' if mutant.equivalent else 'survived'
  else:  # Nothing was collected: a test has the wrong name, which says nothing about the fault.
    verdict = 'no test ran'
  return Result(mutant, verdict, time.monotonic() - started, output)


@contextlib.contextmanager
def _copy(root) -> Iterator[str]:
  with tempfile.TemporaryDirectory(prefix='mutants-') as folder:
    copy = os.path.join(folder, 'tree')
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    yield copy


def _run_pytest(python, root, tests, seconds):
  """Returns pytest's exit code, or None if it took too long, and the end of its output."""
  # No bytecode: two faults of equal length within one second look the same to Python's cache.
  environment = dict(os.environ, PYTHONDONTWRITEBYTECODE='1', PYTHONPATH='')
  command = [python, '-m', 'pytest', '-q', '-x', '--tb=line', '-p', 'no:cacheprovider',
             '-p', 'no:xdist', *tests]
  with tempfile.TemporaryFile() as stream:
    process = subprocess.Popen(command, cwd=root, env=environment, stdin=subprocess.DEVNULL,
                               stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
      code = process.wait(seconds)
    except subprocess.TimeoutExpired:
      code = None
    finally:
      # Also kills processes that the tests started.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()
    stream.seek(0)
    return code, stream.read()[-2000:].decode(errors='replace')
