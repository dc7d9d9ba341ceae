"""Benchmarks: what the figures of the docs are measured with."""

from towers.extras import find_in_clone

find_in_clone()
