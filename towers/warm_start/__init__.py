"""Warm start: initial weights from a file that another program has written."""
