"""The log of damaged records: each once, with its place, and their number at the end."""

import io

import pytest

from towers.base.usage_error import UsageError
from towers.data.bad_records import BadRecords


def test_fail_names_the_place_and_the_setting_and_remembers_the_first():
  bad_records, told = BadRecords('fail'), []
  bad_records.on_failure = told.append
  with pytest.raises(UsageError, match=r'a/file: record 1,234 at byte 99: torn. '
                                       r'.*on_bad_record=skip'):
    bad_records.report('a/file', 99, 1234, 'torn')
  with pytest.raises(UsageError, match='the end at byte 7'):
    bad_records.report('b', 7, None, 'cut')
  assert 'a/file' in bad_records.failure and bad_records.summary() == ''
  # A worker ends there, before TensorFlow 1.14 fails in a step that others wait for.
  assert told == [bad_records.failure]


def test_skip_logs_each_place_once_and_counts_them_by_file():
  stream = io.StringIO()
  bad_records = BadRecords('skip', stream)
  for _ in range(3):
    bad_records.report('b', 5, 0, 'torn')
    bad_records.report('a', 5, 2, 'cut')
    bad_records.report('a', 9, 3, 'cut')
  assert stream.getvalue() == ('skipped: b: record 0 at byte 5: torn\nskipped: a: record 2 at byte '
                               '5: cut\n'
                               'skipped: a: record 3 at byte 9: cut\n')
  assert bad_records.summary() == 'skipped 3 damaged records in 2 files: a (2), b (1)'
  assert bad_records.failure is None


def test_a_rotten_set_does_not_flood_the_log():
  stream = io.StringIO()
  bad_records = BadRecords('skip', stream)
  for number in range(1000):
    bad_records.report(f'file {number % 50}', number, number, 'torn')
  assert stream.getvalue().count(
      '\n') == 20 and 'only counted' in stream.getvalue().splitlines()[-1]
  assert bad_records.summary().startswith('skipped 1,000 damaged records in 50 files: file 0 (20)')
  assert bad_records.summary().endswith('and 40 more files')
