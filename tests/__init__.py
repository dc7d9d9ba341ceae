"""Tests, in the rooms of what they test."""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
