"""Outputs that cannot be written are named before anything starts, with the reason."""

import os
import pathlib

import pytest

from tests.harness import faults
from towers.base.reason import is_about_room
from towers.base.usage_error import UsageError
from towers.checkpoint.lock import lock_folder
from towers.process.run_error import RunError
from towers.settings.config import Config
from towers.training.outputs import check_outputs

FILES = ('result_file', 'report', 'trace_file')
FOLDERS = ('summary_dir', 'export_dir', 'checkpoint_dir')


@pytest.mark.parametrize('name', FILES)
def test_files_are_refused_where_something_else_is(name, tmp_path):
  os.mkfifo(str(tmp_path / 'fifo'))
  for path, kind in ((tmp_path / 'fifo', 'a FIFO'), (tmp_path, 'a folder'),
                     ('/dev/null', 'a device'), ('/dev/stdout', 'a ')):
    with pytest.raises(UsageError, match=f'{name}={path} cannot be written: it is {kind}'):
      check_outputs(**{name: str(path)})
  assert pathlib.Path('/dev/null').is_char_device()


@pytest.mark.parametrize('name', FILES + FOLDERS)
def test_a_folder_that_cannot_be_written_is_named_and_room_only_if_it_is_full(name, tmp_path):
  path = '/sys/towers' if name in FOLDERS else '/sys/towers.json'
  with pytest.raises(UsageError, match=f'^{name}={path} cannot be .*') as error:
    check_outputs(**{name: path})
  assert 'room' not in str(error.value)
  with faults.full_disk():
    # No mistake of the user under checkpoints.
    kind = RunError if name == 'checkpoint_dir' else UsageError
    with pytest.raises(kind, match=r'File too large. Make room, or choose'):
      check_outputs(**{name: str(tmp_path / 'it')})
    with lock_folder(str(tmp_path / 'locked')):  # Also where a disk fills up just now.
      pass
  check_outputs(**{name: str(tmp_path / 'it')})
  assert sorted(os.listdir(str(tmp_path))) == (['it'] if name in FOLDERS else []) + ['locked']


@pytest.mark.parametrize('name', FILES + FOLDERS)
def test_the_folder_of_an_output_is_made(name, tmp_path):
  check_outputs(**{name: str(tmp_path / 'new' / 'it')})
  assert os.listdir(str(tmp_path / 'new')) == (['it'] if name in FOLDERS else [])


@pytest.mark.parametrize('name', FILES + FOLDERS)
def test_a_read_only_file_system_is_told_at_the_start(name, tmp_path):
  with faults.read_only(tmp_path), pytest.raises(
      UsageError, match=rf'{name}=\S+ cannot be .*: Read-only file system'):
    check_outputs(**{name: str(tmp_path / 'it')})
  assert not os.listdir(str(tmp_path))


@pytest.mark.parametrize('name', FILES + FOLDERS + ('data_dir', 'predict'))
def test_a_name_that_is_not_utf_8_is_refused(name):
  others = dict(checkpoint_dir='run') if name in ('export_dir', 'predict') else {}
  with pytest.raises(UsageError, match=rf'{name}=run\\udcff is a name that is not UTF-8'):
    Config(**{**others, name: os.fsdecode(b'run\xff')})
  with pytest.raises(UsageError, match='character of code 0'):
    Config(**{**others, name: 'run\0'})


def test_what_a_killed_run_left_is_swept(tmp_path):
  for folder in ('files', 'served'):
    (tmp_path / folder / '.writing-abc').mkdir(parents=True)
    (tmp_path / folder / '.writing-def').write_text('half')
    (tmp_path / folder / '.other').write_text('stays')
  check_outputs(report=str(tmp_path / 'files' / 'a.html'), export_dir=str(tmp_path / 'served'))
  for folder in ('files', 'served'):
    assert os.listdir(str(tmp_path / folder)) == ['.other']


@pytest.mark.parametrize('reason, is_about', [
    ('run/model.ckpt: No space left on device', True), ('Disk quota exceeded', True),
    ('File too large', True), ('Permission denied', False), ('Read-only file system', False)])
def test_room_is_the_matter_only_where_the_reason_says_so(reason, is_about):
  assert is_about_room(reason) == is_about
