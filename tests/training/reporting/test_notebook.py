"""In a notebook's cell: the lines and the progress of a run arrive there, not at the server."""

import io
import os
import re
import signal
import sys

import pytest

import towers
from tests import ROOT
from tests.test_docs import python_blocks
from tests.training.reporting.test_progress import run
from towers.process.signals import Interrupted

[CELL] = python_blocks(os.path.join('docs', 'recipes.md'))
MAIN = 'import towers; towers.main()'


class OutStream(io.TextIOBase):
  """Takes text as the stream of ipykernel does, with the descriptor of the server's terminal."""

  __module__ = 'ipykernel.iostream'
  encoding = 'UTF-8'
  descriptor = None

  def __init__(self):
    self.text = ''

  def write(self, text):
    self.text += text
    return len(text)

  def fileno(self):
    if self.descriptor is None:
      raise io.UnsupportedOperation('fileno')
    return self.descriptor


def run_in_kernel(source, folder):
  """Returns the text of a cell that a real kernel ran, and the lines of its error."""
  nbclient, nbformat = pytest.importorskip('nbclient'), pytest.importorskip('nbformat')
  book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
  # Whatever kernels the machine names: that of this Python.
  from jupyter_client.kernelspec import KernelSpec
  from jupyter_client.manager import AsyncKernelManager
  manager = AsyncKernelManager()
  manager._kernel_spec = KernelSpec(
      argv=[sys.executable, '-m', 'ipykernel_launcher', '-f', '{connection_file}'])
  environment = dict(os.environ, PYTHONPATH=os.pathsep.join([ROOT, *sys.path]))
  # With it the kernel takes no descriptor over, as it does for users.
  environment.pop('PYTEST_CURRENT_TEST', None)
  nbclient.NotebookClient(
      book, km=manager, timeout=240, allow_errors=True,
      resources={'metadata': {'path': str(folder)}}).execute(env=environment)
  outputs = book.cells[0].outputs
  return (''.join(output.text for output in outputs if output.get('name') == 'stdout'),
          [line for output in outputs if output.output_type == 'error'
           for line in output.traceback])


def see(text, length=100):
  """Returns the lines that a cell shows of a text whose later parts go over earlier ones."""
  lines = []
  for line in text.split('\n'):
    shown = ''
    for part in line.split('\r'):
      assert len(part) < length or not re.search(r'step \d+/\d+', part)
      shown = part + shown[len(part):]
    lines.append(shown.rstrip())
  return lines


@pytest.mark.parametrize('descriptor', [
    None, 1, pytest.param('kernel', marks=[pytest.mark.nightly, pytest.mark.timeout(300)])])
def test_the_lines_and_the_progress_of_a_run_are_in_its_cell(descriptor, monkeypatch, capfd,
                                                            tmp_path):
  if descriptor == 'kernel':
    text, error = run_in_kernel(CELL, tmp_path)
    assert error == []
  else:
    stream = OutStream()
    stream.descriptor = descriptor
    with monkeypatch.context() as patched:
      patched.setattr(sys, 'stdout', stream)
      exec(CELL, {})
    text = stream.text
    assert capfd.readouterr().out == ''
  assert '\x1b' not in text and text.count('\r') >= 4
  lines = see(text)
  [ready] = [line for line in lines if line.startswith('ready in ')]
  # The drawings leave one line between what comes before and behind them.
  validation = [index for index, line in enumerate(lines) if line.startswith('validation after')]
  assert len(validation) == 2 and lines.index(ready) < validation[0]
  assert re.match('epoch 2/2 ━{8,} step 126/126  loss ', lines[validation[1] - 1])
  assert not any('─' in line for line in lines)
  assert re.match('done: 126 steps, ', lines[-2]) and lines[-1] == ''


@pytest.mark.usefixtures('clock')
def test_a_cell_is_drawn_in_once_a_second():
  stream = OutStream()
  run(stream, steps=21, step_seconds=0.25, pause_after=9)
  drawn = [int(step) for step in re.findall(r'step (\d+)/21', stream.text)]
  assert drawn == [1, 5, 9, 10, 14, 18, 21]  # A validation takes long.
  assert [line for line in see(stream.text) if '21' in line][-1].startswith('epoch 3/3 ━')


@pytest.mark.parametrize('in_kernel', [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_main_in_a_notebook_names_what_to_call(in_kernel, monkeypatch, tmp_path):
  if in_kernel:
    text, lines = run_in_kernel(MAIN, tmp_path)
    assert text == ''
  else:
    monkeypatch.setattr(sys, 'stdout', OutStream())
    monkeypatch.setattr(sys, 'argv', ['/site-packages/ipykernel_launcher.py', '-f', 'kernel.json'])
    with pytest.raises(towers.UsageError) as caught:
      exec(MAIN, {})
    lines = caught.value._render_traceback_()
  [line] = lines
  assert line.startswith('UsageError: towers.main reads a command line, and a notebook has none: '
                         'call towers.train(towers.Program(')


@pytest.mark.parametrize('error, line', [
    (towers.RunError('The disk is full.'), 'RunError: The disk is full.'),
    (Interrupted(signal.SIGINT, 'ended'), 'Interrupted: SIGINT: ended')])
def test_an_error_whose_message_says_all_is_shown_without_a_stack_trace(error, line):
  assert error._render_traceback_() == [line]
