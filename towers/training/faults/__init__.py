"""Faults: how a run ends when it cannot go on."""
