"""Launchers that end with their test."""

import pytest

from launcher import Launcher


@pytest.fixture
def start(tmp_path):
  launchers = []

  def start_one(child, *flags, **settings):
    launchers.append(Launcher(tmp_path, child, *flags, **settings))
    return launchers[-1]

  yield start_one
  for launcher in launchers:
    launcher.process.kill()
    launcher.process.communicate()
