"""Staging: the next batch waits on the tower's device before the tower asks for it."""

from staging.area import Stage, build_stage

__all__ = ['Stage', 'build_stage']
