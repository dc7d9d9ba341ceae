"""Cores are those of this process, not those of the machine."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from towers.base.cores import count_cores


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='Linux alone has it.')
def test_a_process_that_is_kept_to_one_core_counts_one():
  code = ('import os; from towers.base.cores import count_cores; '
          'os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(count_cores()); '
          'import sys; assert "tensorflow" not in sys.modules')
  done = subprocess.run([sys.executable, '-c', code], cwd=ROOT, stdout=subprocess.PIPE, check=True,
                        timeout=60)
  assert done.stdout == b'1\n'
  assert count_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize('found, counted', [(6, 6), (None, 1)])
def test_elsewhere_those_of_the_machine_are_counted(monkeypatch, found, counted):
  monkeypatch.delattr(os, 'sched_getaffinity', raising=False)
  monkeypatch.setattr(os, 'cpu_count', lambda: found)
  assert count_cores() == counted
