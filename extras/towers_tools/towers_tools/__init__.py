"""Towers tools: what looks at a machine, at a run, and for faster settings."""
