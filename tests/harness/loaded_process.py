"""Processes that begin with TensorFlow loaded: copies of one that has loaded it.

  done = run_loaded(['main.py', '--model=linear'])      # as `python main.py --model=linear`

To load TensorFlow takes 1 to 2 s of CPU time, most of what a run of a small net needs. So a server
loads it once for the tests of a process, and forks. Where a test is about the start itself, such as
threads, XLA, closed streams or signals while TensorFlow loads, it needs a new process.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading

from tests import ROOT

_context = multiprocessing.get_context('forkserver')
_context.set_forkserver_preload(['towers.cli.command_line', 'tests.harness.faulty_run'])


class LoadedProcess:
  """What `subprocess.Popen` is, for Python with these words, with pipes for stdout and stderr."""

  def __init__(self, words, *, stderr=subprocess.PIPE, cwd=ROOT, env=None):
    with tempfile.TemporaryDirectory() as folder:
      pipes = [os.path.join(folder, 'stdout')]
      if stderr == subprocess.PIPE:
        pipes.append(os.path.join(folder, 'stderr'))
      for pipe in pipes:
        os.mkfifo(pipe)
      self.args = words
      self._process = _context.Process(
          target=_run, args=(words, str(cwd), dict(env or os.environ), pipes))
      self._process.start()
      # Each waits until the process has opened it too.
      streams = [open(pipe, encoding='utf-8') for pipe in pipes]  # noqa: SIM115
    self.stdout, self.stderr = streams[0], (streams + [None])[1]
    self.pid = self._process.pid

  @property
  def returncode(self):
    return self._process.exitcode

  def poll(self):
    return self._process.exitcode

  def wait(self, timeout=None):
    self._process.join(timeout)
    if self.returncode is None:
      raise subprocess.TimeoutExpired(self.args, timeout)
    return self.returncode

  def communicate(self, timeout=None):
    texts = {}

    def read(stream):
      texts[stream] = stream and stream.read()

    readers = [threading.Thread(target=read, args=(stream,), daemon=True)
               for stream in (self.stdout, self.stderr)]
    for reader in readers:
      reader.start()
    self.wait(timeout)
    for reader in readers:
      reader.join()
    return texts[self.stdout], texts[self.stderr]

  def send_signal(self, number):
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self):
    self.send_signal(signal.SIGKILL)


def run_loaded(words, *, cwd=ROOT, env=None, timeout=120):
  """Does what `subprocess.run` does, for Python with these words; keeps stdout and stderr."""
  process = LoadedProcess(words, cwd=cwd, env=env)
  try:
    stdout, stderr = process.communicate(timeout)
  finally:
    process.kill()
    process.stdout.close()
    process.stderr.close()
  return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def _run(words, cwd, environ, pipes):
  opened = [os.open(pipe, os.O_WRONLY) for pipe in pipes]
  os.dup2(opened[0], 1)
  os.dup2(opened[-1], 2)
  for number in opened:
    os.close(number)
  # What an interpreter begins with; the settings that the load of TensorFlow left to be read later.
  settings = {name: value for name, value in os.environ.items() if name.startswith('TF_')}
  os.environ.clear()
  os.environ.update({**settings, **environ})
  os.chdir(cwd)
  is_module = words[0] == '-m'
  name, *flags = words[1:] if is_module else words
  first = cwd if is_module else os.path.dirname(os.path.abspath(name))
  sys.path[:] = [first, *environ.get('PYTHONPATH', '').split(os.pathsep)] + [
      folder for folder in sys.path if folder not in ('', ROOT)]
  sys.argv = [name, *flags]
  try:
    if is_module:
      runpy.run_module(name, run_name='__main__', alter_sys=True)
    else:
      runpy.run_path(name, run_name='__main__')
  finally:
    atexit._run_exitfuncs()
