"""Towers tools: what looks at a machine, at a graph, at a run, and for faster settings."""
