"""One writer for every line: it loses a line that cannot be written, and never fails or waits."""

import io
import logging
import os
import subprocess
import sys

import pytest

from tests import ROOT
from towers.base import output
from towers.base.output import flush_streams, write, write_at_once, write_bytes, write_line


def broken_pipe():
  reader, writer = os.pipe()
  os.close(reader)
  return os.fdopen(writer, 'w')


def full_pipe():
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  with pytest.raises(BlockingIOError):
    while True:
      os.write(writer, bytes(4096))
  os.set_blocking(writer, True)
  return reader, writer


def full_disk():
  return os.fdopen(os.open('/dev/full', os.O_WRONLY), 'w')


def closed_descriptor():
  stream = broken_pipe()
  os.close(stream.fileno())
  return stream


def closed_stream():
  stream = io.StringIO()
  stream.close()
  return stream


@pytest.mark.parametrize('make', [broken_pipe, closed_descriptor, closed_stream, full_disk])
def test_what_cannot_be_written_is_lost_and_fails_nothing(make, monkeypatch):
  stream = make()
  for _ in range(3):
    write_line('a line\n' * 3000, stream)
  for stdout in (stream, None):  # A process may have none.
    monkeypatch.setattr(sys, 'stdout', stdout)
    write_line('another')
  if make is closed_descriptor:  # Or its own end would close another file.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_reader_that_takes_nothing_is_not_waited_for_until_it_reads_on():
  reader, writer = full_pipe()
  write_bytes(writer, b'lost', 0.01)
  write_bytes(writer, b'lost')
  os.read(reader, 1 << 16)
  write_bytes(writer, b'read')
  assert os.read(reader, 1 << 16).endswith(b'read') and writer not in output._stuck
  os.close(reader)
  os.close(writer)


def test_lines_keep_their_order_and_characters_that_cannot_be_written_are_named():
  reader, writer = os.pipe()
  with os.fdopen(writer, 'w', encoding='ascii') as stream:
    print('the first', file=stream)
    write_line('the second: \u2501 \udcff', stream)
    write('the third', stream, waits=True)
    assert os.read(reader, 1000).decode() == ('the first\nthe second: \\u2501 \\udcff\nthe third')
  os.close(reader)


@pytest.mark.parametrize('has_own', [False, True])
def test_a_warning_of_logging_is_a_line_that_begins_so_also_if_quiet(has_own, monkeypatch, capsys):
  own = io.StringIO()
  monkeypatch.setattr(logging.getLogger(), 'handlers', [logging.StreamHandler(own)] * has_own)
  with output.quieted():
    logging.getLogger('towers').warning('draws %d numbers', 3)
  line = 'draws 3 numbers\n'
  assert own.getvalue() == line * has_own
  assert capsys.readouterr() == ('', '' if has_own else 'WARNING: ' + line)


def test_what_goes_to_stderr_at_once_waits_for_no_buffer(capfd):
  write_at_once('an end')
  assert capfd.readouterr().err == 'an end'


def test_what_others_left_in_a_stream_fails_no_exit():
  program = ('from towers.base.output import flush_streams; import sys; '
             'sys.stdout.write("a line of the user"); flush_streams()')
  with open('/dev/full', 'w') as full:
    done = subprocess.run([sys.executable, '-E', '-c', program], cwd=ROOT, stdout=full,
                          stderr=subprocess.PIPE)
  assert (done.returncode, done.stderr) == (0, b'')
  flush_streams()


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path):
  program = ('import os, sys; from towers.base.output import open_closed_streams; '
             'open_closed_streams(); '
             f'handle = os.open({str(tmp_path / "file")!r}, os.O_CREAT | os.O_WRONLY); '
             'assert handle > 2, handle; print("out"); print("err", file=sys.stderr)')
  for closed in ('>&-', '2>&-', '<&- >&- 2>&-'):
    done = subprocess.run(['sh', '-c', f'exec "$0" -c "$1" {closed}', sys.executable, program],
                          cwd=ROOT)
    assert done.returncode == 0, closed
  assert (tmp_path / 'file').read_text() == ''
