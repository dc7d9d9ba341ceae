"""A clock for what shows a run."""

import time
from types import SimpleNamespace

import pytest

from towers.training.reporting import progress


@pytest.fixture
def clock(monkeypatch):
  """The time, which passes as a test says, beside a terminal of 100 columns."""
  monkeypatch.setenv('COLUMNS', '100')
  clock = SimpleNamespace(seconds=0.0, monotonic=lambda: clock.seconds, strftime=time.strftime)
  monkeypatch.setattr(progress, 'time', clock)
  return clock
