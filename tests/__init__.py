"""Tests, in rooms that mirror those of the code."""

import os

from towers.extras import find_in_clone

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
find_in_clone()
