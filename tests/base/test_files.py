"""What dead processes left is swept, not what others write; nothing but files is replaced."""

import functools
import os
import socket
import subprocess
import sys

import pytest

from tests import ROOT
from towers.base import files
from towers.base.files import name_other_kind, open_regular, sweep, write_whole, writing

KILLED = '''
import os, sys
from towers.base.files import file_aside, folder_aside
with file_aside(sys.argv[1]) as (_, file), folder_aside(sys.argv[1]) as folder:
  open(os.path.join(folder, 'half'), 'w').close()
  print(len(os.listdir(sys.argv[1])), flush=True)
  sys.stdin.read(1)
  os.kill(os.getpid(), 9)
'''


def test_what_another_process_writes_stays_until_that_is_killed(tmp_path):
  process = subprocess.Popen([sys.executable, '-c', KILLED, str(tmp_path)], cwd=ROOT,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
  assert process.stdout.readline() == b'2\n'
  sweep(str(tmp_path))
  assert len(list(tmp_path.iterdir())) == 2
  process.communicate(b'.')
  assert process.returncode == -9 and len(list(tmp_path.iterdir())) == 2
  (tmp_path / 'other').write_text('stays')
  (tmp_path / '.writing-link').symlink_to(tmp_path / 'other')
  sweep(str(tmp_path))
  assert [path.name for path in tmp_path.iterdir()] == ['other']
  sweep(str(tmp_path / 'nowhere'))


def test_what_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
  lock, folders = files._lock, iter([str(tmp_path)])

  def lock_late(handle):
    for folder in folders:
      sweep(folder)
    lock(handle)

  monkeypatch.setattr(files, '_lock', lock_late)
  write_whole(str(tmp_path / 'whole'), b'1')
  assert [path.read_bytes() for path in tmp_path.iterdir()] == [b'1']


def test_what_is_not_written_to_the_end_leaves_the_file_before(tmp_path):
  write_whole(str(tmp_path / 'whole'), b'before')
  with pytest.raises(KeyError), writing(str(tmp_path / 'whole')) as file:
    file.write(b'half')
    raise KeyError
  assert [path.read_bytes() for path in tmp_path.iterdir()] == [b'before']
  with writing(str(tmp_path / 'whole')) as file:
    file.write(b'after')
  assert [path.read_bytes() for path in tmp_path.iterdir()] == [b'after']


@pytest.mark.parametrize('make, kind', [
    (os.mkfifo, 'a FIFO'), (socket.socket(socket.AF_UNIX).bind, 'a socket'), (os.mkdir, 'a folder'),
    (functools.partial(os.symlink, '/dev/null'), 'a device'),
    (functools.partial(os.symlink, '/proc/self/fd/1'), 'a stream of a process')])
def test_what_is_no_file_is_neither_replaced_nor_read(make, kind, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # The path of a socket must be short.
  make('it')
  before = os.lstat('it')
  assert name_other_kind('it') == kind
  with pytest.raises(OSError, match='it is .*, not a file'):
    write_whole('it', b'content')
  assert os.path.samestat(os.lstat('it'), before) and os.listdir() == ['it']
  if kind not in ('a socket', 'a stream of a process'):
    with pytest.raises(OSError, match=f'it is {kind}, not a file'):
      open_regular('it')


def test_files_links_to_files_and_nothing_are_fine(tmp_path):
  (tmp_path / 'file').write_text('before')
  (tmp_path / 'link').symlink_to('file')
  (tmp_path / 'nowhere').symlink_to('absent')
  for name in ('file', 'link', 'nowhere', 'absent'):
    assert name_other_kind(str(tmp_path / name)) == ''
  write_whole(str(tmp_path / 'link'), b'after')
  assert (tmp_path / 'file').read_text() == 'before' and not (tmp_path / 'link').is_symlink()
  with open_regular(str(tmp_path / 'link')) as file:
    assert file.read() == b'after'
