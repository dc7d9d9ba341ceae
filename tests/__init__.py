"""Tests, in rooms that mirror those of the code."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
