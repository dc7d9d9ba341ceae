"""A second run in a checkpoint folder is refused with the name of the first."""

import os
import socket
import sys

import pytest

from tests.harness.processes import running
from towers.base.usage_error import UsageError
from towers.checkpoint.lock import lock_folder

HOLD = 'import sys, time\nfrom towers.checkpoint.lock import lock_folder\n' \
       'with lock_folder(sys.argv[1]):\n  print("locked", flush=True)\n  time.sleep(60)\n'


def test_a_second_run_is_refused_and_told_which_the_first_is_until_that_is_killed(tmp_path):
  with running(sys.executable, '-c', HOLD, str(tmp_path)) as other:
    assert other.stdout.readline() == b'locked\n'
    with pytest.raises(UsageError) as error, lock_folder(str(tmp_path)):
      pass
    for words in (str(tmp_path), f'process {other.pid} on {socket.gethostname()}, since 20',
                  'another check'):
      assert words in str(error.value)
  with lock_folder(str(tmp_path)):
    pass


def test_it_is_given_back_at_the_end_and_after_an_error(tmp_path):
  folder = str(tmp_path / 'new')
  for _ in range(2):
    with pytest.raises(KeyError), lock_folder(folder):
      raise KeyError
  with lock_folder(None):
    pass


def test_a_lock_that_leads_out_of_the_folder_is_not_followed(tmp_path):
  (tmp_path / 'victim').write_text('precious')
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'folder' / 'lock').symlink_to(tmp_path / 'victim')
  with pytest.raises(UsageError, match='checkpoint_dir'), lock_folder(str(tmp_path / 'folder')):
    pass
  assert (tmp_path / 'victim').read_text() == 'precious'


def test_a_lock_that_is_no_file_is_refused(tmp_path):
  os.mkfifo(str(tmp_path / 'lock'))
  with pytest.raises(UsageError, match='it is a FIFO, not a file'), lock_folder(str(tmp_path)):
    pass


def test_a_lock_of_somebody_who_wrote_rubbish_is_refused_all_the_same(tmp_path):
  import fcntl
  with open(str(tmp_path / 'lock'), 'wb') as file:
    file.write(b'[1, 2\xff')
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match='did not say which'), lock_folder(str(tmp_path)):
      pass
