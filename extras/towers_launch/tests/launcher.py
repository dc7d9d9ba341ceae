"""A launcher whose children train nothing, for tests of what it starts, shows and ends."""

import subprocess
import sys

from tests import ROOT
from tests.harness.processes import clean_environment, wait_until

# Every child knows its rank as `worker`, and notes lines in files of the test's folder.
PRELUDE = '''
import json, os, signal, subprocess, sys, time
task = json.loads(os.environ['TF_CONFIG'])['task']
worker = task['index'] if task['type'] == 'worker' else task['type']
def note(name, text=''):
  with open(os.path.join(os.environ['NOTES'], name), 'a') as file:
    file.write('%s\\n' % text)
def wait_for(name):
  while not os.path.exists(os.path.join(os.environ['NOTES'], name)):
    time.sleep(0.01)
def wait_for_all(count):
  while len(open(os.path.join(os.environ['NOTES'], 'starts')).read().split('\\n')[:-1]) % count:
    time.sleep(0.01)
note('tf_configs', os.environ['TF_CONFIG'])
note('starts', worker)
'''
# An hour, as far as tests are concerned.
SLEEP = 'time.sleep(3600)\n'


class Launcher:
  """`python -m towers launch` with a child's program, its output, and what its children note."""

  def __init__(self, folder, child, *flags, environment=None, stdout=subprocess.PIPE,
               stderr=subprocess.PIPE):
    self.folder = folder
    (folder / 'child.py').write_text(PRELUDE + child)
    self.process = subprocess.Popen(
        [sys.executable, '-m', 'towers', 'launch'] + list(flags) +
        ['--', sys.executable, str(folder / 'child.py')], cwd=ROOT, stdout=stdout, stderr=stderr,
        env=clean_environment(NOTES=str(folder), **(environment or {})))

  def notes(self, name):
    path = self.folder / name
    return path.read_text().split('\n')[:-1] if path.exists() else []

  def wait_for(self, name, count=1):
    """Waits until children have noted so many lines."""
    wait_until(lambda: len(self.notes(name)) >= count)

  def end(self):
    """Waits for it; returns its exit code."""
    stdout, stderr = self.process.communicate(timeout=60)
    self.stdout, self.stderr = ((text or b'').decode() for text in (stdout, stderr))
    assert 'Traceback' not in self.stderr, self.stderr
    return self.process.returncode

  def said(self):
    return [line for line in self.stderr.split('\n') if line.startswith('launch: ')]
