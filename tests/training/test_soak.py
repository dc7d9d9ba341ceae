"""A run killed at random moments ends as the uninterrupted one; the long soak is a script."""

import os

import pytest

from tests.harness import soak


@pytest.mark.slow
def test_killed_runs_end_as_the_uninterrupted_one():
  mode = soak.RUNS[os.getpid() % len(soak.RUNS)]
  told = []
  moments = soak.soak(3, [mode], num_steps=60, seed=os.getpid(), report=told.append)
  assert sum(moments.values()) >= 1 and told[-1].endswith('examples lost: 0')
