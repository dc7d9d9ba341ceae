"""Endurance: memory, handles and threads are reported, for one run and for many programs."""

import re
import subprocess
import sys

import pytest

from tests import ROOT

LINE = r'^ +(\d+) %s +\d+ s +\d+\.\d MB +\d+ handles +\d+ threads$'


@pytest.mark.nightly
@pytest.mark.parametrize('unit, counts', [('steps', [3, 5, 7, 9, 11, 14, 16, 18, 20, 22]),
                                          ('programs', [2, 3, 4, 5, 6, 7, 8, 9, 10, 11])])
def test_memory_handles_and_threads_are_reported(unit, counts):
  done = subprocess.run([sys.executable, '-m', 'benchmarks.endurance', f'--{unit}={counts[-1]}'],
                        cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert list(map(int, re.findall(LINE % unit, done.stderr, re.MULTILINE))) == counts
  growth = re.search(r'since the first tenth: ([+-]\d+\.\d) MB, ([+-]\d+) handles, ([+-]\d+) '
                     r'threads', done.stderr)
  if unit == 'programs':
    assert float(growth.group(1)) < 250 and int(growth.group(2)) == int(growth.group(3)) == 0
