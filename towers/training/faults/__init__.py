"""Faults: how a run ends that cannot go on."""
