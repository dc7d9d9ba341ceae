"""Coupling: whether a model's examples depend on each other, measured on the live program."""
