"""Staging: the next batch waits on the tower's device before the tower asks for it."""

from .area import Stage, build_stage, run_beside

__all__ = ['Stage', 'build_stage', 'run_beside']
