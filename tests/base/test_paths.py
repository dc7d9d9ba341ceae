"""A path with a scheme is refused wherever a path enters, and no other path is."""

import os
import pathlib

import pytest

from towers import data
from towers.base.paths import check_local_path
from towers.base.usage_error import UsageError


@pytest.mark.parametrize('path', [
    'hdfs://nn/x', 'gs://bucket/run', 's3://bucket', 'viewfs:///x', 'HDFS://nn/x',
    'svn+ssh://host/x', b'gs://bucket/x', pathlib.PurePosixPath('gs://bucket/run')])
def test_a_path_with_a_scheme_is_refused(path):
  with pytest.raises(UsageError) as error:
    check_local_path('summary_dir', path)
  message = str(error.value)
  assert message.startswith(
      f'summary_dir={os.fsdecode(path)} names another file system') and 'mounted' in message


@pytest.mark.parametrize('url', ['file:///runs/a', 'file:/runs/a', 'file://localhost/runs/a',
    'FILE:///runs/a'])
def test_a_file_url_is_refused_with_its_path(url):
  with pytest.raises(UsageError, match=r'is a URL.*use report=/runs/a\.$'):
    check_local_path('report', url)


@pytest.mark.parametrize('path', [
    'runs/a', '/runs/a', '', '.', 'C:\\x', 'C:/x', 'c://x', '//server/share', '12:/x',
    'runs/hdfs://x', './hdfs:/x', 'a:b', 'step:3', b'runs', pathlib.Path('/runs')])
def test_any_other_path_is_left_alone(path):
  check_local_path('summary_dir', path)


@pytest.mark.parametrize('name', sorted(set(data.DATA_SETS) - {'sample', 'synthetic'}))
def test_no_data_set_reads_from_another_file_system(name):
  for data_dir in ('gs://bucket/photos', pathlib.PurePosixPath('gs://bucket/photos')):
    with pytest.raises(UsageError, match='data_dir=gs:/+bucket/photos names another file system'):
      data.load(name, data_dir=data_dir)
