"""Checks of each commit: its subject, and the hooks, which run the first checks of CI."""

import os
import re
import subprocess

import pytest

from tests import ROOT


def check(subject, tmp_path):
  (tmp_path / 'message').write_text(f'{subject}\n\nWhy it is so.\n# A comment of git.\n')
  return subprocess.run([os.path.join(ROOT, '.ci', 'subjects'), str(tmp_path / 'message')],
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


@pytest.mark.parametrize('subject', [
    'Feed two towers', 'docs: name the rooms', 'Speed up', 'Feed ' + 'x' * 67])
def test_a_subject_passes(subject, tmp_path):
  done = check(subject, tmp_path)
  assert (done.returncode, done.stdout) == (0, '')


@pytest.mark.parametrize('subject, fault', [
    ('Mend the guard.', 'ends with a full stop'),
    ('Feed ' + 'x' * 68, 'has 73 columns, and 72 is the most')])
def test_another_subject_is_refused_by_name(subject, fault, tmp_path):
  done = check(subject, tmp_path)
  assert done.returncode == 1 and f"the subject '{subject}' {fault}." in done.stdout


def test_the_hooks_run_what_ci_begins_with():
  with open(os.path.join(ROOT, '.pre-commit-config.yaml')) as file:
    entries = re.findall(r'entry: (\S+)', file.read())
  with open(os.path.join(ROOT, '.ci', 'run')) as file:
    script = file.read()
  assert entries == ['.ci/lint', '.ci/subjects']
  for entry in entries:
    assert f' {entry}\n' in script and os.access(os.path.join(ROOT, entry), os.X_OK)
